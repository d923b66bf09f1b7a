"""Prompts: each part is tokenised alone, so a document's ids never depend on its neighbours."""

from dataclasses import replace

import pytest

from sift_index.prompts import PromptWriter, Segment
from tests.plans import TEMPLATE
from tests.tiny import byte_tokenizer


@pytest.fixture(scope="module")
def writer() -> PromptWriter:
    return PromptWriter(byte_tokenizer(), TEMPLATE)


def text_of(writer: PromptWriter, ids: list[int]) -> str:
    return writer.tokenizer.decode(ids)


def test_a_prompt_is_prefix_documents_and_query(writer):
    parts = writer.prompt(["one", "zwei é"], "why?")
    assert [text_of(writer, part.ids) for part in parts] == [
        "<s>Read this:",
        "\none\n",
        "\nzwei é\n",
        "\nQuestion: why?\nAnswer:",
    ]
    assert [part.glue for part in parts] == [True, False, False, True]
    assert parts[1] == Segment(writer.document("one"))


def test_special_tokens_of_the_texts_are_honoured_and_none_is_added(writer):
    assert writer.prefix()[0] == 256
    assert 256 not in writer.document("one") + writer.query("why?")


def test_texts_around_a_document_belong_to_it():
    template = replace(TEMPLATE, span_prefix="[", span_suffix="]\n")
    writer = PromptWriter(byte_tokenizer(), template)
    assert text_of(writer, writer.document("x")) == "[x]\n"


def test_braces_in_a_question_are_plain_text(writer):
    assert "{question} {0}" in text_of(writer, writer.query("{question} {0}"))


def test_no_documents(writer):
    assert [part.glue for part in writer.prompt([], "q")] == [True, True]
