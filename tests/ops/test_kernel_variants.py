"""The kernels for sanitizers beside the shipped ones: names, flags, what a process loads, that a server cannot."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest

from engine.kernels import build, library
from engine.kernels.build import ENGINE, FOR_SANITIZERS, SHIPPED

EVERY_LANE = "-DENGINE_EVERY_LANE_GIVES_BACK"


def test_they_are_told_apart_by_name_hash_and_flags(monkeypatch):
    monkeypatch.setattr(
        build.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, "release 13.0, V13")
    )
    monkeypatch.setattr(build, "nvcc", lambda: "nvcc")
    ours, theirs = (build.manifest("90a", variant) for variant in (FOR_SANITIZERS, SHIPPED))
    assert ours["flags"] == [*build.FLAGS, EVERY_LANE]
    assert theirs["flags"] == list(build.FLAGS)
    assert theirs["source_sha256"] == build.source_hash() != ours["source_sha256"]
    assert build.library_path("90a").name == f"engine-sm_90a-{build.source_hash()[:16]}.so"
    assert re.fullmatch(
        r"engine-sm_90a-for-sanitizers-[0-9a-f]{16}\.so", build.library_path("90a", FOR_SANITIZERS).name
    )


def test_the_macro_is_the_one_that_the_sources_read():
    readers = [path.name for path in build.headers() if EVERY_LANE.removeprefix("-D") in path.read_text()]
    assert readers == ["stage.cuh"]


def test_every_ring_counts_as_many_arrivals_as_its_warps_make():
    """Of a new ring too, which racecheck would report. That the counts are right, the emulated tests of both show."""
    rings = set()
    for path in (*build.sources(), *build.headers()):
        for arrivals in re.findall(r"barrier_init\(\w*empty \+ i, (.*?)\)", path.read_text()):
            assert arrivals.endswith("* ARRIVALS_PER_WARP"), path
            assert "if (gives_back(lane))" in path.read_text(), path
            rings.add(path.name)
    assert rings == {"many.cu", "scan.cu", "wide.cuh"}


@pytest.fixture
def loading(monkeypatch, tmp_path):
    """A process that has loaded nothing yet, and what it builds: libraries that say which variant they are."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc to compile a stand-in for the kernels")
    built = []

    def made(arch, variant=SHIPPED):
        built.append(variant)
        source = tmp_path / "manifest.c"
        source.write_text(
            f'const char* engine_manifest() {{ return "{{\\"flags\\": \\"{" ".join(variant.flags)}\\"}}"; }}'
        )
        path = build.library_path(arch, variant)
        path.parent.mkdir(exist_ok=True)
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", path, source], check=True)
        return build.Library(path, {}, {})

    monkeypatch.setattr(build, "BUILD", tmp_path / "build")
    monkeypatch.setattr(library, "build", made)
    monkeypatch.setattr(library, "_variant", SHIPPED)
    library.load.cache_clear()
    yield built
    library.load.cache_clear()


@pytest.mark.parametrize(("chosen", "flags"), [(None, ""), (SHIPPED, ""), (FOR_SANITIZERS, EVERY_LANE)])
def test_a_process_loads_what_it_chose(loading, chosen, flags):
    """Built where it is missing, and the other one is not taken for it."""
    library.build("90a", SHIPPED if chosen is FOR_SANITIZERS else FOR_SANITIZERS)
    if chosen is not None:
        library.choose(chosen)
    for _ in range(2):
        assert library.manifest("90a") == {"flags": flags}
        library.load.cache_clear()  # the second time it is there
    assert loading[1:] == [chosen or SHIPPED]


def test_the_environment_chooses_nothing(loading, monkeypatch):
    for name in ("ENGINE_EVERY_LANE_GIVES_BACK", "ENGINE_VARIANT", "ENGINE_KERNELS"):
        monkeypatch.setenv(name, "1")
    library.load("90a")
    assert loading == [SHIPPED]


def test_it_is_too_late_once_kernels_are_loaded(loading):
    library.load("90a")
    with pytest.raises(library.KernelError, match="found kernels loaded already; expected none; choose the variant"):
        library.choose(FOR_SANITIZERS)
    assert json.loads(library.load("90a").engine_manifest()) == {"flags": ""}
    assert loading == [SHIPPED]


def test_nothing_of_the_engine_chooses():
    """So that whatever `engine serve` is given, it serves the shipped kernels."""
    named = [path for path in ENGINE.rglob("*.py") if re.search(r"FOR_SANITIZERS|\bVariant\b", path.read_text())]
    assert {path.relative_to(ENGINE).as_posix() for path in named} == {"kernels/build.py", "kernels/library.py"}
    users = [path for path in ENGINE.rglob("*.py") if re.search(r"library\.choose|import choose", path.read_text())]
    assert users == []
    assert "FOR_SANITIZERS" not in (ENGINE / "kernels" / "library.py").read_text()
