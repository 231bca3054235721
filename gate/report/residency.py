"""8 What both arms hold in memory and run, by their own word, as text."""

from __future__ import annotations

from gate.report.model import ArmSummary, Build, Residency
from gate.units import DASH, counted

MB = 10**6
DIGITS = 12
"""Shown of a digest."""


def weights_text(candidate: ArmSummary, oracle: ArmSummary) -> str | None:
    """`candidate 5.993 MB resident, 5.849 MB shipped …; oracle –`; None where neither says anything."""
    arms = (("candidate", candidate), ("oracle", oracle))
    if all(arm.residency is None or _weights(arm.residency) == DASH for _, arm in arms):
        return None
    return "; ".join(f"{name} {DASH if arm.residency is None else _weights(arm.residency)}" for name, arm in arms)


def kernels_text(candidate: ArmSummary, oracle: ArmSummary) -> str | None:
    """Kernels that ran or were chosen, by each arm's word; what was compiled where nothing says which of it ran."""
    arms = (("candidate", candidate), ("oracle", oracle))
    told = [f"{name}: {_kernels(arm)}" for name, arm in arms if _kernels(arm)]
    return "; ".join(told) or None


def _weights(held: Residency) -> str:
    parts = [] if held.resident_bytes is None else [f"{held.resident_bytes / MB:,.3f} MB resident"]
    if held.shipped_bytes is not None:
        parts.append(f"{held.shipped_bytes / MB:,.3f} MB shipped")
    if held.copy_bytes:
        parts.append(f"{held.copy_bytes / MB:,.3f} MB of dequantised copies")
    if held.widened is not None:
        parts.append(f"{counted(len(held.widened), 'module')} wider than shipped")
    return ", ".join(parts) or DASH


def _kernels(arm: ArmSummary) -> str:
    if arm.residency is None:
        return ""
    labelled = (
        ("", arm.residency.kernels),
        ("compiled: ", None if arm.residency.kernels else arm.residency.compiled),
        ("on the reference: ", arm.residency.reference_ops),
    )
    return ", ".join(f"{label}{', '.join(names)}" for label, names in labelled if names)


def build_text(made: Build) -> str | None:
    """`sources 70aa2776018f, kernels 5606b3266233 for sm_90a`; None where nothing is known."""
    parts = [] if made.source_sha256 is None else [f"sources {made.source_sha256[:DIGITS]}"]
    if made.kernel_source_sha256 is not None or made.kernel_arch is not None:
        sources = DASH if made.kernel_source_sha256 is None else made.kernel_source_sha256[:DIGITS]
        parts.append(f"kernels {sources} for {made.kernel_arch or DASH}")
    return ", ".join(parts) or None
