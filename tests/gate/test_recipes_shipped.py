"""The recipes that come with the project: each loads, is named like its file, and pins what the project gates."""

from __future__ import annotations

import pytest

from gate.metrics import AXIS_NAMES
from gate.recipe import load, names
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
