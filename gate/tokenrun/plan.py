"""2 Recipe and command line -> TokenPlan: everything `gate tokens` will send, hashed. Pure."""

from __future__ import annotations

from typing import Literal

from gate.errors import PreconditionError, UsageError
from gate.observe.rows import Row
from gate.plan import Plan, document_hash
from gate.tokenrun.scenario import Scenario, digest, scenarios

REPEATS = 3
"""Runs of each load by the oracle. Two can only agree or not; the third shows the rarer answer of three in four."""
SEEDS = 2
"""Sets of prompts. What goes wrong with one set alone is not known from the other."""
MOST_REPEATS = MOST_SEEDS = 20


class PlannedScenario(Row):
    name: str
    calls: int
    sha256: str


class TokenPlan(Row):
    """plan.json of a token run."""

    schema_version: Literal[1] = 1
    flow: Literal["tokens"] = "tokens"
    plan_id: str
    repeats: int
    """Runs of each load by the oracle; the candidate runs it once."""
    seeds: int
    base: Plan
    """Recipe, both arms, environment, vocabulary; its timed legs are not run."""
    scenarios: tuple[PlannedScenario, ...]


def make_token_plan(base: Plan, repeats: int = REPEATS, seeds: int = SEEDS) -> TokenPlan:
    """
    Raises:
        UsageError: repeats or seeds out of range, or prompts that the vocabulary has no room for.
    """
    if not 1 <= repeats <= MOST_REPEATS:
        raise UsageError(f"--repeats {repeats}", expected=f"1 to {MOST_REPEATS}")
    if not 1 <= seeds <= MOST_SEEDS:
        raise UsageError(f"--seeds {seeds}", expected=f"1 to {MOST_SEEDS}")
    base = base.model_copy(update={"legs": ()})
    planned = tuple(
        PlannedScenario(name=one.name, calls=len(one.calls), sha256=digest(one)) for one in _made(base, seeds)
    )
    plan = TokenPlan(plan_id="", repeats=repeats, seeds=seeds, base=base, scenarios=planned)
    return plan.model_copy(update={"plan_id": document_hash(plan.model_dump(mode="json"))})


def planned_scenarios(plan: TokenPlan) -> tuple[Scenario, ...]:
    """Made again from the plan. Raises PreconditionError when they are not the planned ones."""
    made = _made(plan.base, plan.seeds)
    if [digest(one) for one in made] != [one.sha256 for one in plan.scenarios]:
        raise PreconditionError(
            "the requests have other digests than planned",
            expected=plan.plan_id[:12],
            hint="the plan was made by another version of gate or numpy: start a new run",
        )
    return made


def _made(base: Plan, seeds: int) -> tuple[Scenario, ...]:
    return scenarios(base.recipe, base.vocabulary.size, base.vocabulary.reserved, seeds)
