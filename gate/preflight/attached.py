"""3 An attached server answers and runs with the recipe's limits: found before the other arm takes a minute to load."""

from __future__ import annotations

from pathlib import Path

from gate.arm.process import answers
from gate.checks.kv_dtype_differs import resolved
from gate.errors import ArmError
from gate.observe.rows import Finding
from gate.observe.server import identify, served_model
from gate.plan import ArmPlan, Plan
from gate.recipe import Recipe


def check(plan: Plan, _out: Path) -> tuple[Finding, ...]:
    """Raises ArmError: nobody answers, no single model, or a limit that is not the recipe's."""
    for arm in (plan.candidate, plan.oracle):
        if arm.argv is None:
            _check(arm, plan.recipe)
    return ()


def _check(arm: ArmPlan, recipe: Recipe) -> None:
    if not answers(arm.url):
        raise ArmError(
            f"no answer from the {arm.arm} at {arm.url}", expected="a ready server", hint="start it, then run again"
        )
    served_model(arm.url, arm.model)
    said = identify(arm.url, arm.arm)
    kv_found, kv_wanted = resolved(said.kv_cache_dtype), resolved(recipe.kv_cache_dtype)
    # What a server does not report is no reason to refuse it; the grid does not bind then.
    wrong = []
    if kv_found is not None and kv_wanted is not None and kv_found != kv_wanted:
        wrong.append((f"kv_cache_dtype {said.kv_cache_dtype}", kv_wanted, f"--kv-cache-dtype {recipe.kv_cache_dtype}"))
    if said.max_model_len not in (None, recipe.max_model_len):
        wrong.append(
            (
                f"max_model_len {said.max_model_len}",
                str(recipe.max_model_len),
                f"--max-model-len {recipe.max_model_len}",
            )
        )
    if wrong:
        found, expected, flags = zip(*wrong, strict=True)
        raise ArmError(
            f"the {arm.arm} at {arm.url} runs with {' and '.join(found)}",
            expected=f"{' and '.join(expected)}, as the recipe says",
            hint=f"start it with {' '.join(flags)}",
        )
