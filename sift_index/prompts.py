"""Prompts as lists of segments, and the writer that tokenises each part the same way every time.

Documents are tokenised alone, with no special tokens added, and spliced as ids: the same text
always gives the same ids, and therefore the same key, wherever it stands.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sift_index.errors import UsageError
from sift_index.models.presets import PromptTemplate


@dataclass(frozen=True)
class Segment:
    """Token ids of one part of a prompt.

    By default the index decides: ids of an indexed document become a span, others are glue.
    `glue=True` keeps ids out of the look-up; `document` declares which document this is, so that
    a miss can say that the index holds other tokens for it.
    """

    ids: Sequence[int]
    document: str | None = None
    glue: bool = False


def prompt_ids(prompt: Iterable[Segment]) -> list[int]:
    """Return the token ids of all segments, one behind the other."""
    return [i for segment in prompt for i in segment.ids]


def require_text(name: str, text: str) -> None:
    """Raise UsageError for a text that no tokenizer takes: lone surrogates, which UTF-8 has not.

    Command lines have them in the place of bytes that are no UTF-8.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"expected {name} as UTF-8 text, found {text!r}; convert it to UTF-8"
        ) from error


@dataclass(frozen=True)
class PromptWriter:
    """Writes prompts for one tokenizer and one set of texts around documents."""

    tokenizer: Any
    template: PromptTemplate

    def prefix(self) -> list[int]:
        """Token ids in front of the first document (special tokens in the text are honoured)."""
        return self._encode(self.template.prefix)

    def document(self, text: str) -> list[int]:
        """Token ids of one document with its span prefix and suffix."""
        return self._encode(f"{self.template.span_prefix}{text}{self.template.span_suffix}")

    def documents(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of many documents, as `document` gives them one by one, in less time."""
        template = self.template
        around = [f"{template.span_prefix}{text}{template.span_suffix}" for text in texts]
        if not around:
            return []
        ids: list[list[int]] = self.tokenizer(
            around,
            add_special_tokens=False,
            verbose=False,
            return_attention_mask=False,
            return_token_type_ids=False,
        ).input_ids
        return ids

    def query(self, question: str) -> list[int]:
        """Token ids behind the last document."""
        return self._encode(self.template.query.replace("{question}", question))

    def prompt(self, documents: Iterable[str], question: str) -> list[Segment]:
        """Return the segments of a whole prompt: prefix, documents, query.

        Raises UsageError for one text in the place of several.
        """
        if isinstance(documents, str):
            raise UsageError(
                "expected a list of document texts, found one text; put it into a list: [text]"
            )
        spans = [Segment(self.document(text)) for text in documents]
        return [
            Segment(self.prefix(), glue=True),
            *spans,
            Segment(self.query(question), glue=True),
        ]

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer(text, add_special_tokens=False, verbose=False).input_ids
        return ids
