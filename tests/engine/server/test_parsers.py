"""The reasoning split, whole and in pieces."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.server.parsers import ReasoningSplit

CASES = [
    (True, "I wonder\n</think>\n\nHello", ("I wonder", "Hello")),
    (True, "\nno end\n", ("no end", "")),
    (True, "</think>\n\nHello", ("", "Hello")),
    (True, "a\n\nb</think>c</think>d", ("a\n\nb", "c</think>d")),
    (True, "half </thi", ("half </thi", "")),
    (False, "<think>\nhm\n</think>\nHello\n", ("hm", "Hello\n")),
    (False, "Hello <think>x</think>", ("", "Hello <think>x</think>")),
    (False, "<thin ice", ("", "<thin ice")),
    (False, "<thi", ("", "<thi")),
    (False, "", ("", "")),
]


def run(inside, parts):
    split = ReasoningSplit(inside=inside)
    pairs = [split.feed(part) for part in parts] + [split.flush()]
    return "".join(r for r, _ in pairs), "".join(c for _, c in pairs)


@pytest.mark.parametrize(("inside", "text", "expected"), CASES)
def test_whole_and_by_character(inside, text, expected):
    assert run(inside, [text]) == expected
    assert run(inside, list(text)) == expected


@settings(max_examples=200, deadline=None)
@given(
    st.booleans(),
    st.lists(st.sampled_from(["<think>", "</think>", "\n", "<", "/think>", "a", "b "]), max_size=12),
    st.lists(st.integers(0, 99), max_size=8),
)
def test_the_split_does_not_depend_on_the_pieces(inside, words, cuts):
    text = "".join(words)
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    parts = [text[a:b] for a, b in itertools.pairwise(places)]
    assert run(inside, parts) == run(inside, [text])
