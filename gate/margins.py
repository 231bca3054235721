"""4 Asks the oracle for its margin at each first divergence, after the timed legs.

One token after prompt and common output, greedy, one request at a time, so that no batch changes the answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import httpx
import orjson

from gate.observe import control
from gate.observe.rows import MarginRow, RequestRow
from gate.observe.rundata import RunData
from gate.plan import Plan, leg_prompts
from gate.report.model import Divergence
from gate.tokens.compare import comparable, divergence, pair_up

TOP = 20
"""Alternatives asked for: vLLM's own limit (--max-logprobs)."""
NAME = "token_id:"
"""How vLLM names a token with return_tokens_as_token_ids; two ids may have the same text."""


def splits(run: RunData) -> tuple[tuple[Divergence, RequestRow], ...]:
    """Every first divergence with the oracle's request it is on; pure."""

    def key(row: RequestRow) -> tuple[int, int]:
        return row.concurrency, row.repetition

    found = []
    for _, rows in groupby(sorted(run.requests, key=key), key):
        of_both = list(rows)
        ours = [row for row in of_both if row.arm == "candidate"]
        theirs = [row for row in of_both if row.arm == "oracle"]
        for candidate, oracle in pair_up(ours, theirs):
            split = divergence(candidate, oracle) if comparable(candidate, oracle) else None
            if split is not None:
                found.append((split, oracle))
    return tuple(found)


def ask(run: RunData, found: Sequence[tuple[Divergence, RequestRow]], url: str, model: str) -> tuple[MarginRow, ...]:
    """The oracle's margin at each divergence; None where it does not answer."""
    prompts = _prompts(run.plan)
    rows = []
    with control.client(url, run.plan.recipe.protocol.request_timeout_s) as client:
        for split, oracle in found:
            prompt = prompts(split.concurrency, split.repetition)[split.index]
            common = (oracle.token_ids or ())[: split.position]
            rows.append(judge(split, top(client, model, (*prompt, *common))))
    return tuple(rows)


def judge(split: Divergence, top: dict[int, float] | None) -> MarginRow:
    """log p(oracle's id) - log p(candidate's id), from the oracle's most probable tokens."""
    both = top is not None and split.oracle_id in top and split.candidate_id in top
    return MarginRow(
        concurrency=split.concurrency,
        repetition=split.repetition,
        index=split.index,
        position=split.position,
        candidate_id=split.candidate_id,
        oracle_id=split.oracle_id,
        margin_nats=top[split.oracle_id] - top[split.candidate_id] if top is not None and both else None,
        outside_top=top is not None and split.candidate_id not in top,
    )


def top(client: httpx.Client, model: str, token_ids: Sequence[int]) -> dict[int, float] | None:
    """Token id -> log-prob in nats of the most probable next tokens; None when there is no usable answer."""
    body = {
        "model": model,
        "prompt": list(token_ids),
        "max_tokens": 1,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": TOP,
        "return_tokens_as_token_ids": True,
    }
    try:
        response = client.post("/v1/completions", json=body)
        answer: Any = orjson.loads(response.content)
        named = answer["choices"][0]["logprobs"]["top_logprobs"][0]
        found = {int(name.removeprefix(NAME)): float(value) for name, value in named.items()}
    except (httpx.HTTPError, ValueError, LookupError, TypeError, AttributeError):
        return None
    return found if all(map(math.isfinite, found.values())) else None


def _prompts(plan: Plan) -> Callable[[int, int], list[tuple[int, ...]]]:
    """(concurrency, repetition) -> token ids of its prompts by index, made once each."""
    made: dict[tuple[int, int], list[tuple[int, ...]]] = {}

    def prompts(concurrency: int, repetition: int) -> list[tuple[int, ...]]:
        at = (concurrency, repetition)
        if at not in made:
            leg = next(leg for leg in plan.legs if (leg.concurrency, leg.repetition) == at)
            made[at] = [prompt.token_ids for prompt in leg_prompts(plan, leg, "timed")]
        return made[at]

    return prompts
