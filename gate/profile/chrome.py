"""4 Reads what torch.profiler exports: a Chrome trace, plain or gzipped. The engine and vLLM both write it.

Kineto names device work by category: kernel, gpu_memcpy, gpu_memset. It asks CUPTI for kernels, never for whole graphs,
so each kernel of a CUDA graph has its own event. Times are microseconds, with three decimals.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from gate.errors import StorageError
from gate.profile.activity import Activity, Trace, shape, summed

DEVICE_WORK = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})


def read(path: Path) -> Trace:
    """
    Raises:
        StorageError: unreadable, no JSON, or no Chrome trace; one line.
    """
    try:
        raw = path.read_bytes()
        document = _parsed(gzip.decompress(raw) if path.suffix == ".gz" else raw)
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0]
        raise StorageError(f"{path} cannot be read as a trace: {reason}", hint="profile again") from error
    events = document.get("traceEvents") if isinstance(document, dict) else None
    if not isinstance(events, list):
        raise StorageError(f"{path} has no traceEvents", expected="what torch.profiler exports")
    kernels, busy_us, idle_us = summed(_activities(events, path))
    devices = document.get("deviceProperties") or [{}]
    return Trace(
        kernels=kernels,
        level="node" if kernels else "none",
        busy_us=busy_us if kernels else None,
        idle_us=idle_us if kernels else None,
        tool=f"torch.profiler (schema {document.get('schemaVersion', '?')})",
        device=devices[0].get("name"),
    )


def _parsed(raw: bytes) -> Any:
    """Kineto writes its JSON by hand, with other people's names in it: NaN, a control character or a byte that is no
    UTF-8 is no reason to lose a window. orjson refuses them, and is what is quick. Raises ValueError.
    """
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return json.loads(raw.decode("utf-8", "replace"), strict=False)


def _activities(events: list[Any], path: Path) -> Iterator[Activity]:
    """Counted from the first: of microseconds since some far day, in nanoseconds, a float64 keeps no fraction."""
    first_us: float | None = None
    for event in events:
        if not isinstance(event, dict) or event.get("ph") != "X" or event.get("cat") not in DEVICE_WORK:
            continue
        try:
            start_us, took_us = float(event["ts"]), float(event["dur"])
            name = str(event["name"])
        except (KeyError, TypeError, ValueError) as error:
            raise StorageError(f"{path} has an event without name, ts or dur", hint="profile again") from error
        first_us = start_us if first_us is None else first_us
        start_us -= first_us
        arguments = event.get("args") or {}
        grid, block = (_triple(arguments.get(key)) for key in ("grid", "block"))
        yield Activity(start_us * 1e3, (start_us + took_us) * 1e3, name, grid, block)


def _triple(value: object) -> str:
    return shape(*value) if isinstance(value, list) and len(value) == 3 else ""
