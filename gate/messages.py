"""Everything a run says while it goes, and every warning, in one place."""

from __future__ import annotations

ARM_DIED = "died"
ARM_ANSWERS_NOTHING = "answered no request"
INTERRUPTED = "interrupted: stopping both servers; what was measured so far is kept"


def starting(arm: str, kind: str, url: str) -> str:
    return f"attaching the {arm} at {url}" if kind == "url" else f"starting the {arm} ({kind}) at {url}"


def restarting(arm: str, reason: str) -> str:
    return f"the {arm} {reason}: restarting it once for the legs that follow"


def planned(plan_id: str, legs: int, first: str) -> str:
    return f"plan {plan_id[:12]}: {legs} legs, the {first} opens"


def leg(order: int, of: int, arm: str, concurrency: int, repetition: int) -> str:
    return f"leg {order + 1}/{of}: {arm} c{concurrency} r{repetition}"


def leg_failed(leg_id: str, failed: int, requests: int, first_error: str) -> str:
    return f"{leg_id}: {failed} of {requests} requests failed, first: {first_error}"


def cut_short(done: int, planned: int) -> str:
    return f"{done} of {planned} legs measured: the report is partial; gate resume continues with the next leg"


def margins(count: int) -> str:
    return f"asking the oracle for its margin at {count} first divergences"


def report_at(path: str) -> str:
    return f"report: {path}"
