from __future__ import annotations

import struct
from hashlib import blake2b

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sift_index.formats import bits
from sift_index.formats.blob import (
    HEADER_BYTES,
    Codec,
    RowIdentity,
    decode_blob,
    encode_blob,
)
from sift_index.formats.errors import IntegrityError, UsageError
from sift_index.formats.masks import MaskKind, PackedMask

ROW = RowIdentity(bytes(range(16)), 77, 40)
zstandard = pytest.importorskip("zstandard")


def _mask(ones: bool = False, pages: int = 300, levels: int = 1, seed: int = 0) -> PackedMask:
    values = np.random.default_rng(seed).integers(0, 1 << levels, (2, 2, pages), dtype=np.uint8)
    packed = bits.pack(np.ones_like(values) if ones else values, levels)
    return PackedMask(MaskKind.CA, packed, pages, 32, levels)


def _sealed(header: tuple[object, ...], payload: bytes) -> bytes:
    """Build a forged blob with a right checksum."""
    head = struct.pack("<2sBBBBHHHIII", *header)
    digest = blake2b(ROW.to_bytes() + head + payload, digest_size=8).digest()
    return head + digest + payload


@given(
    seed=st.integers(0, 99),
    pages=st.integers(1, 90),
    levels=st.sampled_from([1, 2]),
    codec=st.sampled_from(Codec),
    anchor=st.none() | st.integers(1, 2**64 - 1),
)
def test_decode_inverts_encode(
    seed: int, pages: int, levels: int, codec: Codec, anchor: int | None
) -> None:
    row = ROW._replace(anchor=anchor)
    mask = _mask(pages=pages, levels=levels, seed=seed)
    assert decode_blob(encode_blob(mask, row, codec), row, full=True) == mask


def test_header_layout_is_the_one_of_the_spec() -> None:
    mask = _mask(pages=10)
    blob = encode_blob(mask, ROW)
    payload = mask.packed.tobytes()
    assert blob == _sealed((b"SB", 2, 0, 1, 0, 2, 2, 32, 10, 8, 8), payload)
    assert len(blob) == HEADER_BYTES + 8


def test_raw_payload_is_a_view_and_cannot_be_written() -> None:
    buffer = np.frombuffer(encode_blob(_mask(), ROW), np.uint8)
    packed = decode_blob(buffer, ROW).packed
    assert np.shares_memory(packed, buffer)
    assert not packed.flags.writeable


def test_zstd_is_used_where_it_shrinks_and_only_there() -> None:
    assert encode_blob(_mask(ones=True), ROW, Codec.ZSTD)[3] == Codec.ZSTD
    assert encode_blob(_mask(ones=True), ROW, Codec.RAW)[3] == Codec.RAW
    assert encode_blob(_mask(pages=8), ROW, Codec.ZSTD)[3] == Codec.RAW


@pytest.mark.parametrize("ones", [False, True])
def test_every_flipped_bit_is_found(ones: bool) -> None:
    blob = encode_blob(_mask(ones, pages=400 if ones else 40), ROW, Codec.ZSTD)
    for place in range(len(blob) * 8):
        changed = bytearray(blob)
        changed[place // 8] ^= 1 << place % 8
        with pytest.raises(IntegrityError):
            decode_blob(changed, ROW)


@pytest.mark.parametrize("ones", [False, True])
def test_without_the_checksum_damage_is_never_another_exception(ones: bool) -> None:
    blob = encode_blob(_mask(ones, pages=400 if ones else 40), ROW, Codec.ZSTD)
    for place in range(len(blob) * 8):
        changed = bytearray(blob)
        changed[place // 8] ^= 1 << place % 8
        try:
            assert decode_blob(changed, ROW, verify=False).packed.nbytes <= 4 * 400
        except IntegrityError as error:
            assert "expected" in str(error)


def test_every_cut_and_every_extra_byte_is_found() -> None:
    blob = encode_blob(_mask(pages=40), ROW)
    for damaged in [*(blob[:n] for n in range(len(blob))), blob + b"\0"]:
        for verify in (True, False):
            with pytest.raises(IntegrityError):
                decode_blob(damaged, ROW, verify)


@pytest.mark.parametrize(
    "other",
    [
        ROW._replace(key=bytes(16)),
        ROW._replace(anchor=78),
        ROW._replace(anchor=None),
        ROW._replace(tokens=41),
        ROW._replace(linked=1),
    ],
)
def test_a_blob_belongs_to_its_row(other: RowIdentity) -> None:
    blob = encode_blob(_mask(), ROW)
    with pytest.raises(IntegrityError, match="checksum"):
        decode_blob(blob, other)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (0, b"SX", "magic"),
        (1, 3, "kind"),
        (2, 2, "codec"),
        (3, 3, "levels"),
        (4, 1, "reserved"),
        (5, 3, "raw_bytes"),
        (5, 0, "layers"),
        (7, 33, "granule"),
        (8, 17, "raw_bytes"),
        (8, 0, "entries"),
        (9, 7, "stored_bytes"),
        (10, 9, "raw_bytes"),
    ],
)
def test_a_forged_header_is_refused(field: int, value: object, message: str) -> None:
    header: list[object] = [b"SB", 2, 0, 1, 0, 2, 2, 32, 10, 8, 8]
    header[field] = value
    with pytest.raises(IntegrityError, match=message):
        decode_blob(_sealed(tuple(header), bytes(8)), ROW)


def test_a_decompression_bomb_is_refused_before_it_is_unpacked() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(50_000_000))
    header = (b"SB", 2, 1, 1, 0, 2, 2, 32, 10, len(bomb), 8)
    with pytest.raises(IntegrityError, match="content of 8 bytes"):
        decode_blob(_sealed(header, bomb), ROW)


def test_a_frame_that_hides_its_size_is_refused() -> None:
    frame = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(8))
    header = (b"SB", 2, 1, 1, 0, 2, 2, 32, 10, len(frame), 8)
    with pytest.raises(IntegrityError, match="content of 8 bytes"):
        decode_blob(_sealed(header, frame), ROW)


@pytest.mark.parametrize("junk", [b"\0", zstandard.ZstdCompressor().compress(bytes(8))])
def test_bytes_after_the_frame_are_refused(junk: bytes) -> None:
    frame = zstandard.ZstdCompressor().compress(bytes(8)) + junk
    header = (b"SB", 2, 1, 1, 0, 2, 2, 32, 10, len(frame), 8)
    with pytest.raises(IntegrityError, match="zstd frame"):
        decode_blob(_sealed(header, frame), ROW)


def test_padding_bits_are_refused_when_checked_in_full() -> None:
    blob = _sealed((b"SB", 2, 0, 1, 0, 2, 2, 32, 10, 8, 8), b"\xff" * 8)
    assert decode_blob(blob, ROW).unpacked().all()
    with pytest.raises(IntegrityError, match="zero bits"):
        decode_blob(blob, ROW, full=True)


def test_set_padding_bits_are_not_written() -> None:
    mask = PackedMask(MaskKind.CA, np.full((2, 2, 2), 255, np.uint8), 10, 32)
    with pytest.raises(UsageError, match="padding"):
        encode_blob(mask, ROW)
