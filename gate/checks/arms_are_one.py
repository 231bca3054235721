"""Both arms are one server, or the candidate is the oracle under another name.

What it does
    Voids the run when both arms have one address, one process, or the same start time and version; or when an arm
    planned as our engine does not call itself one and reports the oracle's version.
Why
    An A/B of two arms that were one binary says "equal" and means nothing; a second port of the same server, or a proxy
    in front of it, answers just as the oracle does.
Deciding numbers
    Addresses (every name of the loopback is one); pids; start times within 0.05 s (SAME_START_S: an arm is started when
    the other one answers, seconds later) with equal versions; `engine` and version of /version.
What to do
    Look at what listens on the candidate's port, and at its log. Two attached servers of one version that a script
    started in the same moment look like one too: start the second a second later.
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from gate.checks.evidence import Evidence
from gate.observe.rows import Finding, Identity
from gate.plan import ArmPlan

CODE = "arms-are-one"
TIMING_ONLY = False
CONSEQUENCE = False
HINT = "look at what listens on the candidate's port, and at its log"

SAME_START_S = 0.05
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0"})


def address(url: str) -> tuple[str | None, int]:
    parts = urlsplit(url)
    host = "loopback" if parts.hostname in LOOPBACK else parts.hostname
    return host, parts.port or (443 if parts.scheme == "https" else 80)


def started_s(start_id: str) -> float | None:
    """Unix time in `<pid>@<time>` or `attached@<time>`; None where a server reports none."""
    try:
        return float(start_id.partition("@")[2])
    except ValueError:
        return None


def one_process(evidence: Evidence) -> str | None:
    """How the records show that the arms were one process."""
    ours, theirs = evidence.of_arm("candidate"), evidence.of_arm("oracle")
    shared = {leg.row.server_start_id for leg in ours} & {leg.row.server_start_id for leg in theirs}
    known = sorted(start for start in shared if "@" in start)
    if known:
        return f"both arms were the process {known[0]}"
    versions = {arm.version if arm else None for arm in (evidence.identity("candidate"), evidence.identity("oracle"))}
    if len(versions) > 1 or None in versions:
        return None
    for mine in ours:
        for other in theirs:
            left, right = started_s(mine.row.server_start_id), started_s(other.row.server_start_id)
            if left is not None and right is not None and abs(left - right) <= SAME_START_S:
                return f"both arms say version {versions.pop()} and started within {abs(left - right):.2f} s"
    return None


def posing(planned: ArmPlan, candidate: Identity | None, oracle: Identity | None) -> str | None:
    """The version that both report, where the plan says engine and the server does not."""
    if planned.kind != "engine" or candidate is None or oracle is None or "engine" in candidate.extra:
        return None
    return candidate.version if candidate.version == oracle.version else None


def check(evidence: Evidence) -> Iterator[Finding]:
    candidate, oracle = evidence.plan.candidate, evidence.plan.oracle
    process = one_process(evidence)
    version = posing(candidate, evidence.identity("candidate"), evidence.identity("oracle"))
    if address(candidate.url) == address(oracle.url):
        message = f"both arms are at {oracle.url}; expected two servers"
    elif process is not None:
        message = f"{process}; expected two servers"
    elif version is not None:
        message = f"the candidate does not say that it is the engine, and has the oracle's version {version}"
    else:
        return
    yield Finding(code=CODE, message=message, hint=HINT)
