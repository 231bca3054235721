"""4 What a start looked like: page cache and memory before the spawn, the stamps, memory at ready."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from gate.arm.process import ServerProcess
from gate.observe import memory, pagecache
from gate.observe.gpu import used_bytes
from gate.observe.pagecache import Residency
from gate.observe.rows import Arm, StartRow
from gate.plan import ArmPlan


@dataclass(frozen=True, slots=True)
class Before:
    """The host just before a spawn."""

    started_at: str
    """ISO 8601 UTC."""
    available_bytes: int
    cards: tuple[str, ...]
    """UUIDs of the GPUs of the run."""
    gpu_used_bytes: int | None
    """On these; None without one."""
    cache: Residency | None
    """Of the checkpoint's files; None where they cannot be looked at."""


def look(plan: ArmPlan, cards: tuple[str, ...]) -> Before:
    """Reads nothing in: a look takes some ms for each GB and changes nothing."""
    return Before(
        started_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        available_bytes=memory.available_bytes(),
        cards=cards,
        gpu_used_bytes=used_bytes(cards),
        cache=_cache(Path(plan.checkpoint)),
    )


def row(arm: Arm, server: ServerProcess, before: Before, repetition: int) -> StartRow:
    """The record of a server that is ready."""
    tree = memory.tree(server.pid)
    cache, used = before.cache, used_bytes(before.cards)
    return StartRow(
        arm=arm,
        start_id=server.start_id,
        started_at=before.started_at,
        repetition=repetition,
        spawn_ns=server.stamps.spawn_ns,
        port_open_ns=server.stamps.port_open_ns,
        ready_ns=server.stamps.ready_ns,
        page_cache=cache.state if cache else None,
        checkpoint_files_bytes=cache.size_bytes if cache else None,
        checkpoint_resident_bytes=cache.resident_bytes if cache else None,
        available_before_bytes=before.available_bytes,
        available_drop_bytes=before.available_bytes - memory.available_bytes(),
        gpu_growth_bytes=None if used is None or before.gpu_used_bytes is None else used - before.gpu_used_bytes,
        load_peak_rss_bytes=memory.own_peaks_bytes(tree),
    )


def _cache(folder: Path) -> Residency | None:
    try:
        files = pagecache.files_of(folder)
        return pagecache.residency(files) if files else None
    except OSError:
        return None
