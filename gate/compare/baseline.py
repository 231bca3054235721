"""3 The host's last accepted grid: complete, PASS, same machine, recipe and arms; kept in the run's folder.

One with a primary cell that a bound decided has no figure there, and is passed over.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from gate import messages
from gate.calibration.key import own_env, portless
from gate.compare.differences import machine_differences, refusal
from gate.compare.figures import named, primary
from gate.compare.record import Baseline
from gate.errors import GateError
from gate.judge import judge
from gate.messages import Say, quiet
from gate.observe import seals, store
from gate.observe.rows import Verdict
from gate.plan import Plan


def bring(plan: Plan, machine: dict[str, str], place: store.Store, say: Say) -> None:
    """Copy what it takes of the last accepted grid into the run's folder, so that its report can be derived there."""
    baseline = last_accepted(place.folder.parent, plan, machine, say)
    if baseline is not None:
        place.write_baseline(baseline)


def last_accepted(host: Path, plan: Plan, machine: dict[str, str], say: Say = quiet) -> Baseline | None:
    """The newest in a host's folder.

    One that cannot be read, was changed or has lost a seal was accepted by nobody: it is passed over, which is said.
    """
    for folder in _accepted(host):
        try:
            then = Plan.model_validate_json((folder / store.PLAN).read_bytes())
            if _another(then, plan):
                continue
            run = store.read_run(folder)
            if run.finished_at is None or run.unsealed or list(machine_differences(run.machine, machine)):
                continue
            seals.check_report(folder)
            report = judge(run)
        except GateError as error:
            say(messages.passed_over(folder.name, "the last accepted grid", error))
            continue
        except (ValidationError, OSError):
            continue
        # A cell that a bound decided has no figures: beside it no loss would be seen.
        if report.verdict is Verdict.PASS and not any(cell.primary and cell.bounded for cell in report.cells):
            return Baseline(
                run_id=report.run_id,
                started_at=report.started_at,
                binding=report.binding,
                candidate=named(report.candidate),
                oracle=named(report.oracle),
                differs=tuple(_differs(then, plan)),
                cells=primary(report),
            )
    return None


def _accepted(host: Path) -> Iterator[Path]:
    """Newest first; the marker's own word saves reading runs that did not pass."""
    for marker in sorted(host.glob(f"*/{seals.COMPLETE}"), reverse=True):
        try:
            passed = json.loads(marker.read_bytes()).get("verdict") == Verdict.PASS
        except (OSError, ValueError, AttributeError):
            continue
        if passed:
            yield marker.parent


def _another(then: Plan, now: Plan) -> bool:
    """Another recipe, or other arms: a regression is that of one candidate. An attached URL may be anything."""
    arms = (then.candidate, now.candidate), (then.oracle, now.oracle)
    return (
        then.recipe.name != now.recipe.name
        or refusal(then, now) is not None
        or any(a.kind != b.kind or a.kind == "url" for a, b in arms)
        or any(a.kind == "command" and portless(a) != portless(b) for a, b in arms)
    )


def _differs(then: Plan, now: Plan) -> Iterator[str]:
    for arm in ("candidate", "oracle"):
        a, b = getattr(then, arm), getattr(now, arm)
        if portless(a) != portless(b):
            yield f"the {arm}'s command line"
        if own_env(a) != own_env(b):
            yield f"the {arm}'s environment"
    for name, value in then.recipe.protocol.model_dump().items():
        if value != getattr(now.recipe.protocol, name):
            yield f"protocol.{name}"
