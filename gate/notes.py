"""7 What a reader has to know beside the verdict and that voids nothing: where memory comes from, at which capacity."""

from __future__ import annotations

from collections.abc import Iterator

from gate.checks.evidence import Evidence
from gate.metrics import SERVER_AXES
from gate.observe import capacity
from gate.observe.rows import ARMS
from gate.units import counted

MEMORY = frozenset(axis.name for axis in SERVER_AXES)


def notes(evidence: Evidence) -> Iterator[str]:
    """One sentence each."""
    if not any(axis.name in MEMORY for c in evidence.concurrencies for axis in evidence.axes(c)):
        return
    yield from unequal_capacity(evidence)
    rows = [leg.row for leg in evidence.legs]
    silent = [arm for arm in ARMS if any(row.gpu_peak_bytes is None for row in rows if row.arm == arm)]
    if evidence.plan.recipe.gpu and silent:
        yield (
            f"the driver gives no memory by process for the {' and the '.join(silent)}: "
            "GPU memory is both arms' own word where both give one, else what their starts added to the GPUs"
        )


def short_of_capacity(evidence: Evidence) -> Iterator[str]:
    """Where the recipe limits the oracle's KV cache, it must not be the reason why the oracle is slow."""
    recipe = evidence.plan.recipe
    if recipe.oracle.kv_cache_bytes is None:
        return
    need, held = recipe.max_num_seqs * recipe.max_model_len, capacity.capacity(evidence.identity("oracle")).tokens
    if held is not None and held < need:
        yield f"the recipe leaves the oracle {held} tokens of KV cache, fewer than max_num_seqs × max_model_len, {need}"
    preempted = sum(leg.row.preemptions or 0 for leg in evidence.of_arm("oracle"))
    if preempted:
        yield f"the oracle pre-empted {counted(preempted, 'request')} under the recipe's kv_cache_bytes"


def unequal_capacity(evidence: Evidence) -> Iterator[str]:
    """Nothing where capacities are equal, or where one is not known and so cannot be set against the other."""
    known = {arm: capacity.capacity(evidence.identity(arm)) for arm in ARMS}
    if capacity.equal(known["candidate"], known["oracle"]) is False:
        told = ", ".join(f"{arm} {capacity.text(known[arm], None)}" for arm in ARMS)
        yield f"KV capacities differ ({told}): memory is not compared at equal capacity"
