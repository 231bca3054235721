"""A running server is not what the plan says.

What it does
    Voids the run when an arm with legs left no identity, or when what it said of itself over HTTP (model name,
    max_model_len, KV cache dtype asked for by the recipe) differs from the plan. Keys that a server does not report
    are not judged here; they keep the grid from binding.
Why
    A flag on the command line is a wish. Servers fall back, round and ignore, and a reused port answers with
    yesterday's model.
Deciding numbers
    Each key, read back against planned. max_model_len is judged on arms whose command line the plan wrote.
What to do
    Read the arm's log for the setting it refused; check that nothing else listens on its port.
"""

from __future__ import annotations

from collections.abc import Iterator

from gate.checks.evidence import Evidence
from gate.checks.kv_dtype_differs import resolved
from gate.observe.rows import ARMS, Finding, Identity
from gate.plan import ArmPlan
from gate.recipe import Recipe

CODE = "arms-not-as-planned"
TIMING_ONLY = False
CONSEQUENCE = False
HINT = "read the arm's log for the setting it refused, and check what else could answer on its port"


def differences(identity: Identity, arm: ArmPlan, recipe: Recipe) -> list[str]:
    """`key is found, planned expected`, for each key that was read back and differs."""
    keys: list[tuple[str, object, object]] = [("model", identity.model, arm.model)] if arm.model else []
    if arm.kind in ("engine", "vllm"):
        keys.append(("max_model_len", identity.max_model_len, recipe.max_model_len))
    if recipe.kv_cache_dtype != "auto":
        keys.append(("kv_cache_dtype", resolved(identity.kv_cache_dtype), resolved(recipe.kv_cache_dtype)))
    return [
        f"{key} is {found}, planned {planned}" for key, found, planned in keys if found is not None and found != planned
    ]


def check(evidence: Evidence) -> Iterator[Finding]:
    for arm in ARMS:
        if not evidence.of_arm(arm):
            continue
        identity = evidence.identity(arm)
        if identity is None:
            message = f"the {arm} never said what it is; expected one identity, read before its first leg"
            yield Finding(code=CODE, message=message, hint=HINT, arm=arm)
            continue
        found = differences(identity, evidence.arm_plan(arm), evidence.plan.recipe)
        if found:
            yield Finding(code=CODE, message=f"{arm}: {'; '.join(found)}", hint=HINT, arm=arm)
