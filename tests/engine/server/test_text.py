"""Properties: however ids or characters are split, the text and the first stop string are the same."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.server.text import MAX_HELD_TOKENS, StopStrings, WindowDetokenizer
from tests.engine.server import fakes

BYTES, WORDS = fakes.byte_level_tokenizer(), fakes.word_level_tokenizer()
SETTINGS = settings(max_examples=150, deadline=None)


def pieces_of(tokenizer, ids, *, skip):
    detokenizer = tokenizer.detokenizer(skip_special_tokens=skip)
    return [detokenizer.feed(i) for i in ids] + [detokenizer.flush()]


@SETTINGS
@given(st.lists(st.integers(0, 340), max_size=24), st.booleans())
def test_byte_level_pieces_join_to_the_library_s_decoding(ids, skip):
    assert "".join(pieces_of(BYTES, ids, skip=skip)) == BYTES.decode(ids, skip_special_tokens=skip)


@SETTINGS
@given(st.lists(st.integers(0, 9), max_size=24), st.booleans())
def test_word_level_pieces_join_to_the_library_s_decoding(ids, skip):
    assert "".join(pieces_of(WORDS, ids, skip=skip)) == WORDS.decode(ids, skip_special_tokens=skip)


@SETTINGS
@given(st.text(max_size=30))
def test_no_replacement_character_within_a_valid_text(text):
    ids = BYTES.encode(text, add_special_tokens=False)
    pieces = pieces_of(BYTES, ids, skip=False)
    assert "".join(pieces) == text
    assert "\ufffd" in text or all("\ufffd" not in piece for piece in pieces)


def test_an_incomplete_character_appears_at_the_end_only():
    first, *_ = BYTES.encode("🜚", add_special_tokens=False)
    assert pieces_of(BYTES, [first], skip=False) == ["", "\ufffd"]


def test_a_window_of_invalid_bytes_is_bounded():
    lengths = []

    def decode(ids):
        lengths.append(len(ids))
        return "\ufffd" * len(ids)

    detokenizer = WindowDetokenizer(decode, lambda _: False)
    text = "".join(detokenizer.feed(i) for i in range(500)) + detokenizer.flush()
    assert text == "\ufffd" * 500
    assert max(lengths) <= 2 * MAX_HELD_TOKENS


def run_stops(stops, parts, *, include=False):
    matcher, out = StopStrings(stops, include=include), []
    for part in parts:
        text, hit = matcher.feed(part)
        out.append(text)
        if hit is not None:
            return "".join(out), hit
    return "".join(out) + matcher.flush(), None


def split(text, cuts):
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[a:b] for a, b in itertools.pairwise(places)]


STOPS = st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3)


@SETTINGS
@given(STOPS, st.text("abc", max_size=30), st.lists(st.integers(0, 99), max_size=8), st.booleans())
def test_the_first_stop_string_does_not_depend_on_the_pieces(stops, text, cuts, include):
    whole = run_stops(stops, list(text), include=include)
    assert run_stops(stops, split(text, cuts), include=include) == whole
    out, hit = whole
    ends = {text.find(s) + len(s) for s in stops if s in text}
    assert (hit is None) == (not ends)
    if hit is None:
        assert out == text
    else:
        assert out == text[: min(ends) if include else min(ends) - len(hit)]


@SETTINGS
@given(STOPS, st.text("abc", max_size=30))
def test_only_what_may_begin_a_stop_string_is_held(stops, text):
    matcher, sent = StopStrings(stops), ""
    for character in text:
        out, hit = matcher.feed(character)
        sent += out
        if hit is not None:
            return
    held = text[len(sent) :]
    assert held == "" or any(stop.startswith(held) for stop in stops)


@pytest.mark.parametrize(
    ("stops", "text", "expected"),
    [(["abcd", "bc"], "abcd", ("a", "bc")), (["ab", "b"], "xab", ("x", "ab")), (["aab"], "aaab", ("a", "aab"))],
)
def test_overlapping_stops(stops, text, expected):
    assert run_stops(stops, [text]) == expected
