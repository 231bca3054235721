"""The offline archive: parts in order, joined and unpacked; gaps, damage and escapes refused."""

from __future__ import annotations

import io
import tarfile
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gate.errors import OracleError
from oracle import archive


def packed(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:xz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def cut(folder: Path, content: bytes, at: list[int]) -> None:
    bounds = [0, *sorted(at), len(content)]
    for number, (start, stop) in enumerate(pairwise(bounds)):
        (folder / f"oracle.part.{number:02d}").write_bytes(content[start:stop])


@pytest.fixture(params=["filter", "no filter"], autouse=True)
def python(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.11.2, as Debian 12 has it, knows no extraction filters."""
    if request.param == "no filter":
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
    elif not hasattr(tarfile, "data_filter"):
        pytest.skip("this Python's tarfile has no filters")


MEMBERS = {"vllm/__init__.py": b"__version__ = '0.25.0'\n", "numpy/core.py": b"x" * 5000}
CONTENT = packed(MEMBERS)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(at=st.lists(st.integers(0, len(CONTENT)), max_size=6))
def test_any_cut_unpacks_to_the_same_files(at: list[int], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("parts")
    cut(folder, CONTENT, at)
    archive.unpack(folder, folder / "site")
    assert {name: (folder / "site" / name).read_bytes() for name in MEMBERS} == MEMBERS


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    cut(tmp_path, CONTENT, [10, 20])
    (tmp_path / "oracle.part.01").unlink()
    with pytest.raises(OracleError, match=r"oracle\.part\.02 follows part 00 .* expected oracle\.part\.01"):
        archive.parts(tmp_path)


@pytest.mark.parametrize("damaged", [CONTENT[: len(CONTENT) // 2], CONTENT[:40] + b"\0" * 40 + CONTENT[80:], b"no"])
def test_a_damaged_archive_is_refused(damaged: bytes, tmp_path: Path) -> None:
    cut(tmp_path, damaged, [])
    with pytest.raises(OracleError, match="does not unpack"):
        archive.unpack(tmp_path, tmp_path / "site")


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside-of-site", "a/../../outside"])
def test_a_member_cannot_leave_the_folder(name: str, tmp_path: Path) -> None:
    cut(tmp_path, packed({name: b"x"}), [])
    site = tmp_path / "deep" / "site"
    site.parent.mkdir()
    try:
        archive.unpack(tmp_path, site)
    except OracleError as error:
        assert "does not unpack" in str(error)  # noqa: PT017 - tarfile refuses some names and strips others
    assert [path for path in tmp_path.rglob("outside*") if site not in path.parents] == []
    assert not Path("/tmp/outside-of-site").exists()


def test_kernel_caches_unpack_into_the_folder_given(tmp_path: Path) -> None:
    (tmp_path / "kernels.tar.xz").write_bytes(packed({".cache/flashinfer/k.so": b"elf"}))
    home = tmp_path / "home"
    home.mkdir()
    for cache in archive.caches(tmp_path):
        archive.unpack_cache(cache, home)
    assert (home / ".cache/flashinfer/k.so").read_bytes() == b"elf"


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_a_link_to_outside_and_a_device_are_refused(kind: bytes, tmp_path: Path) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:xz") as tar:
        info = tarfile.TarInfo("inside")
        info.type, info.linkname = kind, "../../outside"
        tar.addfile(info)
    cut(tmp_path, out.getvalue(), [])
    with pytest.raises(OracleError, match="does not unpack"):
        archive.unpack(tmp_path, tmp_path / "site")
