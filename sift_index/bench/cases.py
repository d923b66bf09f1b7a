"""Which prompts are timed: every case has a name that its numbers keep in the results file."""

from collections.abc import Sequence
from dataclasses import dataclass

from sift_index.errors import UsageError
from sift_index.kernels.api import TILE

HEAD_DIMS = (64, 128)
PAGE_SIZES = (8, 16, 32, 64, 128)
GLUE = 64
# Shorter documents keep LA dense and store no bits for it (DESIGN section 3).
LA_DENSE_TOKENS = 8 * TILE


@dataclass(frozen=True)
class Case:
    """One prompt of `tokens` tokens: documents of `document` tokens between two pieces of glue.

    ca: share of pages that later documents attend to. la: share of the tiles of a document's own
    triangle, None where it is dense. aligned: every border is a multiple of 128, and so is a page,
    so that the mask is one of whole tiles, which FlexAttention can take.
    """

    tokens: int
    head_dim: int
    document: int
    ca: float
    la: float | None = None
    aligned: bool = False

    @property
    def glue(self) -> int:
        """Tokens of the system prefix, and of the question."""
        return TILE if self.aligned else GLUE

    @property
    def shape(self) -> str:
        """Name of what dense attention depends on, such as `d128/64K`."""
        return f"d{self.head_dim}/{token_label(self.tokens)}"

    @property
    def label(self) -> str:
        """Name of the case, such as `d128/64K/docs-1024/ca-0.10`."""
        documents = f"{'aligned' if self.aligned else 'docs'}-{self.document}"
        local = "" if self.la is None else f"/la-{_share(self.la)}"
        return f"{self.shape}/{documents}/ca-{_share(self.ca)}{local}"


@dataclass(frozen=True)
class CaseOptions:
    """What to time; cases run in the order of these values, the aligned ones last.

    la_density: of documents longer than 1,024 tokens, which run once with dense LA and once with
    random bits of this density, None for the CA density of the case. aligned: add cases for
    FlexAttention, of the first head_dim and the first documents it can take.
    """

    tokens: tuple[int, ...] = (4096, 16384, 65536, 131072)
    densities: tuple[float, ...] = (1.0, 0.5, 0.2, 0.1, 0.05)
    documents: tuple[int, ...] = (1024,)
    head_dims: tuple[int, ...] = (128, 64)
    la_density: float | None = None
    aligned: bool = True
    heads: int = 32
    kv_heads: int = 8
    page_size: int = 32
    seed: int = 0

    def cases(self) -> list[Case]:
        """Return the cases. Raises UsageError for values that no case can be made of."""
        self._check()
        found = [
            Case(tokens, dim, document, ca, la)
            for dim in self.head_dims
            for tokens in self.tokens
            for document in self.documents
            for ca in self.densities
            for la in self._local(document, ca)
        ]
        if not self.aligned:
            return found
        document = self._aligned_document()
        return found + [
            Case(tokens, self.head_dims[0], document, ca, aligned=True)
            for tokens in self.tokens
            for ca in self.densities
        ]

    def _local(self, document: int, ca: float) -> list[float | None]:
        la = ca if self.la_density is None else self.la_density
        return [None] if document <= LA_DENSE_TOKENS or la == 1 else [None, la]

    def _aligned_document(self) -> int:
        fitting = [document for document in self.documents if document % TILE == 0]
        if not fitting or any(tokens % TILE for tokens in self.tokens):
            raise _misfit(
                "aligned cases",
                f"tokens and documents that are multiples of {TILE}",
                f"{list(self.tokens)} and {list(self.documents)}",
                "take others, or --no-aligned",
            )
        self._check_room(fitting[0], 2 * TILE)
        return fitting[0]

    def _check(self) -> None:
        lists: tuple[tuple[str, Sequence[float]], ...] = (
            ("--tokens", self.tokens),
            ("--densities", self.densities),
            ("--documents", self.documents),
            ("--head-dims", self.head_dims),
        )
        for name, values in lists:
            if not values or len(set(values)) < len(values):
                raise _misfit(name, "different values", list(values), "name each once")
        local = [] if self.la_density is None else [self.la_density]
        for share in (*self.densities, *local):
            if not 0 < share <= 1:
                raise _misfit("a density", "above 0 and at most 1", share, "1 is dense")
        for dim in self.head_dims:
            if dim not in HEAD_DIMS:
                raise _misfit("--head-dims", "64 or 128", dim, "the kernels take no other")
        if self.page_size not in PAGE_SIZES:
            sizes = ", ".join(map(str, PAGE_SIZES))
            raise _misfit("--page-size", f"one of {sizes}", self.page_size, "take one of them")
        if self.kv_heads < 1 or self.heads < 1 or self.heads % self.kv_heads:
            found = f"{self.heads} and {self.kv_heads}"
            raise _misfit("--heads", "a multiple of --kv-heads", found, "as in the model's config")
        if min(self.documents) < 1:
            raise _misfit("--documents", "1 token or more", min(self.documents), "take more")
        self._check_room(max(self.documents), 2 * GLUE)

    def _check_room(self, document: int, glue: int) -> None:
        shortest = min(self.tokens)
        if shortest < document + glue:
            raise _misfit(
                "--tokens",
                f"{document + glue:,} or more (a document of {document:,}, {glue} of glue)",
                f"{shortest:,}",
                "take longer prompts or shorter documents",
            )


def token_label(tokens: int) -> str:
    """Return 64K for 65,536."""
    return f"{tokens // 1024}K" if tokens % 1024 == 0 else str(tokens)


def _share(value: float) -> str:
    return f"{value:.2f}" if round(value, 2) == value else f"{value:g}"


def _misfit(what: str, expected: str, found: object, hint: str) -> UsageError:
    return UsageError(f"{what}: expected {expected}, found {found}; {hint}")
