"""How much of the host's memory a leg's server took.

    host_drop_bytes = MemAvailable just before the server's start − the least of the leg

Page cache counts as available, so reading a checkpoint does not show, and on unified memory the GPU's share does: there
it is the one figure that covers all an arm holds. Only with one server at a time (`residency = "alternate"`); with both
up it would be both arms' drop. Whatever else the host did meanwhile is in it.
"""

from __future__ import annotations

from gate.observe.rows import LegRow


def host_drop_bytes(leg: LegRow) -> int | None:
    """None beside another server of the run, for an attached one, and where memory was rather freed."""
    drop = leg.host_available_drop_bytes
    return drop if drop is not None and drop > 0 else None
