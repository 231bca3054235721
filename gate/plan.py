"""2 Recipe -> Plan: legs in order, every argv, every digest. Pure; the id is a hash of all of it."""

from __future__ import annotations

from typing import Literal

from gate.observe.rows import Arm, Row
from gate.recipe import Recipe


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
    """Name to send in requests."""
    checkpoint: str
    checkpoint_digest: str | None


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
