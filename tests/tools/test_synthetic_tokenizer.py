"""The synthetic tokenizer: what clients and both servers do with it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment
from synthetic_tokenizer import CHAT_TEMPLATE, SPECIAL, byte_symbols, tokenizer
from tokenizers import Tokenizer

TINY = Tokenizer.from_str(json.dumps(tokenizer(2003)))
FIRST_WORD = len(SPECIAL) + 256


def test_it_has_exactly_the_vocabulary() -> None:
    assert TINY.get_vocab_size() == 2003
    assert sorted(TINY.get_vocab().values()) == list(range(2003))


def test_the_full_vocabulary_is_as_large_as_the_real_one() -> None:
    content = tokenizer(248320)
    assert len(content["model"]["vocab"]) == 248320
    assert len(content["model"]["merges"]) == 248320 - FIRST_WORD


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(FIRST_WORD, 2002), min_size=1, max_size=30))
def test_ids_of_words_round_trip_through_text(ids: list[int]) -> None:
    assert TINY.encode(TINY.decode(ids)).ids == ids


@settings(max_examples=50, deadline=None)
@given(st.text(st.characters(blacklist_categories=["Cs"]), max_size=40))
def test_any_text_round_trips_up_to_unicode_normalisation(text: str) -> None:
    import unicodedata

    decoded = TINY.decode(TINY.encode(text).ids, skip_special_tokens=False)
    assert decoded == unicodedata.normalize("NFC", text)


def test_bytes_of_one_character_fall_into_several_tokens() -> None:
    assert len(TINY.encode("你").ids) == 3


def test_byte_symbols_are_distinct_and_printable() -> None:
    symbols = byte_symbols()
    assert len(set(symbols)) == 256
    assert symbols[ord("A")] == "A"
    assert symbols[ord(" ")] == "Ġ"


def test_special_tokens_are_single_ids_and_hidden_except_the_think_tags() -> None:
    ids = TINY.encode("<think> a</think><|im_end|>").ids
    assert ids == [9, FIRST_WORD, 10, 2]
    assert TINY.decode(ids) == "<think> a</think>"


@pytest.mark.parametrize("trim", [True, False])
@pytest.mark.parametrize(("thinking", "tail"), [(None, ""), (True, ""), (False, "\n</think>\n\n")])
def test_the_chat_template_renders_alike_whatever_the_renderer_trims(
    trim: bool, thinking: bool | None, tail: str
) -> None:
    environment = ImmutableSandboxedEnvironment(trim_blocks=trim, lstrip_blocks=trim)
    options = {} if thinking is None else {"enable_thinking": thinking}
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    text = environment.from_string(CHAT_TEMPLATE).render(messages=messages, add_generation_prompt=True, **options)
    head = "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n"
    assert text == head + tail
