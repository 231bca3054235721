"""Everything a run says while it goes, and every warning, in one place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from gate.errors import GateError
from gate.observe.rows import Finding
from gate.units import counted, duration, gib

ARM_DIED = "died"
ARM_ANSWERS_NOTHING = "answered no request"
HOST_BUSY = "host-busy"
"""Code of preflight's finding (preflight/host_idle.py)."""
INTERRUPTED = "interrupted: stopping both servers; what was measured so far is kept"

Say = Callable[[str], None]


def quiet(_text: str) -> None:
    """A Say of who has nobody to tell."""


def starting(arm: str, kind: str, url: str, expected_s: float | None) -> str:
    """expected_s: what the same server took on this host before; no figure is made up where there is none."""
    if kind == "url":
        return f"attaching the {arm} at {url}"
    likely = "" if expected_s is None else f"; it took {duration(expected_s)} on this host before"
    return f"starting the {arm} ({kind}) at {url}{likely}"


def restarting(arm: str, reason: str) -> str:
    return f"the {arm} {reason}: restarting it once for the legs that follow"


def planned(plan_id: str, legs: int, first: str) -> str:
    return f"plan {plan_id[:12]}: {counted(legs, 'leg')}, the {first} opens"


def begun(run_id: str, findings: Iterable[Finding]) -> Iterator[str]:
    """The run's name, and at once what its report would say of the machine only after minutes."""
    yield f"run {run_id}"
    for finding in findings:
        yield f"note: {finding.message}{'; ' if finding.hint else ''}{finding.hint}"


def indicative(why: Iterable[str]) -> Iterator[str]:
    """What the command line leaves out of the recipe, before it costs an hour."""
    yield from (f"note: the result will be indicative: {one}" for one in why)


def busy(findings: Iterable[Finding]) -> Iterator[str]:
    """What a busy host does to a run that is timed."""
    if any(finding.code == HOST_BUSY for finding in findings):
        yield (
            "note: beside such load all cells but tokens will very likely be VOID (foreign-load), after the whole time "
            "of the run; end it with Ctrl-C, find the other work with top, and begin again without it; gate tokens "
            "judges tokens alone, beside any load"
        )


def nothing_measured(run_id: str) -> str:
    return f"no leg was measured; gate resume {run_id} begins with the first"


def leg(number: int, of: int, arm: str, concurrency: int, repetition: int) -> str:
    return f"leg {number}/{of}: {arm} c{concurrency} r{repetition}"


def start_of(order: int, of: int, arm: str, cache: str, resident_bytes: int) -> str:
    return f"start {order + 1}/{of}: {arm}, checkpoint {cache}, {gib(resident_bytes)} of it in the page cache"


def sweep_leg(order: int, of: int, arm: str, point: str, repetition: int) -> str:
    return f"{order + 1}/{of}: {arm} {point} r{repetition}"


def leg_failed(leg_id: str, failed: int, requests: int, first: str) -> str:
    return f"{leg_id}: {failed} of {requests} requests failed, first: {first}"


def warmup_failed(leg_id: str, failed: int, first: str) -> str:
    return f"{leg_id}: {counted(failed, 'warm-up request')} failed, first: {first}"


def cut_short(done: int, planned: int, why: str, run_id: str) -> str:
    if done == planned:
        return f"{_because(why)}{counted(planned, 'leg')} measured and judged; gate resume {run_id} completes it"
    return f"{_because(why)}{done} of {planned} legs measured and judged; gate resume {run_id} goes on with the next"


def resumed(done: int, planned: int) -> Finding:
    return Finding(
        code="resumed",
        message=f"resumed after {done} of {planned} legs: servers and host may not be as they were before",
        hint="run again without interruption",
    )


def margins(count: int) -> str:
    differ = "1 answer that differs" if count == 1 else f"{count} answers that differ"
    return f"asking the oracle once more: its own repeats, and {differ} from its own"


def calibrating(number: int, of: int) -> str:
    return f"A/A gate {number} of {of}: both arms are the same"


def tokens_planned(plan_id: str, loads: int, repeats: int) -> str:
    often = counted(repeats, "time")
    return f"plan {plan_id[:12]}: {counted(loads, 'load')}, once on the candidate and {often} on the oracle"


def tokens_load(number: int, of: int, arm: str, load: str, run: str, answers: int) -> str:
    return f"load {number}/{of}: {arm} {load}, run {run}, {counted(answers, 'answer')}"


def tokens_forcing(count: int) -> str:
    return f"sending {counted(count, 'answer')} back to the oracle: what it thinks of each id"


def tokens_opinions(count: int, took_s: float) -> str:
    return f"{counted(count, 'answer')} sent back to the oracle in {duration(took_s)}"


def tokens_cut_short(why: str, run_id: str) -> str:
    return f"{_because(why)}gate resume {run_id} goes on with the next load"


def _because(why: str) -> str:
    """Empty for Ctrl-C, which says nothing of itself."""
    return f"{why}; " if why else ""


def derived_anew(doubt: GateError) -> str:
    expected = f"; expected {doubt.expected}" if doubt.expected else ""
    return f"{doubt.found}{expected}; it was derived anew from the records, and sealed"


def passed_over(run_id: str, as_what: str, error: GateError) -> str:
    return f"{run_id} is passed over as {as_what}: {error}"


def report_at(path: str) -> str:
    return f"report: {path}"
