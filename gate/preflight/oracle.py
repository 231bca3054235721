"""3 The oracle is installed as pinned, and its command line has every required flag and no forbidden one."""

from __future__ import annotations

from pathlib import Path

from gate.errors import OracleError
from gate.observe.rows import Finding
from gate.plan import Plan
from oracle.serve import deviations
from oracle.verify import verify_installed


def check(plan: Plan, _out: Path) -> tuple[Finding, ...]:
    """Raises OracleError. Both arms are looked at: in an A/A run the candidate is the pinned vLLM too."""
    platform = plan.recipe.oracle.platform
    arms = [arm for arm in (plan.candidate, plan.oracle) if arm.kind == "vllm" and arm.argv is not None]
    for arm in arms:
        if found := deviations(platform, arm.argv or ()):
            raise OracleError(
                f"the {arm.arm}'s vLLM command line {found[0]}",
                expected="the flags of oracle/pin.toml",
                hint="correct the recipe's args",
            )
    if arms:
        verify_installed(platform)
    return ()
