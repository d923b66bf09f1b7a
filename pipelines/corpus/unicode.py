"""Text must be Unicode that can be tokenised.

A document that was decoded by a guess would get a wrong key and wrong masks, so nothing is
repaired here: the message says which byte is wrong and how to convert the file.
"""

import codecs

from sift_index.errors import DocumentError


def decode(data: bytes, offset: int = 0) -> str:
    """Decode UTF-8 bytes that start at `offset` of their file, without a byte order mark.

    Raises DocumentError with the offset in the file and the value of the first wrong byte.
    """
    body = data.removeprefix(codecs.BOM_UTF8)
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise not_utf8(error, offset + len(data) - len(body)) from error


def not_utf8(error: UnicodeDecodeError, offset: int = 0) -> DocumentError:
    """Return the error to raise for bytes at `offset` that are not UTF-8."""
    return DocumentError(
        f"expected UTF-8, found byte 0x{error.object[error.start]:02x} at byte offset "
        f"{offset + error.start}; convert the file to UTF-8, for example with "
        "`iconv -f LATIN1 -t UTF-8`"
    )


def encodable(value: str, what: str) -> str:
    """Return `value` unchanged.

    Raises DocumentError when it holds half of a surrogate pair, which no tokenizer accepts.
    """
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DocumentError(
            f"expected Unicode text as {what}, found the lone surrogate "
            f"U+{ord(value[error.start]):04X} at character {error.start}; replace it"
        ) from error
    return value
