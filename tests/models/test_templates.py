"""Prompt texts of a model without a preset."""

from sift_index.models.templates import INSTRUCTION, default_template
from sift_index.prompts import PromptWriter
from tests.tiny import byte_tokenizer

CHAT = (
    "{% for m in messages %}<s>{{ m.role }}\n{{ m.content | trim }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)


def test_without_a_chat_template_the_texts_are_plain_and_start_with_bos():
    template = default_template(byte_tokenizer())
    assert template.prefix == f"<s>{INSTRUCTION}\n\nPassages:"
    assert template.query == "\n\nQuestion: {question}\nAnswer:"


def test_without_bos_the_prefix_is_the_instruction():
    tokenizer = byte_tokenizer()
    tokenizer.bos_token = None
    assert default_template(tokenizer).prefix == f"{INSTRUCTION}\n\nPassages:"


def test_a_chat_template_is_cut_around_the_documents():
    template = default_template(byte_tokenizer(chat_template=CHAT))
    assert template.prefix == f"<s>user\n{INSTRUCTION}\n\nPassages:"
    assert template.query == "\n\nQuestion: {question}</s>\n<s>assistant\n"
    assert (template.span_prefix, template.span_suffix) == ("\n", "\n")


def test_the_cut_template_writes_the_prompt_the_chat_template_would():
    tokenizer = byte_tokenizer(chat_template=CHAT)
    writer = PromptWriter(tokenizer, default_template(tokenizer))
    parts = writer.prompt(["A mill.", "A quay."], "Where is {it}?")
    found = [i for part in parts for i in part.ids]
    content = f"{INSTRUCTION}\n\nPassages:\nA mill.\n\nA quay.\n\n\nQuestion: Where is {{it}}?"
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
    )
    assert found == tokenizer(text, add_special_tokens=False).input_ids
    assert [part.glue for part in parts] == [True, False, False, True]
