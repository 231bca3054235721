"""5 What a server holds in memory and runs, as far as it says so itself; shown in reports beside the tokens.

Our engine reports a census of its weights in /version, and which of its kernels were called. vLLM reports nothing of
the kind over HTTP; what its log says of its kernels and of the memory that its weights took is read where the gate
started it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gate.observe.rows import Identity
from gate.observe.settings import manifest
from gate.report.model import Build, Residency

GIB = 2**30
BETWEEN = "; "
"""Between kernels in a server's log entry (observe/serverlog.py)."""


def residency(identity: Identity | None) -> Residency | None:
    """None where the server says nothing of it."""
    if identity is None:
        return None
    made_of, logged = manifest(identity), identity.extra
    kernels = logged.get("log.kernels")
    called = _names(made_of, "kernels_called") or None
    found = Residency(
        shipped_bytes=_count(made_of.get("shipped_bytes")),
        resident_bytes=_count(made_of.get("resident_bytes")) or _gib(logged.get("log.weights_gib")),
        copy_bytes=_count(made_of.get("dequantised_copy_bytes")),
        widened=_names(made_of, "widened_modules"),
        kernels=called if kernels is None else tuple(kernels.split(BETWEEN)),
        compiled=_names(made_of, "kernels"),
        reference_ops=_names(made_of, "reference_ops"),
    )
    return None if found == Residency() else found


def build(made_of: Mapping[str, Any]) -> Build:
    """Which sources and which compiled kernels a manifest names; nothing of a server that has none."""
    compiled = made_of.get("kernel_build")
    kernels = compiled if isinstance(compiled, dict) else {}
    said = (made_of.get("source_sha256"), kernels.get("source_sha256"), kernels.get("arch"))
    sources, kernel_sources, arch = (one if isinstance(one, str) else None for one in said)
    return Build(source_sha256=sources, kernel_source_sha256=kernel_sources, kernel_arch=arch)


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _names(made_of: Mapping[str, Any], key: str) -> tuple[str, ...] | None:
    value = made_of.get(key)
    return tuple(map(str, value)) if isinstance(value, list) else None


def _gib(text: str | None) -> int | None:
    """vLLM logs GiB with two decimals or so; None where it is no number."""
    try:
        return None if text is None else int(float(text) * GIB)
    except (ValueError, OverflowError):
        return None
