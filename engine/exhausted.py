"""What running out of memory looks like, from torch, the driver, a library or our own kernels."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

SAYINGS = ("out of memory", "can't allocate memory", "ALLOC_FAILED", "CUDA error 2:")
"""In a bare RuntimeError: of the driver, of torch's CPU allocator, of cuBLAS, of a KernelError (2 is
cudaErrorMemoryAllocation)."""

SHOWN_CHARS = 200


def out_of_memory(error: BaseException) -> bool:
    """Whether less to do at once could have gone well. The device and what lies on it are as they were."""
    torch: Any = sys.modules.get("torch")  # not imported for this: above the runner there is no torch
    if isinstance(error, MemoryError) or (torch is not None and isinstance(error, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(saying in str(error) for saying in SAYINGS)


def attempt(call: Callable[[], T]) -> tuple[T | None, str | None]:
    """What it returned, or in one line how it ran out of memory. Any other error is raised.

    The error itself ends here: its traceback holds every tensor of the step, and so the memory that is wanted back.
    """
    try:
        return call(), None
    except Exception as error:
        if not out_of_memory(error):
            raise
        return None, " ".join(f"{type(error).__name__}: {error}".split())[:SHOWN_CHARS]
