"""2 Recipe -> Plan: legs in order, every argv, every digest. Pure; the id is a hash of all of it."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

from gate.errors import PreconditionError
from gate.observe.rows import Arm, Row, Source
from gate.recipe import Recipe
from gate.workload import Phase, Prompt, leg_seed, make_prompts, prompts_digest

REPETITIONS_PER_BLOCK = 2
"""Of an extra block: ABBA, or BAAB after an odd number of repetitions."""


class PlannedLeg(Row):
    leg_id: str
    """<order>-<arm>-c<concurrency>-r<repetition>, e.g. 007-oracle-c4-r1."""
    order: int
    arm: Arm
    concurrency: int
    repetition: int
    requests: int
    prompts_sha256: str
    """Digest of the leg's token-id prompts; both arms of one (concurrency, repetition) have the same."""
    warmup_sha256: str


class ArmPlan(Row):
    arm: Arm
    kind: Literal["engine", "vllm", "command", "url"]
    argv: tuple[str, ...] | None
    """None for an attached URL."""
    env: dict[str, str]
    """The whole allow-listed environment the server gets; nothing else is inherited."""
    url: str
    model: str
    """Name to send in requests; empty for a command or URL: the one model it serves."""
    checkpoint: str
    checkpoint_digest: str | None
    source_sha256: str | None = None
    """Of our engine: digest of its sources (observe/source.py), which the running one must report as its own."""


class OraclePin(Row):
    """The pin that was in force when the plan was made, so that a report years later judges by the same one."""

    platform: str
    runtime_version: str
    """What a running server must say."""
    distributions: dict[str, str]
    """Those that make its numbers -> pinned version."""
    digest: str


class Vocabulary(Row):
    """Which token ids prompts are drawn from; read from the checkpoint."""

    size: int
    reserved: tuple[int, ...] = ()
    """Special tokens and the like: never drawn."""


class Plan(Row):
    schema_version: Literal[1] = 1
    plan_id: str
    recipe: Recipe
    coin: Arm
    """Which arm opens each palindromic block; recorded, so that the order can be replayed."""
    seed: int
    candidate: ArmPlan
    oracle: ArmPlan
    legs: tuple[PlannedLeg, ...]
    vocabulary: Vocabulary = Vocabulary(size=0)
    declared: Recipe | None = None
    """The recipe as its file has it, where the command line changed it; what was left out of it is reported."""
    gate: Source | None = None
    """The gate's own commit; None outside a git repository."""
    pin: OraclePin | None = None
    """None where neither arm is the pinned vLLM."""
    extra_legs: tuple[PlannedLeg, ...] = ()
    """The pre-declared extra blocks, in order; run only where they are due (gate/looks.py)."""

    @property
    def all_legs(self) -> tuple[PlannedLeg, ...]:
        return (*self.legs, *self.extra_legs)

    def arm(self, arm: Arm) -> ArmPlan:
        return self.candidate if arm == "candidate" else self.oracle


def make_plan(
    recipe: Recipe,
    *,
    coin: Arm,
    seed: int,
    candidate: ArmPlan,
    oracle: ArmPlan,
    vocabulary: Vocabulary,
    declared: Recipe | None = None,
    gate: Source | None = None,
    pin: OraclePin | None = None,
) -> Plan:
    """Everything a run will do, before anything starts; equal arguments give an equal plan_id."""
    protocol = recipe.protocol
    last = protocol.repetitions + REPETITIONS_PER_BLOCK * protocol.extra_blocks
    digests = {
        (concurrency, repetition): tuple(
            prompts_digest(_prompts(recipe, vocabulary, seed, concurrency, repetition, phase))
            for phase in ("timed", "warmup")
        )
        for concurrency in protocol.concurrency
        for repetition in range(last)
    }
    legs = tuple(
        PlannedLeg(
            leg_id=f"{order:03d}-{arm}-c{concurrency}-r{repetition}",
            order=order,
            arm=arm,
            concurrency=concurrency,
            repetition=repetition,
            requests=recipe.workload.requests(concurrency),
            prompts_sha256=digests[concurrency, repetition][0],
            warmup_sha256=digests[concurrency, repetition][1],
        )
        for order, (arm, concurrency, repetition) in enumerate(
            leg_order(protocol.concurrency, last, coin, protocol.residency)
        )
    )
    plan = Plan(
        plan_id="",
        recipe=recipe,
        coin=coin,
        seed=seed,
        candidate=candidate,
        oracle=oracle,
        legs=tuple(leg for leg in legs if leg.repetition < protocol.repetitions),
        extra_legs=tuple(leg for leg in legs if leg.repetition >= protocol.repetitions),
        vocabulary=vocabulary,
        declared=None if declared == recipe else declared,
        gate=gate,
        pin=pin,
    )
    return plan.model_copy(update={"plan_id": plan_hash(plan)})


def plan_hash(plan: Plan) -> str:
    """sha256 of the plan's canonical JSON (sorted keys, no spaces) without its own id."""
    return document_hash(plan.model_dump(mode="json"))


def document_hash(document: dict[str, Any]) -> str:
    """The same of a plan.json as it was read: a field that a later version adds does not change an old plan's id."""
    content = {key: value for key, value in document.items() if key != "plan_id"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def leg_order(
    levels: tuple[int, ...], repetitions: int, coin: Arm, residency: Literal["both", "alternate"]
) -> tuple[tuple[Arm, int, int], ...]:
    """(arm, concurrency, repetition) in running order.

    The arm that opens alternates with the repetition: ABBA for two, ABBAAB for three, so that a drift over the run
    favours neither arm (with an even number of repetitions a linear one cancels exactly). The levels rotate by one per
    repetition, so that none is always first. With both servers up the arms of one level run next to each other; with
    one at a time each block of an arm is all levels on one fresh server, since a change costs a start.
    """
    other: Arm = "oracle" if coin == "candidate" else "candidate"
    order: list[tuple[Arm, int, int]] = []
    for repetition in range(repetitions):
        arms = (coin, other) if repetition % 2 == 0 else (other, coin)
        turn = repetition % len(levels)
        rotated = levels[turn:] + levels[:turn]
        if residency == "both":
            order += [(arm, level, repetition) for level in rotated for arm in arms]
        else:
            order += [(arm, level, repetition) for arm in arms for level in rotated]
    return tuple(order)


def leg_prompts(plan: Plan, leg: PlannedLeg, phase: Phase) -> tuple[Prompt, ...]:
    """The prompts a leg sends, made again from the plan; both arms of one (concurrency, repetition) get the same.

    Raises PreconditionError when they are not the planned ones: the plan was made by another version.
    """
    prompts = _prompts(plan.recipe, plan.vocabulary, plan.seed, leg.concurrency, leg.repetition, phase)
    planned = leg.prompts_sha256 if phase == "timed" else leg.warmup_sha256
    if prompts_digest(prompts) != planned:
        raise PreconditionError(
            f"the {phase} prompts of {leg.leg_id} have another digest than planned",
            expected=planned[:12],
            hint="the plan was made by another version of gate or numpy: start a new run",
        )
    return prompts


def _prompts(
    recipe: Recipe, vocabulary: Vocabulary, seed: int, concurrency: int, repetition: int, phase: Phase
) -> tuple[Prompt, ...]:
    workload = recipe.workload
    return make_prompts(
        count=workload.requests(concurrency) if phase == "timed" else concurrency * workload.warmup_per_stream,
        length=workload.prompt_tokens,
        vocab_size=vocabulary.size,
        seed=leg_seed(seed, concurrency, repetition, phase),
        max_common_prefix=workload.max_common_prefix,
        reserved=frozenset(vocabulary.reserved),
    )
