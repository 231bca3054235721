"""The recipes that come with the project: each loads, is named like its file, and pins what the project gates."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gate.errors import UsageError
from gate.metrics import AXIS_NAMES
from gate.preflight.digest import digest
from gate.recipe import ROOT, load, names, parse
from oracle import pins
from oracle.serve import deviations

REVISIONS = {
    "nvidia/Qwen3.6-27B-NVFP4": "0893e1606ff3d5f97a441f405d5fc541a6bdf404",
    "nvidia/Qwen3.6-35B-A3B-NVFP4": "491c2f1ea524c639598bf8fa787a93fed5a6fbce",
}


def test_all_four_are_there() -> None:
    assert names() == ("qwen3.6-27b-nvfp4", "qwen3.6-35b-a3b-nvfp4", "tiny", "tiny-moe")


@pytest.mark.parametrize("name", names())
def test_a_recipe_is_whole(name: str) -> None:
    recipe = load(name)
    assert recipe.name == name
    assert recipe.description
    assert set(recipe.protocol.primary) <= set(AXIS_NAMES)
    assert recipe.gpu == (recipe.oracle.platform == "cuda")
    lacking = [line for line in deviations(recipe.oracle.platform, recipe.oracle.args) if line.startswith("has")]
    assert lacking == []


@pytest.mark.parametrize("name", [name for name in names() if name.startswith("qwen")])
def test_hub_checkpoints_are_at_the_pinned_revision(name: str) -> None:
    checkpoint = load(name).checkpoint
    assert checkpoint.hub is not None
    assert checkpoint.revision == REVISIONS[checkpoint.hub]


@pytest.mark.parametrize("name", [name for name in names() if name.startswith("tiny")])
def test_a_synthetic_checkpoint_names_its_copy_and_how_to_make_both(name: str) -> None:
    checkpoint = load(name).checkpoint
    assert (checkpoint.path, checkpoint.oracle_path) == (f"checkpoints/{name}", f"checkpoints/{name}-oracle")
    assert checkpoint.make == "make checkpoints"
    assert f"checkpoints/{name}-oracle/config.json:" in (pins.REPOSITORY / "Makefile").read_text()


def test_a_cpu_recipe_keeps_the_cache_in_bf16() -> None:
    assert {load(name).kv_cache_dtype for name in names() if not load(name).gpu} == {"bfloat16"}


@pytest.mark.parametrize("name", ["tiny", "tiny-moe"])
def test_a_synthetic_checkpoint_has_the_pinned_digest_wherever_it_is_made(name: str, tmp_path: Path) -> None:
    """With torch's plainest kernels and one thread: what may differ between machines is switched off or on here."""
    command = [sys.executable, str(ROOT / "tools/make_checkpoint.py"), "--shape", name, "--layout", "modelopt"]
    env = os.environ | {"ATEN_CPU_CAPABILITY": "default", "OMP_NUM_THREADS": "1"}
    subprocess.run([*command, "--seed", "0", str(tmp_path / "made")], env=env, check=True, capture_output=True)
    assert digest(tmp_path / "made", tmp_path / "cache") == load(name).checkpoint.digest


def test_a_recipe_in_which_nothing_decides_is_refused() -> None:
    with pytest.raises(UsageError, match="primary names no axis: nothing would decide the verdict"):
        parse({"schema_version": 1, "name": "x", "checkpoint": {"path": "x"}, "protocol": {"primary": []}}, "x.toml")
