"""3 Read a safetensors file's header, without torch, and refuse a file that is truncated, corrupt or not one at all."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from gate.errors import CheckpointError

DTYPE_BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
}
MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""
HINT = "download or copy this file again"


def tensor_names(path: Path) -> frozenset[str]:
    """Names of the tensors in a file whose header is whole and whose size is exactly what the header says.

    Raises CheckpointError with what was found and expected.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        length = int.from_bytes(prefix, "little")
        if len(prefix) < 8 or not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
            raise _corrupt(path, f"{size} bytes with a header length of {length}", "a safetensors file")
        raw = file.read(length)
    try:
        header = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise _corrupt(path, f"its header is not JSON ({error})", "a safetensors file") from error
    if not isinstance(header, dict):
        raise _corrupt(path, "its header is not a table of tensors", "a safetensors file")
    header.pop("__metadata__", None)
    spans = sorted(_span(path, name, entry) for name, entry in header.items())
    end = 0
    for start, stop, name in spans:
        if start != end:
            raise _corrupt(path, f"{name} starts at byte {start} of the data", f"{end}, where the one before it ends")
        end = stop
    if size != 8 + length + end:
        raise _corrupt(path, f"{size} bytes", f"{8 + length + end} by its header")
    return frozenset(header)


def _span(path: Path, name: str, entry: Any) -> tuple[int, int, str]:
    """(first byte, byte after the last, name) of one tensor."""
    try:
        start, stop = (int(offset) for offset in entry["data_offsets"])
        bits = DTYPE_BITS[entry["dtype"]] * math.prod(int(size) for size in entry["shape"])
    except (TypeError, KeyError, ValueError) as error:
        raise _corrupt(path, f"tensor {name} is described by {entry!r}", "dtype, shape, data_offsets") from error
    if bits % 8 or stop - start != bits // 8:
        raise _corrupt(path, f"{name} has {stop - start} bytes", f"{bits / 8:g} for {entry['dtype']} {entry['shape']}")
    return start, stop, name


def _corrupt(path: Path, found: str, expected: str) -> CheckpointError:
    return CheckpointError(f"{path} is truncated or corrupt: {found}", expected=expected, hint=HINT)
