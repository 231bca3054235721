"""Tensors beside memory without access: a kernel in the emulator that reads or writes outside of one is killed."""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import multiprocessing
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

PAGE = mmap.PAGESIZE
PROT_NONE = 0


def beside_edge(tensor: Tensor, *, end: bool) -> Tensor:
    """A copy whose last byte, or whose first, lies beside a page without access."""
    size = tensor.numel() * tensor.element_size()
    pages = -(-size // PAGE)
    area = mmap.mmap(-1, (pages + 2) * PAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(area))
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    for page in (0, pages + 1):
        if protect(ctypes.c_void_p(start + page * PAGE), ctypes.c_size_t(PAGE), PROT_NONE):
            raise OSError(ctypes.get_errno(), "mprotect")
    offset = PAGE + (pages * PAGE - size if end else 0)
    copy = torch.frombuffer(area, dtype=tensor.dtype, count=tensor.numel(), offset=offset).view(tensor.shape)
    return copy.copy_(tensor)


def exit_code(run: Callable[[], object]) -> int | None:
    """Of a process that does it: 0, or minus the signal that killed it."""

    def quietly() -> None:
        faulthandler.disable()
        run()

    process = multiprocessing.get_context("fork").Process(target=quietly)
    with warnings.catch_warnings():  # Python 3.12 warns of any fork beside threads; this child needs none of them
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    process.join()
    return process.exitcode
