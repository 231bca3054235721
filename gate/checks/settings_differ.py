"""The arms run with settings that make them do different work.

What it does
    Compares the effective settings of both running servers key by key and voids the run where one that must be equal
    differs: max_num_seqs, dtype, quantisation, speculative decoding, parallelism, recurrent-state dtype, scheduling
    policy, and the sampling defaults that move a greedy choice. Differences in settings that each arm may choose for
    itself keep the grid from binding unless the recipe's protocol.may_differ names them.
Why
    A past pass came from temperature 1 against 0 and a token budget of 8192 against 2048; a claim that the oracle keeps
    its state in BF16 stood until it was read back. Two command lines that look alike resolve differently.
Deciding numbers
    Each key of both arms as read back over HTTP or from the start of the log, in one spelling; a value of one side only
    is unknown, not a fault, and is told with what keeps the grid from binding.
What to do
    Set the key on both arms in the recipe; where a server does not honour it, its log says why.
"""

from __future__ import annotations

from collections.abc import Iterator

from gate.checks.evidence import Evidence
from gate.observe.rows import Finding, Identity
from gate.observe.settings import SETTINGS, effective

CODE = "settings-differ"
TIMING_ONLY = False
CONSEQUENCE = False
HINT = "set it on both arms in the recipe; where a server does not honour it, its log says why"


def differences(candidate: Identity | None, oracle: Identity | None, *, equal: bool) -> dict[str, tuple[str, str]]:
    """Setting -> (candidate's, oracle's), of those that must be equal, or of those that may differ; both are known."""
    ours, theirs = effective(candidate), effective(oracle)
    found = {}
    for setting in [one for one in SETTINGS if one.equal == equal]:
        left, right = ours[setting.name], theirs[setting.name]
        if left is not None and right is not None and left != right:
            found[setting.name] = (left, right)
    return found


def check(evidence: Evidence) -> Iterator[Finding]:
    found = differences(evidence.identity("candidate"), evidence.identity("oracle"), equal=True)
    if found:
        told = "; ".join(
            f"{name} is {ours} in the candidate, {theirs} in the oracle" for name, (ours, theirs) in found.items()
        )
        yield Finding(code=CODE, message=f"{told}; expected equal ones", hint=HINT)
