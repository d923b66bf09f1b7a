"""Prompt texts for a model without a preset, taken from its own chat template."""

from typing import Any

from sift_index.models.presets import PromptTemplate

INSTRUCTION = "Answer the question using only the given passages. Give only the answer."
_DOCUMENTS = "<<documents>>"
_QUESTION = "<<question>>"


def default_template(tokenizer: Any) -> PromptTemplate:
    """Return a template cut from the chat template, or a plain-text one when there is none."""
    if not getattr(tokenizer, "chat_template", None):
        start = getattr(tokenizer, "bos_token", None) or ""
        return PromptTemplate(
            prefix=f"{start}{INSTRUCTION}\n\nPassages:", query="\n\nQuestion: {question}\nAnswer:"
        )
    request = f"{INSTRUCTION}\n\nPassages:{_DOCUMENTS}\n\nQuestion: {_QUESTION}"
    text: str = tokenizer.apply_chat_template(
        [{"role": "user", "content": request}], tokenize=False, add_generation_prompt=True
    )
    prefix, _, rest = text.partition(_DOCUMENTS)
    return PromptTemplate(prefix=prefix, query=rest.replace(_QUESTION, "{question}"))
