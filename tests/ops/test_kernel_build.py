"""The kernel library: what is compiled, what the manifest says, what happens without a compiler."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from engine.kernels import build


def test_every_kernel_source_exports_a_function() -> None:
    assert build.sources()
    for path in build.sources():
        assert build.exported(path), f"{path} exports nothing"


def test_source_hash_follows_a_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kernels").mkdir()
    header = tmp_path / "kernels" / "shared.cuh"
    header.write_text("// one")
    monkeypatch.setattr(build, "ENGINE", tmp_path)
    before = build.source_hash()
    assert build.source_hash() == before
    header.write_text("// two")
    assert build.source_hash() != before


def test_without_nvcc_one_line_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NVCC", raising=False)
    monkeypatch.setattr(build.shutil, "which", lambda *_args, **_kwargs: None)
    with pytest.raises(build.BuildError, match="found no nvcc"):
        build.nvcc()


def test_flags_that_the_environment_adds_are_none_of_the_library_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would be in neither its name nor its manifest."""
    for name in build.ADDED_BY_NVCC:
        monkeypatch.setenv(name, "-DTRIAL")
    monkeypatch.setenv("KEPT", "1")
    print_it = "import os, sys; print(*os.environ, file=sys.stderr)"
    seen = build._run([sys.executable, "-c", print_it], what="x").split()
    assert "KEPT" in seen
    assert not set(build.ADDED_BY_NVCC) & set(seen)


def test_unknown_architecture_names_the_known() -> None:
    with pytest.raises(build.BuildError, match="expected one of 90a, 121a"):
        build.build("80")


def test_spills_are_read_from_the_compiler_log() -> None:
    lines = [
        "ptxas info    : Function properties for kernel_a",
        "    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads",
        "ptxas info    : Function properties for kernel_b",
        "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads",
    ]
    assert build._spills("\n".join(lines)) == {"kernel_a": 4}


def test_serialised_products_are_read_from_the_compiler_log() -> None:
    lines = [
        "ptxas info    : (C7513) Potential Performance Loss: wgmma.mma_async instructions are serialized due to non "
        "wgmma instructions defining input registers of a wgmma between start and end of the pipeline stage in the "
        "function 'a'",
        "ptxas info    : (C7517) warpgroup.wait is injected in around line 815 by compiler to allow use of registers "
        "defined by GMMA in function 'b'",
        "ptxas info    : Function properties for c",
    ]
    assert build._serialised("\n".join(lines)) == ["a", "b"]
