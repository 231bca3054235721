"""The page cache: cold and warm are proven page by page, and what cannot be proven is neither."""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from gate.observe import pagecache
from gate.observe.pagecache import Residency, drop, files_of, read_in, residency

PAGE = mmap.PAGESIZE


def written(folder: Path, pages: int, name: str = "weights") -> Path:
    path = folder / name
    path.write_bytes(os.urandom(pages * PAGE - 1))
    return path


def needs_an_evictable_file_system(path: Path) -> None:
    kind = pagecache.filesystem(path)
    if kind in pagecache.CACHES_OF_THEIR_OWN:
        pytest.skip(f"{path} is on {kind}, which has no page cache to drop")


def test_dropped_files_are_cold_and_read_ones_warm(tmp_path: Path) -> None:
    needs_an_evictable_file_system(tmp_path)
    files = (written(tmp_path, 20), written(tmp_path, 3, "more"))
    assert drop(files) == Residency(2, 23 * PAGE, 0)
    assert residency(files).state == "cold"
    assert read_in(files) == Residency(2, 23 * PAGE, 23 * PAGE)
    assert residency(files).state == "warm"


def test_looking_reads_nothing_in(tmp_path: Path) -> None:
    needs_an_evictable_file_system(tmp_path)
    files = (written(tmp_path, 20),)
    drop(files)
    assert residency(files).resident_bytes == residency(files).resident_bytes == 0


def test_one_page_is_neither_cold_nor_warm(tmp_path: Path) -> None:
    needs_an_evictable_file_system(tmp_path)
    path = written(tmp_path, 4096)
    drop((path,))
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # no read-ahead
        file.read(1)
    found = residency((path,))
    assert 0 < found.resident_bytes < found.size_bytes
    assert found.state == "partly"


def test_an_interrupt_while_it_looks_stays_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose traceback still holds the array that looks at the mapping, which then could not be closed."""

    class Interrupted:
        def mincore(self, *_: object) -> int:
            raise KeyboardInterrupt

    monkeypatch.setattr(pagecache, "_libc", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        residency((written(tmp_path, 3),))


def test_windows_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pagecache, "WINDOW_BYTES", 4 * PAGE)
    path = written(tmp_path, 11)
    assert read_in((path,)) == Residency(1, 11 * PAGE, 11 * PAGE, residency((path,)).kept_elsewhere)


def test_a_page_that_stays_is_not_cold(tmp_path: Path) -> None:
    """DONTNEED leaves alone what a process has mapped and touched, as a server that is still running has."""
    needs_an_evictable_file_system(tmp_path)
    path = written(tmp_path, 8)
    read_in((path,))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as held:
        assert len(held[:]) == 8 * PAGE - 1  # touched
        left = drop((path,))
    assert left.resident_bytes > 0
    assert left.state != "cold"


def test_a_page_that_is_let_go_in_time_is_cold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is ending keeps its pages for a moment more, here until the second look."""
    needs_an_evictable_file_system(tmp_path)
    path = written(tmp_path, 8)
    read_in((path,))
    with path.open("rb") as file:
        held = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    assert len(held[:]) == 8 * PAGE - 1  # touched
    monkeypatch.setattr(pagecache, "PATIENCE_S", 60.0)
    monkeypatch.setattr(pagecache, "time", SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: held.close()))
    assert drop((path,)).state == "cold"
    assert held.closed


def test_a_cache_of_its_own_is_never_cold() -> None:
    assert Residency(1, PAGE, 0, "zfs").state == "partly"
    assert Residency(1, PAGE, 0).state == "cold"


def test_links_to_one_file_count_once_and_empty_files_not_at_all(tmp_path: Path) -> None:
    blob = written(tmp_path, 2, "blob")
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    (snapshot / "model.safetensors").symlink_to(blob)
    (snapshot / "again.safetensors").symlink_to(blob)
    (snapshot / "empty").touch()
    assert files_of(snapshot) == (blob.resolve(),)
