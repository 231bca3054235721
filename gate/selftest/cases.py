"""0 Acceptance cases: one folder per fault that once made a wrong number, and what the gate must say of it.

tests/cases/README.md tells the format. The test suite and `gate selftest` both come through here.
"""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gate.client.drive import RawResponse
from gate.client.openai import to_row
from gate.errors import UsageError
from gate.judge import judge
from gate.metrics.e2el import e2el_ms
from gate.metrics.itl import itl_ms
from gate.metrics.tpot import tpot_ms
from gate.metrics.ttft import ttft_ms
from gate.observe.rows import LegRow, RequestRow, Verdict
from gate.observe.rundata import RunData
from gate.plan import PlannedLeg
from gate.report.model import Report
from gate.selftest import arm_faults, refusals, time_faults, token_faults
from gate.selftest.good_run import MS, Build
from gate.workload import Prompt

FOLDER = Path(__file__).resolve().parents[2] / "tests" / "cases"
PLACE = ("arm", "concurrency", "repetition")
"""Keys of a fault that say which legs it is in."""
METRICS: dict[str, Callable[[RequestRow], Any]] = {
    "ttft_ms": ttft_ms,
    "tpot_ms": tpot_ms,
    "e2el_ms": e2el_ms,
    "itl_ms": lambda row: list(itl_ms(row)),
    "n": lambda row: row.completion_tokens,
    "error": lambda row: row.error,
}


def folders(root: Path = FOLDER) -> list[Path]:
    """Every case, by name. Raises UsageError where there is none."""
    found = sorted(path.parent for path in root.glob("*/case.toml"))
    if not found:
        raise UsageError(
            f"no cases in {root}",
            expected="folders with a case.toml",
            hint="they are part of the repository: install editable from a whole checkout",
        )
    return found


def load(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "case.toml").read_text(encoding="utf-8"))


def made(case: dict[str, Any]) -> tuple[RunData, RequestRow | None]:
    """The good run with the case's faults in it, and the row of its stream, where it has one."""
    run, row = Build.run(speeds(case), **case.get("good", {}), **_tuples(case.get("recipe", {}))), None
    for fault in case.get("fault", ()):
        if fault["on"] != "speed":
            run = break_it(run, fault)
    if "stream" in case:
        good, row = stream_row(run, case["stream"])
        pair = (good.concurrency, good.repetition, good.index)
        requests = tuple(row if r is good else r for r in run.requests)
        # Both arms say the same, where the case says all of it: a case about times is no case about tokens.
        whole = len(row.token_ids or ()) == good.expected_output_tokens
        agreed = tuple(
            r.model_copy(update={"token_ids": row.token_ids})
            if whole and (r.concurrency, r.repetition, r.index) == pair
            else r
            for r in requests
        )
        run = dataclasses.replace(run, requests=agreed)
    return run, row


def break_it(run: RunData, fault: dict[str, Any]) -> RunData:
    """One [[fault]] applied to a run."""
    on, given = fault["on"], fault.get("set", {}) | dict.fromkeys(fault.get("unset", ()))
    changes = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    if on in arm_faults.KINDS:
        return arm_faults.break_it(run, fault)
    if on in token_faults.KINDS:
        return token_faults.break_it(run, fault)
    if on == "identity":
        return Build.alter_identity(run, fault["arm"], **changes)
    if on == "arm":
        planned = getattr(run.plan, fault["arm"]).model_copy(update=changes)
        return dataclasses.replace(run, plan=run.plan.model_copy(update={fault["arm"]: planned}))
    if on == "preflight":
        return dataclasses.replace(run, preflight=(Build.finding(**changes),))
    if on == "margin":
        return dataclasses.replace(run, margins=(*run.margins, Build.margin(**changes)))
    if on == "order":
        return Build.reorder(run, fault["letters"], fault["concurrency"])
    legs = [leg for leg in run.legs if _placed(leg, fault)]
    if not legs:
        raise UsageError(f"no leg matches {fault}")
    for leg in legs:
        if on == "leg":
            run = Build.alter_leg(run, leg.leg_id, **changes)
        elif on in time_faults.KINDS:
            run = time_faults.break_it(run, leg.leg_id, fault)
        elif on == "lose" and "index" not in fault:
            run = Build.without_legs(run, leg.leg_id)
        else:
            run = break_requests(run, leg.leg_id, fault, changes)
    return run


def break_requests(run: RunData, leg_id: str, fault: dict[str, Any], changes: dict[str, Any]) -> RunData:
    for row in [r for r in run.requests if r.leg_id == leg_id and fault.get("index") in (None, r.index)]:
        if fault["on"] == "lose":
            run = dataclasses.replace(run, requests=tuple(r for r in run.requests if r is not row))
        else:
            run = Build.alter_request(run, leg_id, row.index, **(changes | shifted(row, fault.get("shift_ms", {}))))
    return run


def shifted(row: RequestRow, shift_ms: dict[str, float]) -> dict[str, int]:
    """Stamps moved by so many milliseconds."""
    return {key: getattr(row, key) + int(ms * MS) for key, ms in shift_ms.items()}


def speeds(case: dict[str, Any]) -> Callable[[PlannedLeg], float]:
    """Faults `on = "speed"` as the good run's speed: times are divided by the factor."""
    faults = [fault for fault in case.get("fault", ()) if fault["on"] == "speed"]

    def of(leg: PlannedLeg) -> float:
        factors = [fault["factor"] for fault in faults if _placed(leg, fault)]
        return float(factors[0]) if factors else 1.0

    return of


def stream_row(run: RunData, stream: dict[str, Any]) -> tuple[RequestRow, RequestRow]:
    """(the good first answer of the candidate at c1, what the client makes of the case's bytes in its place)."""
    good = next(r for r in run.requests if (r.arm, r.concurrency, r.repetition, r.index) == ("candidate", 1, 0, 0))
    response = RawResponse(
        index=0,
        scheduled_ns=None,
        sent_ns=good.sent_ns,
        status=stream.get("status", 200),
        chunks=tuple(
            (good.sent_ns + int(ms * MS), text.encode(stream.get("encoding", "utf-8"))) for ms, text in stream["reads"]
        ),
        end_ns=good.sent_ns + int(max(ms for ms, _ in stream["reads"]) * MS) if stream["reads"] else None,
        error=stream.get("error"),
        content_type=stream.get("content_type", "text/event-stream"),
    )
    prompt = Prompt(index=0, token_ids=tuple(range(good.expected_prompt_tokens)), sha256=good.prompt_sha256)
    planned = next(leg for leg in run.plan.legs if leg.leg_id == good.leg_id)
    return good, to_row(response, prompt, good.expected_output_tokens, planned)


def differences(case: dict[str, Any]) -> list[str]:
    """What the gate says otherwise than the case expects, a line each; empty when all is as expected."""
    if refusals.kind(case) is not None:
        return refusals.differences(case)
    run, row = made(case)
    report, expect = judge(run), case["expect"]
    void = sorted({c.concurrency for c in report.cells if c.verdict is Verdict.VOID})
    pairs = [
        ("codes", sorted(codes(report)), sorted(expect["codes"])),
        ("verdict", report.verdict.value, expect["verdict"]),
        ("void at", void, expect.get("void", [])),
    ]
    pairs += [
        (f"stream {name}", METRICS[name](row) if row else "no stream", value)
        for name, value in expect.get("stream", {}).items()
    ]
    found = [f"{what}: {said!r}, expected {wanted!r}" for what, said, wanted in pairs if not _equal(said, wanted)]
    found += [
        f"indicative: nothing says {word!r}"
        for word in expect.get("indicative", ())
        if not any(word in reason for reason in report.not_binding_because)
    ]
    return found + void_with_a_number(report)


def codes(report: Report) -> set[str]:
    reasons = [reason for cells in (report.cells, report.tokens) for cell in cells for reason in cell.reasons]
    return {reason.code for reason in reasons} | {finding.code for finding in report.findings}


def void_with_a_number(report: Report) -> list[str]:
    """A VOID cell carries a reason and no ratio, whatever the case is about."""
    found = []
    for cell in report.cells:
        numbers = (cell.ratio, cell.ratio_low, cell.ratio_high, cell.candidate_median, cell.oracle_median)
        if cell.verdict is Verdict.VOID and (not cell.reasons or numbers != (None,) * 5):
            found.append(f"the VOID cell {cell.axis} at c{cell.concurrency} has a number, or no reason")
    return found


def _tuples(value: Any) -> Any:
    """TOML's arrays as a recipe wants them."""
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return tuple(value) if isinstance(value, list) else value


def _placed(leg: PlannedLeg | LegRow, fault: dict[str, Any]) -> bool:
    return all(getattr(leg, key) == fault[key] for key in PLACE if key in fault)


def _equal(said: Any, wanted: Any) -> bool:
    """Numbers up to rounding; "absent" is nothing at all, never 0."""
    if wanted == "absent":
        return said is None or said in ("", [])
    if isinstance(said, list) and isinstance(wanted, list):
        return len(said) == len(wanted) and all(map(_equal, said, wanted))
    if isinstance(said, int | float) and isinstance(wanted, int | float):
        return math.isclose(said, wanted, rel_tol=1e-6)
    return bool(said == wanted)
