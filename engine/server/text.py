"""Tokens to text, incrementally: characters are never cut, and what may begin a stop string is held back."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from typing import Protocol

MAX_HELD_TOKENS = 64
"""WindowDetokenizer emits after this many tokens without a whole character: a model that babbles invalid bytes must not
make each step decode a longer window than the last."""


class Detokenizer(Protocol):
    def feed(self, token_id: int) -> str:
        """Text that became certain with this token; "" while a character is incomplete."""
        ...

    def flush(self) -> str:
        """What is still held at the end of the sequence; an incomplete character becomes U+FFFD here only."""
        ...


class NoText:
    """Stands in where the checkpoint has no tokenizer: token ids go through, text stays empty."""

    def feed(self, token_id: int) -> str:  # noqa: ARG002
        return ""

    def flush(self) -> str:
        return ""


class ByteDetokenizer:
    """For byte-level vocabularies (Qwen's): each token is a byte string, so a UTF-8 decoder with state is exact.

    Chosen over decoding a window of ids twice per token: constant work, and independent of how the ids arrive.
    """

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token_id: int) -> str:
        return self._utf8.decode(self._token_bytes(token_id))

    def flush(self) -> str:
        return self._utf8.decode(b"", True)


class WindowDetokenizer:
    """For every other vocabulary: decode a short window with and without the new token and emit the difference.

    The window starts at the last token that produced text, because decoders put spaces between tokens, not before them.
    `silent` names the ids that never produce text (skipped specials, padding); they never enter the window.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], silent: Callable[[int], bool]) -> None:
        self._decode = decode
        self._silent = silent
        self._ids: list[int] = []
        self._emitted = 0
        """How many characters of the window's text are out already."""
        self._context = 0
        """How many tokens at the front of the window are out already."""

    def feed(self, token_id: int) -> str:
        if self._silent(token_id):
            return ""
        self._ids.append(token_id)
        text = self._decode(self._ids)
        held = len(self._ids) - self._context
        if len(text) <= self._emitted or (text.endswith("\ufffd") and held < MAX_HELD_TOKENS):
            return ""
        new = text[self._emitted :]
        self._ids = self._ids[self._context :]
        self._context = len(self._ids)
        self._emitted = len(self._decode(self._ids))
        return new

    def flush(self) -> str:
        text = self._decode(self._ids)[self._emitted :]
        self._ids, self._emitted, self._context = [], 0, 0
        return text


class StopStrings:
    """Finds the first stop string in a text that arrives in pieces; the outcome does not depend on the pieces.

    First means the one that ends first; of two that end together, the longer.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._stops = tuple(stops)
        self._include = include
        self._held = ""

    def feed(self, text: str) -> tuple[str, str | None]:
        """(text that is safe to send, the stop string that was completed or None). After a hit, feed no more."""
        self._held += text
        hits = [(at + len(stop), at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if hits:
            end, start, stop = min(hits)
            out = self._held[: end if self._include else start]
            self._held = ""
            return out, stop
        safe = len(self._held) - self._longest_prefix()
        out, self._held = self._held[:safe], self._held[safe:]
        return out, None

    def flush(self) -> str:
        """The held text, at the end of the sequence or where stop strings are not yet searched for."""
        out, self._held = self._held, ""
        return out

    def _longest_prefix(self) -> int:
        """Length of the longest suffix of the held text that begins a stop string."""
        longest = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(self._held)), longest, -1):
                if self._held.endswith(stop[:length]):
                    longest = length
                    break
        return longest
