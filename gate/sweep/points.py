"""2 What a sweep measures: prompts and depths -> points, as llama-bench names them; pure."""

from __future__ import annotations

from typing import Literal

from gate.errors import UsageError
from gate.observe.rows import Row

SHORTEST_PROMPT = 8
"""What depth 0 is over HTTP: no server answers an empty prompt, and vLLM 0.32.0 for the CPU dies of one token (its
convolution takes a sequence of one for a transposed one)."""


class Point(Row):
    """pp512: a prompt of 512 tokens and one token of output. tg128 @ d4096: 128 steps after a prompt of 4096."""

    kind: Literal["pp", "tg"]
    tokens: int
    depth: int = 0
    """Of tg: tokens that are in the context before the first timed step."""

    @property
    def name(self) -> str:
        return f"{self.kind}{self.tokens}" + (f" @ d{self.depth}" if self.depth else "")

    @property
    def prompt_tokens(self) -> int:
        return self.tokens if self.kind == "pp" else max(self.depth, SHORTEST_PROMPT)

    @property
    def output_tokens(self) -> int:
        """The first token of the output is the prompt's: tg times the steps after it."""
        return 1 if self.kind == "pp" else self.tokens + 1

    @property
    def context_tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens


def points(prompts: str, generated: str, depths: str) -> tuple[Point, ...]:
    """ "128,512", "128", "0,4096" -> every pp, then every tg at every depth. An empty text leaves its kind out.

    Raises:
        UsageError: not numbers, out of range, or nothing left.
    """
    made = [Point(kind="pp", tokens=tokens) for tokens in _numbers("--pp", prompts, 1)]
    deep = _numbers("--depth", depths, 0)
    made += [Point(kind="tg", tokens=n, depth=depth) for n in _numbers("--tg", generated, 1) for depth in deep]
    if not made:
        raise UsageError("neither --pp nor --tg has a number", expected="such as --pp 512 --tg 128")
    return tuple(dict.fromkeys(made))


def check_context(wanted: tuple[Point, ...], context: int | None, whose: str) -> None:
    """
    Raises:
        UsageError: a point needs more than the context; the first one is named.
    """
    over = [point for point in wanted if context is not None and point.context_tokens > context]
    if over:
        more = f", and {len(over) - 1} more" if len(over) > 1 else ""
        raise UsageError(
            f"{over[0].name} needs a context of {over[0].context_tokens} tokens{more}",
            expected=f"at most {context}, {whose}",
            hint="leave it out",
        )


def _numbers(option: str, text: str, least: int) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",")] if text.strip() else []
    try:
        numbers = tuple(int(word) for word in words)
    except ValueError as error:
        raise UsageError(f"{option} {text!r}", expected="numbers with commas between, such as 128,512") from error
    if numbers and min(numbers) < least:
        raise UsageError(f"{option} {text!r}", expected=f"numbers from {least} up")
    return numbers
