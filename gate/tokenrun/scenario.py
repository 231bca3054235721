"""2 What `gate tokens` sends: long answers, and churning ones in which slots and blocks change hands. Pure.

Shared state that is corrupted shows only where requests come and go beside each other: a pool that was never reused, or
a single stream, cannot show it.
"""

from __future__ import annotations

import hashlib
import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from gate.observe.tokenrows import Kind
from gate.recipe import Recipe
from gate.workload import Prompt, leg_seed, make_prompts

LONG_FACTOR = 4
"""A long answer has so many times the recipe's output tokens, as far as max_model_len goes."""
CHURN_PER_STREAM = 4
"""Requests of each stream: every slot is given away three times."""
CHURN_QUARTERS = (1, 2, 3, 4)
"""Prompts and answers of a churning request are so many quarters of the recipe's, drawn for each."""
CANCEL_EVERY = 4
"""Every fourth churning request is left by the client at half of what it asked for."""
STAGGER_TOKENS = 4
"""A stream begins when the one before it has so many: arrivals then fall into the others' decoding, at any speed."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request."""

    prompt: Prompt
    asked: int
    """max_tokens."""
    kept: int
    """Ids that are compared: all, or where the client leaves."""

    @property
    def cancelled(self) -> bool:
        return self.kept < self.asked


@dataclass(frozen=True, slots=True)
class Scenario:
    """One load: so many streams, each sends its next request when its last one ended."""

    kind: Kind
    concurrency: int
    repetition: int
    """Which seed, from 0."""
    calls: tuple[Call, ...]
    """In sending order; equal for both arms and all takes."""

    @property
    def name(self) -> str:
        return f"{self.kind}-c{self.concurrency}-s{self.repetition}"


def scenarios(recipe: Recipe, vocab_size: int, reserved: Sequence[int], seeds: int) -> tuple[Scenario, ...]:
    """Both kinds at every concurrency with every seed, levels ascending: reuse grows with the run.

    Raises UsageError when the vocabulary is too small for so many different prompts.
    """
    made = []
    for repetition in range(seeds):
        for concurrency in sorted(recipe.protocol.concurrency):
            seed = leg_seed(recipe.workload.seed, concurrency, repetition, "timed")
            prompts = make_prompts(
                count=concurrency * (1 + CHURN_PER_STREAM),
                length=recipe.workload.prompt_tokens,
                vocab_size=vocab_size,
                seed=seed,
                max_common_prefix=recipe.workload.max_common_prefix,
                reserved=frozenset(reserved),
            )
            long, churn = _long(recipe, prompts[:concurrency]), _churn(recipe, prompts[concurrency:], seed)
            made.append(Scenario("long", concurrency, repetition, long))
            made.append(Scenario("churn", concurrency, repetition, churn))
    return tuple(made)


def _long(recipe: Recipe, prompts: Sequence[Prompt]) -> tuple[Call, ...]:
    # One less than what fits: the oracle generates one token after the answer that goes back to it.
    room = recipe.max_model_len - recipe.workload.prompt_tokens - 1
    asked = max(1, min(LONG_FACTOR * recipe.workload.output_tokens, room))
    return tuple(Call(prompt, asked, asked) for prompt in prompts)


def _churn(recipe: Recipe, prompts: Sequence[Prompt], seed: int) -> tuple[Call, ...]:
    draw = random.Random(seed)
    shortest = min(recipe.workload.max_common_prefix + 1, recipe.workload.prompt_tokens)
    calls = []
    for index, prompt in enumerate(prompts):
        length = max(shortest, recipe.workload.prompt_tokens * draw.choice(CHURN_QUARTERS) // 4)
        room = recipe.max_model_len - length - 1
        asked = max(1, min(recipe.workload.output_tokens * draw.choice(CHURN_QUARTERS) // 4, room))
        kept = max(1, asked // 2) if index % CANCEL_EVERY == CANCEL_EVERY - 1 else asked
        calls.append(Call(_cut(prompt, index, length), asked, kept))
    return tuple(calls)


def _cut(prompt: Prompt, index: int, length: int) -> Prompt:
    ids = prompt.token_ids[:length]
    return Prompt(index, ids, hashlib.sha256(array("i", ids).tobytes()).hexdigest())


def digest(scenario: Scenario) -> str:
    """sha256 over every request of it: prompts, lengths, where the client leaves."""
    text = "\n".join(f"{call.prompt.sha256} {call.asked} {call.kept}" for call in scenario.calls)
    return hashlib.sha256(f"{scenario.name}\n{text}".encode()).hexdigest()
