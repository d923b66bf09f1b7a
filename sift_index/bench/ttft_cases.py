"""Which prefills are timed: cases of one prompt shape, and rows, each another way to prefill it."""

from collections.abc import Sequence
from dataclasses import dataclass

from sift_index.bench.cases import GLUE, LA_DENSE_TOKENS, token_label
from sift_index.errors import UsageError

FA3, CUDNN, SDPA = "dense-fa3", "dense-cudnn", "dense-sdpa"
DENSE = (FA3, CUDNN, SDPA)
SIFT, KV_REUSE, CACHEBLEND = "sift", "kv-reuse", "cacheblend15"
KINDS = (*DENSE, SIFT, KV_REUSE, CACHEBLEND)
# What `--rows` stands at: PyTorch's own choice of a dense kernel is for machines without a GPU.
USUAL = (FA3, CUDNN, SIFT, KV_REUSE, CACHEBLEND)
# Share of the document tokens that are recomputed.
RECOMPUTED = {KV_REUSE: 0.0, CACHEBLEND: 0.15}
DRAM, DISK = "dram", "disk"
DEFAULT = "default"
# Documents of this many tokens are not named in a case.
USUAL_DOCUMENT = 1024


@dataclass(frozen=True)
class TTFTCase:
    """A prompt of `tokens` tokens: documents of `document` tokens between two pieces of glue."""

    tokens: int
    document: int

    @property
    def label(self) -> str:
        """Name of the case alone, such as `64k` or `64k-doc4k`."""
        return f"{_short(self.tokens)}{self._suffix}"

    @property
    def sparse_la(self) -> bool:
        """Whether its documents are long enough to store LA bits."""
        return self.document > LA_DENSE_TOKENS

    @property
    def spans(self) -> list[tuple[int, int]]:
        """Start and stop of each document, back to back, the last one cut to fit."""
        stop = self.tokens - GLUE
        starts = range(GLUE, stop, self.document)
        return [(start, min(start + self.document, stop)) for start in starts]

    def row_name(self, row: str) -> str:
        """Return the case a row's numbers are kept under, such as `64k-ca10` (DESIGN section 9)."""
        return f"{_short(self.tokens)}-{row}{self._suffix}"

    @property
    def _suffix(self) -> str:
        usual = self.document == USUAL_DOCUMENT
        return "" if usual else f"-doc{_short(self.document)}"


@dataclass(frozen=True)
class Row:
    """One way to prefill: `kind` of KINDS; `ca` of sift, None for the default policy's; `store`.

    Its name is how results name it: `dense-fa3`, `default`, `ca10`, `kv-reuse-dram`.
    """

    kind: str
    ca: float | None = None
    store: str = ""

    @property
    def name(self) -> str:
        """Name of the row, without the case."""
        if self.kind == SIFT:
            return DEFAULT if self.ca is None else f"ca{round(100 * self.ca, 4):g}"
        return f"{self.kind}-{self.store}" if self.store else self.kind

    @property
    def dense(self) -> bool:
        """Whether it computes everything, and others are compared with it."""
        return self.kind in DENSE


@dataclass(frozen=True)
class TTFTOptions:
    """What to time. densities: of sift, None for the default policy's own.

    rows: kinds, in the order in which they take turns. disk: whether reused KV also comes from
    disk. Raises UsageError for values that no case can be made of.
    """

    tokens: tuple[int, ...] = (16384, 32768, 65536, 131072)
    documents: tuple[int, ...] = (1024, 4096)
    densities: tuple[float | None, ...] = (None, 0.25, 0.10)
    kinds: tuple[str, ...] = USUAL
    disk: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        lists: tuple[tuple[str, Sequence[object]], ...] = (
            ("--tokens", self.tokens),
            ("--documents", self.documents),
            ("--densities", self.densities),
            ("--rows", self.kinds),
        )
        for name, values in lists:
            if not values or len(set(values)) < len(values):
                raise _misfit(name, "different values", list(values), "name each once")
        for kind in self.kinds:
            if kind not in KINDS:
                raise _misfit("--rows", f"some of {', '.join(KINDS)}", repr(kind), "see --help")
        for share in self.densities:
            if share is not None and not 0 < share < 1:
                raise _misfit("a density", "between 0 and 1", share, "dense is a row of its own")
        self._check_lengths()

    def _check_lengths(self) -> None:
        longest = max(self.documents)
        if min(self.documents) < 1:
            raise _misfit("--documents", "1 token or more", min(self.documents), "take more")
        if min(self.tokens) < longest + 2 * GLUE:
            room = f"{longest + 2 * GLUE:,} or more (a document of {longest:,}, {2 * GLUE} of glue)"
            raise _misfit("--tokens", room, f"{min(self.tokens):,}", "take longer prompts")

    def cases(self) -> list[TTFTCase]:
        """Return the cases: all lengths with the first documents, then with the next ones."""
        return [TTFTCase(tokens, size) for size in self.documents for tokens in self.tokens]

    def rows(self) -> list[Row]:
        """Return the rows of every case, in the order in which they take turns."""
        return [row for kind in self.kinds for row in self._rows_of(kind)]

    def _rows_of(self, kind: str) -> list[Row]:
        if kind == SIFT:
            return [Row(kind, ca) for ca in self.densities]
        if kind in RECOMPUTED:
            stores = (DRAM, DISK) if self.disk else (DRAM,)
            return [Row(kind, store=store) for store in stores]
        return [Row(kind)]


def _short(tokens: int) -> str:
    return token_label(tokens).lower()


def _misfit(what: str, expected: str, found: object, hint: str) -> UsageError:
    return UsageError(f"{what}: expected {expected}, found {found}; {hint}")
