"""What reading reaches on a device: the denominator of a bench's shares."""

from __future__ import annotations

import torch

ROOFS_BYTES_PER_S = {"H200": 4.42e12}
"""Part of a device's name -> what a sum over 2 GB reached there (docs/kernels.md)."""


def roof_of(device: torch.device) -> float | None:
    """Bytes a second; None where it has not been measured."""
    name = torch.cuda.get_device_name(device)
    return next((roof for part, roof in ROOFS_BYTES_PER_S.items() if part in name), None)
