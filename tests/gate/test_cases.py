"""Every folder of tests/cases: the smallest input that once made a wrong number, and what the gate must say of it."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

import pytest

from gate.client.drive import RawResponse
from gate.client.openai import to_row
from gate.judge import judge
from gate.metrics.e2el import e2el_ms
from gate.metrics.itl import itl_ms
from gate.metrics.tpot import tpot_ms
from gate.metrics.ttft import ttft_ms
from gate.observe.rows import RequestRow, Verdict
from gate.report import html, jsonfile, markdown, plots, terminal
from gate.report.model import Report
from gate.workload import Prompt

FOLDER = Path(__file__).resolve().parents[1] / "cases"
CASES = sorted(path.parent for path in FOLDER.glob("*/case.toml"))
MS = 1_000_000
KEYS = {"title", "source", "good", "recipe", "fault", "stream", "expect"}
METRICS = {
    "ttft_ms": ttft_ms,
    "tpot_ms": tpot_ms,
    "e2el_ms": e2el_ms,
    "itl_ms": lambda row: list(itl_ms(row)),
    "n": lambda row: row.completion_tokens,
    "error": lambda row: row.error,
}


def load(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "case.toml").read_text())


def break_it(build: Any, run: Any, fault: dict[str, Any]) -> Any:
    """One [[fault]] applied to a run."""
    on, changes = fault["on"], fault.get("set", {}) | dict.fromkeys(fault.get("unset", ()))
    if on == "identity":
        return build.alter_identity(run, fault["arm"], **changes)
    if on == "arm":
        planned = getattr(run.plan, fault["arm"]).model_copy(update=changes)
        return dataclasses.replace(run, plan=run.plan.model_copy(update={fault["arm"]: planned}))
    if on == "preflight":
        return dataclasses.replace(run, preflight=(build.finding(**changes),))
    if on == "order":
        return build.reorder(run, fault["letters"], fault["concurrency"])
    legs = [leg for leg in run.legs if all(getattr(leg, k) == fault[k] for k in PLACE if k in fault)]
    assert legs, f"no leg matches {fault}"
    for leg in legs:
        if on == "leg":
            run = build.alter_leg(run, leg.leg_id, **changes)
        elif on == "lose" and "index" not in fault:
            run = build.without_legs(run, leg.leg_id)
        else:
            run = break_requests(build, run, leg.leg_id, fault, changes)
    return run


PLACE = ("arm", "concurrency", "repetition")


def break_requests(build: Any, run: Any, leg_id: str, fault: dict[str, Any], changes: dict[str, Any]) -> Any:
    for row in [r for r in run.requests if r.leg_id == leg_id and fault.get("index") in (None, r.index)]:
        if fault["on"] == "lose":
            run = dataclasses.replace(run, requests=tuple(r for r in run.requests if r is not row))
        else:
            run = build.alter_request(run, leg_id, row.index, **(changes | shifted(row, fault.get("shift_ms", {}))))
    return run


def shifted(row: RequestRow, shift_ms: dict[str, float]) -> dict[str, int]:
    """Stamps moved by so many milliseconds."""
    return {key: getattr(row, key) + int(ms * MS) for key, ms in shift_ms.items()}


def speeds(case: dict[str, Any]) -> Any:
    """Faults `on = "speed"` as the good run's speed: times are divided by the factor."""
    faults = [fault for fault in case.get("fault", ()) if fault["on"] == "speed"]

    def of(leg: Any) -> float:
        factors = [f["factor"] for f in faults if all(getattr(leg, k) == f[k] for k in PLACE if k in f)]
        return float(factors[0]) if factors else 1.0

    return of


def stream_row(run: Any, stream: dict[str, Any]) -> tuple[RequestRow, RequestRow]:
    """(the good first answer of the candidate at c1, what the client makes of the case's bytes in its place)."""
    good = next(r for r in run.requests if (r.arm, r.concurrency, r.repetition, r.index) == ("candidate", 1, 0, 0))
    response = RawResponse(
        index=0,
        scheduled_ns=None,
        sent_ns=good.sent_ns,
        status=stream.get("status", 200),
        chunks=tuple((good.sent_ns + int(ms * MS), text.encode()) for ms, text in stream["reads"]),
        end_ns=good.sent_ns + int(max(ms for ms, _ in stream["reads"]) * MS) if stream["reads"] else None,
        error=stream.get("error"),
        content_type=stream.get("content_type", "text/event-stream"),
    )
    prompt = Prompt(index=0, token_ids=tuple(range(good.expected_prompt_tokens)), sha256=good.prompt_sha256)
    planned = next(leg for leg in run.plan.legs if leg.leg_id == good.leg_id)
    return good, to_row(response, prompt, good.expected_output_tokens, planned)


def made(build: Any, case: dict[str, Any]) -> tuple[Any, RequestRow | None]:
    run, row = build.run(speeds(case), **case.get("good", {}), **case.get("recipe", {})), None
    for fault in case.get("fault", ()):
        if fault["on"] != "speed":
            run = break_it(build, run, fault)
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


def codes(report: Report) -> set[str]:
    said = {reason.code for cell in (*report.cells, *report.tokens) for reason in cell.reasons}
    return said | {finding.code for finding in report.findings}


@pytest.mark.parametrize("folder", CASES, ids=lambda path: path.name)
def test_case(build: Any, folder: Path) -> None:
    case = load(folder)
    expect = case["expect"]
    run, row = made(build, case)
    report = judge(run)
    assert codes(report) == set(expect["codes"])
    assert report.verdict is Verdict(expect["verdict"])
    assert sorted({c.concurrency for c in report.cells if c.verdict is Verdict.VOID}) == expect.get("void", [])
    for word in expect.get("indicative", ()):
        assert any(word in reason for reason in report.not_binding_because)
    for name, value in expect.get("stream", {}).items():
        assert row is not None
        found = METRICS[name](row)
        assert (found or "") == "" if value == "absent" else found == pytest.approx(value)


@pytest.mark.parametrize("folder", CASES, ids=lambda path: path.name)
def test_a_case_is_written_as_the_readme_says(folder: Path) -> None:
    case = load(folder)
    assert set(case) <= KEYS
    assert {"title", "source", "expect"} <= set(case)
    assert case["source"] == "recorded" or case["source"].startswith("https://")
    assert ("fault" in case) != ("stream" in case)


@pytest.mark.parametrize("folder", CASES, ids=lambda path: path.name)
def test_a_void_cell_never_carries_a_ratio_anywhere(build: Any, folder: Path) -> None:
    report = judge(made(build, load(folder))[0])
    for cell in report.cells:
        if cell.verdict is Verdict.VOID:
            assert cell.reasons
            assert (cell.ratio, cell.ratio_low, cell.ratio_high) == (None,) * 3
            assert (cell.candidate_median, cell.oracle_median) == (None, None)


def test_no_ratio_of_a_void_run_reaches_a_page(build: Any) -> None:
    """A candidate 1.234 times as fast, in a run that is void as a whole, through every printer."""
    run = build.run(lambda leg: 1.234 if leg.arm == "candidate" else 1.0)
    clean = judge(run)
    void = judge(build.alter_identity(run, "oracle", kv_cache_dtype="fp8"))
    assert {c.verdict for c in void.cells} == {Verdict.VOID}
    for shown, report in ((True, clean), (False, void)):
        pages = [html.render(report), jsonfile.render(report), markdown.render(report)]
        texts = [*pages, *plots.render(report).values(), terminal.render(report, all_cells=True)]
        assert any("1.234" in text for text in texts) == shown


def test_there_are_as_many_cases_as_folders() -> None:
    folders = {path for path in FOLDER.iterdir() if path.is_dir()}
    assert set(CASES) == folders
    assert len(CASES) >= 50
