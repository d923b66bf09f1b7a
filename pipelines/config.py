"""What a build is told: everything that decides its result, in one frozen value."""

from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from sift_index.errors import UsageError
from sift_index.formats.blob import Codec
from sift_index.formats.location import Location
from sift_index.prompts import require_text
from sift_index.selection.batches import BATCH_TOKENS
from sift_index.selection.policy import Policy, load_policy
from sift_index.selection.quality import Quality

LONG_CHOICES = ("split", "skip", "error")
CODECS = {"raw": Codec.RAW, "zstd": Codec.ZSTD}


@dataclass(frozen=True)
class BuildConfig:
    """One build: corpus, model, rule and the numbers that cut the work.

    `unit_tokens` is the token budget of a unit, `batch_tokens` that of a forward pass and `threads`
    the CPU threads of a worker: they belong to the configuration, never to the machine, because
    byte-identical packs depend on them. `max_tokens` caps a document's length (None: the model's
    context). `unit_timeout` are the seconds a unit may take before its worker is replaced (None:
    from the pace of the build, see `limits`), `max_failures` the documents that may fail before the
    build stops (None: any number) and `prune` says whether documents that left the corpus leave the
    index. `quality` are the policy file's measurements; the one of this model goes into the
    manifest.
    """

    corpus: Path
    output: Location
    model: str
    policy: Policy = field(default_factory=lambda: load_policy("probe"))
    quality: tuple[Quality, ...] = ()
    text_field: str = "text"
    id_field: str | None = None
    prefix: str | None = None
    span_prefix: str | None = None
    span_suffix: str | None = None
    dtype: str = "auto"
    device: str = "auto"
    long: str = "split"
    max_tokens: int | None = None
    codec: str = "raw"
    unit_tokens: int = 16384
    batch_tokens: int = BATCH_TOKENS
    workers: int | None = None
    threads: int = 2
    address: str | None = None
    unit_timeout: float | None = None
    max_failures: int | None = None
    prune: bool = False

    def __post_init__(self) -> None:
        if self.long not in LONG_CHOICES:
            raise UsageError(f"expected long of {', '.join(LONG_CHOICES)}, found {self.long!r}")
        if self.codec not in CODECS:
            raise UsageError(f"expected codec of {', '.join(CODECS)}, found {self.codec!r}")
        for name in ("prefix", "span_prefix", "span_suffix"):
            require_text(name, getattr(self, name) or "")
        for name in ("unit_tokens", "batch_tokens", "workers", "threads", "max_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"expected {name} of at least 1, found {value}")
        if self.unit_timeout is not None and not 0 < self.unit_timeout < inf:
            raise UsageError(
                f"expected unit_timeout of more than 0 seconds, found {self.unit_timeout}"
            )
        if self.max_failures is not None and self.max_failures < 0:
            raise UsageError(f"expected max_failures of at least 0, found {self.max_failures}")
