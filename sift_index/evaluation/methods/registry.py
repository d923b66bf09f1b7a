"""Methods by name, so that a command line can ask for any of them.

A name may carry an argument behind a colon: `sift:2` is level 2 of an index, `sift:fast` its
sparsest, `policy:FILE` a policy extracted on the spot (`policy:FILE@2` at its level 2), `epic:16`
EPIC with 16 recomputed tokens a document.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from sift_index.errors import UsageError
from sift_index.evaluation.methods.masks import OnTheSpot, extracted, indexed, no_cross
from sift_index.evaluation.methods.oracle import oracle
from sift_index.evaluation.methods.reuse import cacheblend, epic, kv_reuse
from sift_index.evaluation.methods.treatment import Dense, Method
from sift_index.formats.canonical import digest
from sift_index.formats.presence import is_regular
from sift_index.models.loading import LoadedModel
from sift_index.prompts import PromptWriter
from sift_index.runtime.index import SiftIndex
from sift_index.runtime.levels import QUALITIES, level_of
from sift_index.selection.policy import Policy, ProbePolicy, load_policy, policy_values
from sift_index.selection.probes import probe_digest

KNOWN = (
    "dense, sift[:LEVEL], policy:NAME_OR_FILE[@LEVEL], paper, paper-fixed, no-cross, kv-reuse, "
    "cacheblend[:PERCENT], epic[:TOKENS], oracle[:NAME_OR_FILE]"
)


@dataclass(frozen=True)
class Setting:
    """What methods may need: the model, an index where there is one, and the default policy.

    serve_prefix: text in front of the first document of every prompt, while masks stay those made
    behind the index's or the model's own; None for their own.
    """

    loaded: LoadedModel
    index: SiftIndex | None = None
    policy: str = "probe"
    serve_prefix: str | None = None
    extractions: dict[str, OnTheSpot] = field(default_factory=dict, compare=False)

    @cached_property
    def writer(self) -> PromptWriter:
        """The writer of prompts: with the index's own texts where there is an index."""
        own = self._own_writer
        if self.serve_prefix is None:
            return own
        return replace(own, template=replace(own.template, prefix=self.serve_prefix))

    @cached_property
    def prefix(self) -> list[int]:
        """Token ids that documents are extracted behind."""
        return self._own_writer.prefix()

    @cached_property
    def _own_writer(self) -> PromptWriter:
        if self.index is not None:
            return self.index.writer(self.loaded)
        return PromptWriter(self.loaded.tokenizer, self.loaded.prompt)

    def extraction(self, name: str) -> OnTheSpot:
        """Return the method that extracts by a policy; its levels share what it extracts."""
        if name not in self.extractions:
            policy = load_policy(name)
            self.extractions[name] = extracted(self.loaded, policy, self.prefix)
        return self.extractions[name]


def make_methods(names: Sequence[str], setting: Setting) -> dict[str, Method]:
    """Return the named methods; an unknown name raises UsageError listing the known ones.

    A policy file is called by its stem in results: where it lies says nothing. Raises UsageError
    as well where no method is named, or where two could not be told apart by their stems.
    """
    if not names:
        raise UsageError(f"expected methods of {KNOWN}; found none")
    named: dict[str, str] = {}
    for name in names:
        other = named.setdefault(label(name), name)
        if other != name:
            raise UsageError(f"{other!r} and {name!r} would both be {label(name)!r}; rename one")
    return {label: _make(name, setting) for label, name in named.items()}


def policy_digests(names: Sequence[str], setting: Setting) -> dict[str, str]:
    """Return the digest of the policy behind each method that has one, by the method's label.

    Numbers and probe texts count: a file keeps its name when somebody edits it.
    """
    found = {}
    for name in names:
        kind, _, argument = name.partition(":")
        file = {"policy": _split_level(argument)[0], "oracle": argument or setting.policy}.get(kind)
        if kind == "sift" and setting.index is None:
            file = setting.policy
        if file:
            found[label(name)] = _policy_digest(load_policy(file))
    return found


def _policy_digest(policy: Policy) -> str:
    values = policy_values(policy)
    if isinstance(policy, ProbePolicy):
        values["probe_source"] = probe_digest(policy)
    return digest(values)


def label(name: str) -> str:
    """Return what a method is called in reports: a policy file by its stem."""
    kind, colon, argument = name.partition(":")
    return f"{kind}:{Path(argument).name.replace('.yaml', '')}" if colon else name


def _make(name: str, setting: Setting) -> Method:
    kind, _, argument = name.partition(":")
    makers: Mapping[str, Callable[[Setting, str], Method]] = {
        "dense": lambda setting, _: lambda prompt: Dense(),
        "sift": _sift,
        "policy": _policy,
        "paper": lambda setting, _: setting.extraction("paper"),
        "paper-fixed": lambda setting, _: setting.extraction("paper-fixed"),
        "no-cross": lambda setting, _: no_cross(setting.loaded, setting.prefix),
        "kv-reuse": lambda setting, _: kv_reuse(setting.loaded),
        "cacheblend": _cacheblend,
        "epic": _epic,
        "oracle": _oracle,
    }
    takes = ("sift", "policy", "cacheblend", "epic", "oracle")
    if kind not in makers or (argument and kind not in takes):
        raise UsageError(f"expected methods of {KNOWN}; found {name!r}")
    return makers[kind](setting, argument)


def _sift(setting: Setting, level: str) -> Method:
    if setting.index is None:
        return _at_level(setting, setting.policy, level)
    return indexed(setting.index, _level(level, setting.index.layout.levels))


def _policy(setting: Setting, argument: str) -> Method:
    return _at_level(setting, *_split_level(argument))


def _split_level(argument: str) -> tuple[str, str]:
    """Return a policy's name or file, and the level behind an @, which names may hold as well."""
    name, at, level = argument.rpartition("@")
    if not at or "/" in level or is_regular(argument):
        return argument, ""
    return name, level


def _at_level(setting: Setting, policy: str, level: str) -> Method:
    number = _level(level, load_policy(policy).levels)
    return setting.extraction(policy).at(number)


def _level(text: str, bits: int) -> int:
    if text in QUALITIES:
        return level_of(text, bits)
    return _whole(f"level of {bits}-bit masks", text or "1", 1, 2**bits - 1)


def _oracle(setting: Setting, name: str) -> Method:
    chosen = name or setting.policy
    policy = load_policy(chosen)
    if not isinstance(policy, ProbePolicy):
        raise UsageError(f"expected a probe policy for the oracle's numbers, found {chosen!r}")
    return oracle(setting.loaded, policy)


def _cacheblend(setting: Setting, percent: str) -> Method:
    return cacheblend(setting.loaded, _whole("percent", percent or "15", 1, 100) / 100)


def _epic(setting: Setting, tokens: str) -> Method:
    return epic(setting.loaded, _whole("tokens", tokens or "32", 0, 1 << 20))


def _whole(what: str, text: str, least: int, most: int) -> int:
    if not text.isdecimal() or not least <= int(text) <= most:
        raise UsageError(f"expected {what} as a whole number of {least} to {most}, found {text!r}")
    return int(text)
