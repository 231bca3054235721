"""Unpack the offline form of the CUDA oracle: an xz archive cut into `oracle.part.00 …`, and compiled-kernel caches."""

from __future__ import annotations

import io
import lzma
import shutil
import tarfile
from pathlib import Path

from gate.errors import OracleError


def parts(folder: Path) -> list[Path]:
    """The parts in order. OracleError when one is missing from the numbering."""
    found = sorted(folder.glob("oracle.part.*"))
    for number, part in enumerate(found):
        if part.suffix.lstrip(".") != f"{number:02d}":
            raise OracleError(
                f"{part.name} follows part {number - 1:02d} in {folder}",
                expected=f"oracle.part.{number:02d}",
                hint="copy the missing part",
            )
    return found


def caches(folder: Path) -> list[Path]:
    """Archives that belong into the home folder: compiled kernels, which save the server minutes at its first start."""
    return sorted(folder.glob("*.tar.xz"))


class _Joined(io.RawIOBase):
    """The parts read as one file."""

    def __init__(self, files: list[Path]) -> None:
        self._files, self._current = iter(files), io.BytesIO()

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._current.close()
        super().close()

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        while True:
            if count := self._current.readinto(buffer):
                return count
            following = next(self._files, None)
            if following is None:
                return 0
            self._current.close()
            self._current = following.open("rb")  # type: ignore[assignment]


def unpack(folder: Path, site: Path) -> None:
    """Unpack the joined parts into site. Members that would leave it, links to outside and devices are refused."""
    site.mkdir(parents=True)
    try:
        with (
            io.BufferedReader(_Joined(parts(folder))) as joined,
            tarfile.open(fileobj=joined, mode="r|xz") as tar,
        ):
            _extract(tar, site)
    except (tarfile.TarError, lzma.LZMAError, EOFError, OSError) as error:
        raise _broken(folder, error) from error


def unpack_cache(cache: Path, target: Path) -> None:
    try:
        with tarfile.open(cache, "r:xz") as tar:
            _extract(tar, target)
    except (tarfile.TarError, lzma.LZMAError, EOFError, OSError) as error:
        raise _broken(cache, error) from error


def _extract(tar: tarfile.TarFile, target: Path) -> None:
    """Python's own filter, and before 3.11.4, which has none, files and folders alone: packs hold no links."""
    if hasattr(tarfile, "data_filter"):
        tar.extractall(target, filter="data")
        return
    root = target.resolve()
    for member in tar:
        if not (member.isreg() or member.isdir()):
            raise tarfile.TarError(f"{member.name} is neither a file nor a folder")
        if not (root / member.name).resolve().is_relative_to(root):
            raise tarfile.TarError(f"{member.name} lies outside")
        member.mode = member.mode & 0o755 | 0o600
        tar.extract(member, target)


def place_compiled(home: Path, site: Path) -> list[str]:
    """Put the operators of FlashInfer's cache where the package looks before it compiles; returns their names.

    Its cache is keyed by the absolute paths of the installation that compiled it: at another path a cached operator is
    compiled again, for ten minutes, and the server looks hung meanwhile (seen with gdn_prefill_sm90 on an H200).
    """
    if not (site / "flashinfer").is_dir():
        return []
    placed = []
    for library in sorted((home / ".cache/flashinfer").glob("*/*/cached_ops/*/*.so")):
        target = site / "flashinfer/data/aot" / library.stem / library.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(library, target)
        placed.append(library.stem)
    return placed


def _broken(source: Path, error: Exception) -> OracleError:
    return OracleError(f"{source} does not unpack: {error}", hint="copy the archive again and compare the sizes")
