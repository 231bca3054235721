"""The machine was restarted between the two legs of a repetition.

What it does
    Voids both legs of a repetition that ran under different boot ids. Repetitions of a resumed run that lie on either
    side of a restart stand: each compares two legs of one boot.
Why
    SM clocks and the state of host memory differ from boot to boot: a byte-identical kernel has come out 9.7 % apart,
    and a ratio has moved from 0.76 to 0.83 with nothing changed.
Deciding numbers
    The boot ids of the two legs; they must be equal.
What to do
    Measure this concurrency again; what ran within one boot stands.
"""

from __future__ import annotations

from collections.abc import Iterator

from gate.checks.base import void_leg
from gate.checks.evidence import Evidence
from gate.observe.rows import Finding, LegRow

CODE = "boot-changed"
TIMING_ONLY = True
CONSEQUENCE = False
HINT = "measure this concurrency again; repetitions that ran within one boot stand"


def rebooted(one: LegRow, other: LegRow) -> bool:
    return None not in (one.boot_id, other.boot_id) and one.boot_id != other.boot_id


def check(evidence: Evidence) -> Iterator[Finding]:
    for concurrency in evidence.concurrencies:
        for candidate, oracle in evidence.pairs(concurrency):
            if rebooted(candidate.row, oracle.row):
                message = (
                    f"repetition {candidate.row.repetition} ran in boot {candidate.row.boot_id} (candidate) and "
                    f"{oracle.row.boot_id} (oracle); expected one"
                )
                yield from (void_leg(CODE, leg, message, HINT) for leg in (candidate, oracle))
