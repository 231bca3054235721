"""Peak resident memory of an arm on the host, in a leg.

    peak_host_rss_bytes = max over samples of Σ over the process tree of RSS          (sampled twice a second)

Pages that processes of the tree share count once for each. Mapped checkpoint files count as far as they are resident.
"""

from __future__ import annotations

from gate.observe.rows import LegRow


def peak_host_rss_bytes(leg: LegRow) -> int | None:
    """None for an attached server, or one that ended."""
    return leg.server_peak_rss_bytes
