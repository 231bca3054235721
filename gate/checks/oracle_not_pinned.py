"""The oracle is not the pinned one.

What it does
    Voids the run when an arm planned as the pinned vLLM reports another version over HTTP, or when its environment held
    another version of a package that makes its numbers (vLLM, FlashInfer, torch …), or changed files of vLLM's wheel,
    before the first leg or after the last.
Why
    A harness enforced one release for 17 days after the record had moved to another; a rollback re-pointed a symlink; a
    package was upgraded between two legs. The denominator then has a name that is not its own.
Deciding numbers
    The runtime version string and each package's version against the pin that the plan recorded. A local part such as
    +cpu counts where the pin has one. What was not read back is not judged; it keeps the grid from binding.
What to do
    gate oracle verify shows what differs; gate oracle install --force puts the pinned environment back.
"""

from __future__ import annotations

from collections.abc import Iterator

from gate.checks.evidence import Evidence
from gate.observe.rows import ARMS, Finding, Identity, Pins
from gate.plan import OraclePin

CODE = "oracle-not-pinned"
TIMING_ONLY = False
CONSEQUENCE = False
HINT = "run: gate oracle verify, then gate oracle install --force; and measure again"


def other(found: str, pinned: str) -> bool:
    """Whether two versions differ; a local part (+cpu) only matters where the pin has one."""
    if "+" in pinned:
        return found != pinned
    return found.partition("+")[0] != pinned


def differences(identity: Identity | None, looks: tuple[Pins, ...], pin: OraclePin) -> list[str]:
    """`what is found, pinned expected`, once each."""
    found: list[str] = []
    # The runtime string, never the distribution's: a wheel's metadata may carry a suffix that the server lacks.
    if identity is not None and identity.version is not None and identity.version != pin.runtime_version:
        found.append(f"version is {identity.version}, pinned {pin.runtime_version}")
    for look in looks:
        found += [
            f"{name} is {look.oracle[name]}, pinned {pinned}"
            for name, pinned in pin.distributions.items()
            if name in look.oracle and other(look.oracle[name], pinned)
        ]
        found += look.oracle_differs
    return list(dict.fromkeys(found))


def check(evidence: Evidence) -> Iterator[Finding]:
    pin = evidence.plan.pin
    for arm in ARMS:
        if pin is None or evidence.arm_plan(arm).kind != "vllm":
            continue
        found = differences(evidence.identity(arm), evidence.run.pins, pin)
        if found:
            message = f"the {arm} is not the pinned vLLM: {'; '.join(found)}"
            yield Finding(code=CODE, message=message, hint=HINT, arm=arm)
