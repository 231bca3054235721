"""6 What a device's memory can give, the denominator of every share: measured where there is a figure, else nominal."""

from __future__ import annotations

MEASURED = (("H200", 4.42e12, "a sum over 2 GB on one H200 (docs/kernels.md)"),)
"""(part of the device's name, bytes/s, source)."""
NOMINAL = (("H200", 4.8e12), ("H100", 3.35e12), ("GB10", 273e9))
"""From the datasheets, for devices whose trace does not tell."""
COMPUTE = (("H200", 790e12, "a bf16 product on random data on one H200"),)
"""(part of the device's name, bf16 FLOP/s, source): the ceiling of the roofline plot."""


def roof(device: str | None, traced_bytes_per_s: float | None, given: float | None) -> tuple[float | None, str]:
    """(bytes/s, where it comes from); None where nothing is known, and then there are no shares."""
    if given is not None:
        return given, "given on the command line"
    for part, bytes_per_s, source in MEASURED:
        if device is not None and part in device:
            return bytes_per_s, source
    if traced_bytes_per_s is not None:
        return traced_bytes_per_s, "nominal, from the trace"
    for part, bytes_per_s in NOMINAL:
        if device is not None and part in device:
            return bytes_per_s, "nominal, from the datasheet"
    return None, ""


def compute(device: str | None) -> float | None:
    return next((flops for part, flops, _ in COMPUTE if device is not None and part in device), None)
