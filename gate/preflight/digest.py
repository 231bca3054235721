"""3 Content digest of a checkpoint folder; what did not change on disk since it was last hashed is not read again."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from gate.errors import CheckpointError

SETTLED_S = 2.0
"""A file written more recently than this is hashed but not remembered: it could change within one clock tick."""
THREADS = 8
CHUNK_BYTES = 2**20


def digest(folder: Path, cache: Path | None = None, leave_out: frozenset[str] = frozenset()) -> str:
    """sha256 over the sorted lines `<sha256 of the file>  <name>` of every file in the folder, links followed.

    leave_out: names of files that are not part of it.

    Files of a Hugging Face cache are links to blobs named by their content; one whose content has another hash is a
    CheckpointError. cache: where hashes are remembered (never inside the folder); default under the user's cache.
    """
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name not in leave_out)
    memory = (cache or _cache_folder()) / f"{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:32]}.json"
    known = _read(memory)
    stamps = {path.name: _stamp(path) for path in files}
    hashes = {name: known[name][-1] for name, stamp in stamps.items() if known.get(name, [])[:-1] == stamp}
    changed = [path for path in files if path.name not in hashes]
    cut = threading.Event()
    with ThreadPoolExecutor(THREADS) as pool:
        try:
            hashed = pool.map(partial(_sha256, cut=cut), changed)
            hashes |= dict(zip((path.name for path in changed), hashed, strict=True))
        finally:
            cut.set()  # the pool waits for its threads, which after a Ctrl-C would read on to the end of their files
    for path in files:
        _check_blob(path, hashes[path.name])
    newest = (time.time() - SETTLED_S) * 1e9
    kept = {name: known[name] for name in leave_out & known.keys()}
    _write(memory, kept | {name: [*stamp, hashes[name]] for name, stamp in stamps.items() if stamp[1] < newest})
    lines = "".join(f"{hashes[path.name]}  {path.name}\n" for path in files)
    return hashlib.sha256(lines.encode()).hexdigest()


def _sha256(path: Path, cut: threading.Event) -> str:
    """Of what it has read when it is cut."""
    found, buffer = hashlib.sha256(), memoryview(bytearray(CHUNK_BYTES))
    with path.open("rb", buffering=0) as file:
        while not cut.is_set() and (size := file.readinto(buffer)):
            found.update(buffer[:size])
    return found.hexdigest()


def _stamp(path: Path) -> list[int]:
    """Size, modification and change time, inode: ctime too, since a copy that keeps times would fool mtime alone."""
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]


def _check_blob(path: Path, sha256: str) -> None:
    if not path.is_symlink():
        return
    blob = Path(os.path.realpath(path))
    if blob.parent.name == "blobs" and len(blob.name) == 64 and blob.name != sha256:
        raise CheckpointError(
            f"{path} has sha256 {sha256[:12]}…", expected=f"{blob.name[:12]}…, as published", hint=f"remove {blob}"
        )


def _cache_folder() -> Path:
    """expanduser gives "~" back for a user without a home; such a folder is never made, see _write."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111  Path.home() raises
    return Path(base) / "gate-and-engine" / "digests"


def _read(memory: Path) -> dict[str, list[Any]]:
    try:
        content = json.loads(memory.read_text())
    except (OSError, ValueError):
        return {}
    entries = content.items() if isinstance(content, dict) else ()
    return {name: entry for name, entry in entries if isinstance(entry, list)}


def _write(memory: Path, content: dict[str, list[Any]]) -> None:
    """Remembering is a convenience: where the cache cannot be written, the next run hashes again."""
    if not memory.is_absolute():
        return
    temporary = memory.with_suffix(f".{os.getpid()}")
    try:
        memory.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(content))
        temporary.replace(memory)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
