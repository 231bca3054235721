"""From a file to device memory through two pinned buffers: reading and copying overlap, and host memory is fixed.

Rejected: a host tensor of each weight's size, whose fresh pages cost more time than the read, and whose pageable copy
goes through a staging buffer of the driver's own anyway.
"""

from __future__ import annotations

from io import FileIO

import torch
from torch import Tensor

PIECE_BYTES = 32 * 2**20


class Staging:
    """One per device; not thread-safe."""

    def __init__(self, device: torch.device, piece_bytes: int = PIECE_BYTES) -> None:
        pinned = device.type == "cuda"
        self._buffers = [torch.empty(piece_bytes, dtype=torch.uint8, pin_memory=pinned) for _ in range(2)]
        self._views = [memoryview(buffer.numpy().data) for buffer in self._buffers]
        self._copied: list[torch.cuda.Event | None] = [None, None]
        self._device = device
        self._turn = 0

    def read(self, file: FileIO, nbytes: int) -> Tensor | None:
        """The next nbytes of `file` as uint8 [nbytes] on the device; None where the file ends before."""
        out = torch.empty(nbytes, dtype=torch.uint8, device=self._device)
        done = 0
        while done < nbytes:
            turn, self._turn = self._turn, 1 - self._turn
            buffer, view, copied = self._buffers[turn], self._views[turn], self._copied[turn]
            if copied is not None:
                copied.synchronize()
            count = file.readinto(view[: nbytes - done])
            if not count:
                return None
            out[done : done + count].copy_(buffer[:count], non_blocking=True)
            if self._device.type == "cuda":
                self._copied[turn] = torch.cuda.current_stream(self._device).record_event()
            done += count
        return out
