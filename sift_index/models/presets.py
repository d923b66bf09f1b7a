"""Model presets: where a model comes from, its true shape and how its prompts are written."""

from dataclasses import dataclass, field
from typing import Any

from sift_index import configs
from sift_index.errors import UsageError


@dataclass(frozen=True)
class ModelSource:
    """Where weights come from: a GGUF file inside a Python package, or a hub repository."""

    kind: str
    package: str = ""
    file: str = ""
    install: str = ""
    repo: str = ""


@dataclass(frozen=True)
class PromptTemplate:
    """The texts around documents. `span_prefix` and `span_suffix` belong to the span and its key.

    `query` holds `{question}`; texts may contain the tokenizer's special tokens.
    """

    prefix: str
    query: str
    span_prefix: str = "\n"
    span_suffix: str = "\n"

    def __post_init__(self) -> None:
        if "{question}" not in self.query:
            raise UsageError(
                f"expected '{{question}}' in the query template, found {self.query!r}; add it"
            )


@dataclass(frozen=True)
class ModelPreset:
    """One packaged model: `config` is its shape, enough to build it with random weights."""

    name: str
    description: str
    source: ModelSource
    context: int
    prompt: PromptTemplate
    config: dict[str, Any] = field(hash=False)


def preset_names() -> list[str]:
    """Return the names `--model` accepts beside local folders and hub ids."""
    return configs.names("models")


def load_preset(name: str) -> ModelPreset:
    """Return a packaged preset; an unknown name raises UsageError listing the known ones."""
    if name not in preset_names():
        known = ", ".join(preset_names())
        raise UsageError(f"expected a model preset ({known}), found {name!r}")
    values = configs.load_yaml(configs.resource("models", f"{name}.yaml"))
    return ModelPreset(
        name=name,
        description=values["description"],
        source=ModelSource(**values["source"]),
        context=values["context"],
        prompt=PromptTemplate(**values["prompt"]),
        config=values["config"],
    )
