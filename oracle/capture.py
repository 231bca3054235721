"""Log-probs of a server, through its HTTP API: what it thinks of tokens that are given, and of those it generates.

Given: one request per sequence, `prompt_logprobs` over prompt + output. Every position is judged on the given prefix,
so a divergence early in a sequence does not colour the rest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import orjson

from gate.errors import ArmError

TOP = 20
"""An id that is not among so many most probable ones is outside the top; vLLM's default limit (--max-logprobs)."""

NEAREST = 2
"""Alternatives asked for at each position of given ids: the most probable and the next. The given id comes with its
log-prob and its rank in the whole vocabulary (ties counted against it) whatever the number is, so 20 tell no more. vLLM
turns each entry into text and JSON in one thread: with 20, a request of 1,152 positions took 0.5 s on an H200. On a CPU
one of 176 took 0.75 s with 20 and 0.28 s with 2, with the same gaps to the last bit."""

PATH = "/v1/completions"

NAME = "token_id:"
"""How vLLM names a token with return_tokens_as_token_ids; two ids may have the same text."""

HIGHEST_NATS = 1e-3
"""A log-prob is at most 0. Rounding of a softmax in float32 was never seen to exceed it by more than 1e-6."""


@dataclass(frozen=True, slots=True)
class Position:
    """The oracle's view of one output position, given everything before it. Log-probs in nats."""

    position: int
    """Index into the output, from 0."""
    token_id: int
    logprob: float
    """Of the given token."""
    rank: int
    """Of the given token among the whole vocabulary; 1 is the oracle's own greedy choice."""
    top_ids: tuple[int, ...]
    """The returned tokens that share the highest log-prob: more than one is an exact tie. Lowest id first."""
    top_logprob: float
    next_logprob: float | None
    """Second highest of two different tokens, equal to top_logprob in a tie; None: only one token was returned."""

    @property
    def outside_top(self) -> bool:
        """The given token is not among the TOP most probable: decided against it, whatever the figure."""
        return self.token_id not in self.top_ids and self.rank > TOP

    @property
    def margin_nats(self) -> float:
        """How much the oracle prefers its own choice to the given token; 0 where they are the same or tie."""
        return self.top_logprob - self.logprob

    @property
    def gap_nats(self) -> float | None:
        """The same within the top; None outside it, where a server need not be exact and no figure is needed."""
        return None if self.outside_top else self.margin_nats

    @property
    def lead_nats(self) -> float | None:
        """Its own choice's lead over the next token: how decided it is here, whatever was given."""
        return None if self.next_logprob is None else self.top_logprob - self.next_logprob


def teacher_forced(
    client: httpx.Client, model: str, prompt: Sequence[int], output: Sequence[int]
) -> tuple[Position, ...]:
    """The oracle's log-probs of `output` after `prompt`, one Position per output token.

    client: an httpx client whose base_url is the oracle. The sequence plus one token must fit max_model_len.
    Errors: ArmError when the oracle refuses or answers something else; httpx.HTTPError when it cannot be reached.
    """
    answer = client.post(PATH, json=forced_body(model, prompt, output))
    return forced_positions(answer.status_code, answer.content, prompt, output)


def forced_body(model: str, prompt: Sequence[int], output: Sequence[int]) -> dict[str, Any]:
    """What to post to PATH for an opinion of `output` after `prompt`."""
    return {
        "model": model,
        "prompt": [*prompt, *output],
        "max_tokens": 1,
        "temperature": 0,
        "prompt_logprobs": NEAREST,
        "return_token_ids": True,
    }


def forced_positions(status: int, content: bytes, prompt: Sequence[int], output: Sequence[int]) -> tuple[Position, ...]:
    """The answer to forced_body, read. Errors: ArmError when it is none."""
    if status != 200:
        text = content.decode("utf-8", "replace")[:200]
        raise ArmError(f"the oracle answered {status} to prompt_logprobs: {text}")
    given = [*prompt, *output]
    choice = _choice(content)
    echoed = choice.get("prompt_token_ids")
    if echoed is not None and echoed != given:
        raise ArmError("the oracle read another prompt than it was given", expected=f"the same {len(given)} token ids")
    rows = choice.get("prompt_logprobs")
    if not isinstance(rows, list) or len(rows) != len(given):
        raise ArmError(
            f"the oracle returned {len(rows) if isinstance(rows, list) else 'no'} prompt_logprobs",
            expected=f"{len(given)}, one per given token",
        )
    return tuple(
        _position(index, token_id, row)
        for index, (token_id, row) in enumerate(zip(output, rows[len(prompt) :], strict=True))
    )


def decoded(client: httpx.Client, model: str, prompt: Sequence[int], count: int) -> tuple[Position, ...]:
    """`count` tokens that the server generates greedily, each with the log-probs of the step that chose it.

    Here one-shot and step-by-step rounding cannot differ: an exact tie is one that the sampler itself met.
    Errors: as teacher_forced.
    """
    body = {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": count,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": TOP,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }
    answer = client.post(PATH, json=body)
    if answer.status_code != 200:
        raise ArmError(f"the server answered {answer.status_code} to logprobs: {answer.text[:200]}")
    choice = _choice(answer.content)
    ids, named = choice.get("token_ids"), choice.get("logprobs")
    tops = named.get("top_logprobs") if isinstance(named, dict) else None
    if not isinstance(ids, list) or not isinstance(tops, list) or len(ids) != len(tops):
        raise ArmError("the server returned no token ids with logprobs", expected="one entry per generated token")
    return tuple(
        _position(index, token_id, _ranked(row)) for index, (token_id, row) in enumerate(zip(ids, tops, strict=True))
    )


def _ranked(row: object) -> dict[str, dict[str, Any]]:
    """{"token_id:5": -0.5} as prompt_logprobs has it; what is wrong with it is found there."""
    values = row if isinstance(row, dict) else {}
    numbers = [value for value in values.values() if isinstance(value, float | int)]
    return {
        name.removeprefix(NAME): {"logprob": value, "rank": 1 + sum(other > value for other in numbers)}
        for name, value in values.items()
        if isinstance(value, float | int)
    }


def _choice(content: bytes) -> dict[str, Any]:
    """The answer's first choice. orjson refuses a bare NaN, which Python's own parser takes."""
    try:
        choice = orjson.loads(content)["choices"][0]
    except (ValueError, LookupError, TypeError) as error:
        raise ArmError("the answer is no completion", expected="JSON") from error
    if not isinstance(choice, dict):
        raise ArmError("the answer is no completion", expected="an object as choice")
    return choice


def _position(index: int, token_id: int, row: object) -> Position:
    entries = row if isinstance(row, dict) else {}
    try:
        values = {int(name): float(entry["logprob"]) for name, entry in entries.items()}
        rank = int(entries[str(token_id)]["rank"])
    except (KeyError, TypeError, ValueError) as error:
        raise ArmError(f"the server gave no log-prob for token {token_id} at output position {index}") from error
    if not all(math.isfinite(value) and value <= HIGHEST_NATS for value in values.values()) or rank < 1:
        raise ArmError(f"the server gave a log-prob that is none at output position {index}", expected="a number <= 0")
    highest = max(values.values())
    ids = sorted(candidate for candidate, value in values.items() if value == highest)
    rest = sorted(values.values(), reverse=True)
    return Position(index, token_id, values[token_id], rank, tuple(ids), highest, rest[1] if rest[1:] else None)
