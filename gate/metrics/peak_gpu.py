"""Peak device memory of an arm in a leg.

    peak_gpu_bytes = max over samples of Σ over the process tree and all GPUs of used memory     (NVML, per process)

Where the driver tells no figure by process (unified memory, another pid namespace) both arms' own word takes its place,
and where one has none, what each arm's start added to the memory in use on the GPUs, which the lock keeps others away
from. Two sources are never set against each other (gate/checks/evidence.py). All but the own word include the CUDA
context and every reserved byte, used or not, and so the whole KV cache: arms are comparable at equal KV capacity only.
"""

from __future__ import annotations

from gate.observe.rows import LegRow


def peak_gpu_bytes(leg: LegRow) -> int | None:
    """By process, as the driver has it; None where it tells nothing."""
    return leg.gpu_peak_bytes


def reported_gpu_bytes(leg: LegRow) -> int | None:
    """By the server's own word; None where it has none, or says 0: no server on a GPU holds none."""
    return leg.gpu_reported_bytes or None


def started_gpu_bytes(leg: LegRow) -> int | None:
    """What the server's start added to the memory in use; later growth is not in it. None where it fell."""
    return leg.gpu_start_bytes if leg.gpu_start_bytes is not None and leg.gpu_start_bytes > 0 else None
