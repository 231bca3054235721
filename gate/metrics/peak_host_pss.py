"""Peak proportional memory of an arm on the host, in a leg.

    peak_host_pss_bytes = max(before, after the load) of Σ over the process tree of PSS     (smaps_rollup)

A shared page counts for each of its users by its share, so the sum over a tree is what the tree really holds. Reading
it walks the page tables, 10 ms per 3 GB, with the server's memory map locked: never while it is under load.
"""

from __future__ import annotations

from gate.observe.rows import LegRow


def peak_host_pss_bytes(leg: LegRow) -> int | None:
    """None for an attached server, another user's, or one that ended."""
    return leg.server_peak_pss_bytes
