"""Where the model runs: the device, its free memory, threads; refusing where kernels are missing."""

from __future__ import annotations

import os

import psutil
import torch

from engine.errors import PreconditionError
from engine.ops import NAMES, missing_kernels

WEIGHT_BYTES_PER_THREAD = 16 * 2**20
"""A thread more per this much of weights: below it, handing out work costs more than the work.

Measured on two cores with a checkpoint of 6 MB, four prompts of 128 tokens: with one thread a prefill step takes 88 ms,
with two 52 ms on an idle machine, but ten times as long as with one where other processes want the cores too, since
OpenMP's threads spin while they wait for each other; told to sleep instead, two threads are slower than one. A decode
step takes 8 ms with either.
"""


def resolve_device(name: str, allow_reference: bool, ops: tuple[str, ...] = NAMES) -> torch.device:
    """ "auto" is CUDA where there is one. Raises PreconditionError naming those of `ops` it has no kernel for."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise PreconditionError("device cuda: torch sees no CUDA device; use --device cpu, or install a CUDA torch")
    missing = missing_kernels(name, ops)
    if missing and not allow_reference:
        raise PreconditionError(
            f"device {name}: no kernel for {', '.join(missing)}; --allow-reference runs their slow torch references"
        )
    return torch.device(name)


def free_bytes(device: torch.device) -> int:
    """Memory that can still be allocated."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return psutil.virtual_memory().available


def limit_threads(weight_bytes: int) -> int:
    """Set torch's threads for a model of this size on a CPU: all cores but one, which the HTTP side needs."""
    cores = len(os.sched_getaffinity(0))
    threads = max(1, min(cores - 1, weight_bytes // WEIGHT_BYTES_PER_THREAD))
    torch.set_num_threads(threads)
    return threads
