"""Peak device memory of an arm in a leg.

    peak_gpu_bytes = max over samples of Σ over the process tree and all GPUs of used memory     (NVML, per process)

Where the driver tells no figure by process (unified memory, another pid namespace) both arms' own word takes its place:
the two sources are never set against each other (gate/checks/evidence.py). What the driver counts includes the CUDA
context and every reserved byte, used or not, and so the whole KV cache: arms are comparable at equal KV capacity only.
"""

from __future__ import annotations

from gate.observe.rows import LegRow


def peak_gpu_bytes(leg: LegRow) -> int | None:
    """By process, as the driver has it; None where it tells nothing."""
    return leg.gpu_peak_bytes


def reported_gpu_bytes(leg: LegRow) -> int | None:
    """By the server's own word; None where it has none."""
    return leg.gpu_reported_bytes
