"""3 Read a safetensors file's header, without torch, and refuse a file that is truncated, corrupt or not one at all."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeGuard

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
MAX_SHOWN = 200
"""Characters of a message that come from the file: a header may be megabytes, and one line is one line."""
HINT = "download or copy this file again"
Span = tuple[int, int, str]
"""(first byte, byte after the last, name) of one tensor."""


def tensor_names(path: Path) -> frozenset[str]:
    """Names of the tensors in a file. Raises CheckpointError as tensors() does."""
    return frozenset(tensors(path))


def tensors(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Name -> (dtype, shape) of a file whose header is whole and whose size is exactly what the header says.

    Raises CheckpointError with what was found and expected.
    """
    try:
        size = path.stat().st_size
        if not path.is_file():  # a pipe would be waited for without end
            raise CheckpointError(f"{path} is no file", expected="a safetensors file", hint=HINT)
        with path.open("rb") as file:
            prefix = file.read(8)
            length = int.from_bytes(prefix, "little")
            if len(prefix) < 8 or not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
                raise _corrupt(path, f"{size} bytes with a header length of {length}", "a safetensors file")
            raw = file.read(length)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}", hint=HINT) from error
    header = _json(path, raw)
    header.pop("__metadata__", None)
    end = 0
    for start, stop, name in sorted(_span(path, name, entry) for name, entry in header.items()):
        if start != end:
            raise _corrupt(
                path, f"{_cut(name)} starts at byte {start} of the data", f"{end}, where the one before it ends"
            )
        end = stop
    if size != 8 + length + end:
        raise _corrupt(path, f"{size} bytes", f"{8 + length + end} by its header")
    return {name: (entry["dtype"], tuple(entry["shape"])) for name, entry in header.items()}


def _json(path: Path, raw: bytes) -> dict[str, Any]:
    """The format asks for UTF-8 and for every key once; Python alone takes other encodings, and the last of two."""

    def once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
            raise ValueError(f"{_cut(twice)!r} twice")
        return made

    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=once)
        for name in header:
            name.encode()
    except (ValueError, RecursionError) as error:
        raise _corrupt(path, f"its header is not JSON ({_cut(error)})", "a safetensors file") from error
    except (TypeError, AttributeError) as error:
        raise _corrupt(path, "its header is not a table of tensors", "a safetensors file") from error
    if not isinstance(header, dict):
        raise _corrupt(path, "its header is not a table of tensors", "a safetensors file")
    return header


def _span(path: Path, name: str, entry: Any) -> Span:
    told: dict[str, Any] = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = (told.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or not _counts(shape) or not _counts(offsets) or len(offsets) != 2:
        raise _corrupt(path, f"tensor {_cut(name)} is described by {_cut(repr(entry))}", "dtype, shape, data_offsets")
    if dtype not in DTYPE_BITS:
        raise CheckpointError(
            f"{path}: tensor {_cut(name)} has dtype {_cut(repr(dtype))}",
            expected=f"one of {', '.join(DTYPE_BITS)}",
            hint="a newer format than this gate reads, or another file: " + HINT,
        )
    start, stop = offsets
    bits = DTYPE_BITS[dtype] * math.prod(shape)
    if bits != 8 * (stop - start):
        wanted = f"{bits / 8:.{1 if bits % 8 else 0}f}" if bits < 2**53 else "more than any file holds"
        raise _corrupt(path, f"{_cut(name)} has {stop - start} bytes", f"{wanted} for {dtype} {_cut(shape)}")
    return start, stop, name


def _counts(value: object) -> TypeGuard[list[int]]:
    """A list of numbers of 63 bits: true is none of them, nor is 3.0."""
    return isinstance(value, list) and all(type(number) is int and 0 <= number < 2**63 for number in value)


def _cut(text: object) -> str:
    shown = str(text)
    return shown if len(shown) <= MAX_SHOWN else shown[:MAX_SHOWN] + "…"


def _corrupt(path: Path, found: str, expected: str) -> CheckpointError:
    return CheckpointError(f"{path} is truncated or corrupt: {found}", expected=expected, hint=HINT)
