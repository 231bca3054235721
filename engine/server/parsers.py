"""The reasoning split: what a model writes between <think> and </think> is reasoning, the rest is content."""

from __future__ import annotations

import enum

OPEN, CLOSE = "<think>", "</think>"


class _State(enum.Enum):
    UNDECIDED = enum.auto()
    """Nothing but white space yet: the answer may still open with <think>."""
    REASONING = enum.auto()
    CONTENT = enum.auto()


class ReasoningSplit:
    """Fed with text in pieces; the outcome does not depend on the pieces.

    Newlines next to the tags belong to neither side, which is how Qwen's own template cuts an earlier answer. Once
    content has begun, tags are content: only the first block is reasoning.
    """

    def __init__(self, *, inside: bool) -> None:
        """`inside`: the prompt already ended with <think>, as Qwen3.5's template does."""
        self._state = _State.REASONING if inside else _State.UNDECIDED
        self._held = ""
        self._trim = inside
        """Newlines at the front are still to be dropped."""

    def feed(self, text: str) -> tuple[str, str]:
        """(reasoning, content) that became certain."""
        self._held += text
        reasoning = ""
        if self._state is _State.UNDECIDED:
            self._decide()
        if self._state is _State.REASONING:
            reasoning = self._reason()
        return reasoning, self._content() if self._state is _State.CONTENT else ""

    def flush(self) -> tuple[str, str]:
        """What is held at the end: an unclosed block stays reasoning."""
        held, self._held = self._held, ""
        if self._state is _State.REASONING:
            return held.strip("\n") if self._trim else held.rstrip("\n"), ""
        return "", held

    def _decide(self) -> None:
        start = self._held.lstrip()
        if start.startswith(OPEN):
            self._state, self._held, self._trim = _State.REASONING, start[len(OPEN) :], True
        elif not OPEN.startswith(start):
            self._state, self._trim = _State.CONTENT, False

    def _reason(self) -> str:
        if self._trim:
            self._held = self._held.lstrip("\n")
            self._trim = not self._held
        at = self._held.find(CLOSE)
        if at >= 0:
            out, self._held = self._held[:at].rstrip("\n"), self._held[at + len(CLOSE) :]
            self._state, self._trim = _State.CONTENT, True
            return out
        safe = len(self._held) - _overlap(self._held)
        safe = len(self._held[:safe].rstrip("\n"))
        out, self._held = self._held[:safe], self._held[safe:]
        return out

    def _content(self) -> str:
        if self._trim:
            self._held = self._held.lstrip("\n")
            self._trim = not self._held
        out, self._held = self._held, ""
        return out


def _overlap(text: str) -> int:
    """Length of the longest suffix of `text` that begins </think>."""
    return next((n for n in range(len(CLOSE) - 1, 0, -1) if text.endswith(CLOSE[:n])), 0)
