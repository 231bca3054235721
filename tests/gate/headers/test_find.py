"""A checkpoint by folder or hub id: from this machine's cache alone, and a missing one says how to get it."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub.constants as hub_constants
import pytest

from gate import recipe as recipes
from gate.errors import CheckpointError, UsageError
from gate.headers import find

REVISION, OTHER = "a" * 40, "b" * 40


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub's client."""
    monkeypatch.setattr(hub_constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub._snapshot_download.constants.HF_HUB_CACHE", str(tmp_path))
    return tmp_path / "models--a--b"


def snapshot(place: Path, revision: str) -> Path:
    folder = place / "snapshots" / revision
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return folder


def test_a_folder_is_itself(tmp_path: Path) -> None:
    assert find.find(str(tmp_path)) == tmp_path


def test_the_only_snapshot_is_meant(cache: Path) -> None:
    only = snapshot(cache, REVISION)
    assert find.find("a/b") == only


def test_of_several_the_branch_main_is_meant(cache: Path) -> None:
    snapshot(cache, REVISION)
    snapshot(cache, OTHER)
    with pytest.raises(CheckpointError, match=f"2 snapshots of a/b .*{REVISION}, {OTHER}"):
        find.find("a/b")
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text(OTHER)
    assert find.find("a/b").name == OTHER
    for nonsense in (b"\xff\xfe", b"\0", b"../..", b""):
        (cache / "refs" / "main").write_bytes(nonsense)
        with pytest.raises(CheckpointError, match="2 snapshots"):
            find.find("a/b")


def test_a_revision_is_exact(cache: Path) -> None:
    snapshot(cache, REVISION)
    assert find.find(f"a/b@{REVISION}").name == REVISION
    with pytest.raises(CheckpointError, match=f"hf download a/b --revision {OTHER}"):
        find.find(f"a/b@{OTHER}")


def test_the_revision_of_a_recipe_is_asked_for(cache: Path) -> None:
    del cache
    pinned = recipes.load("qwen3.6-27b-nvfp4").checkpoint
    with pytest.raises(CheckpointError, match=f"{pinned.hub} at {pinned.revision} is not in the local cache"):
        find.find(pinned.hub or "")


def test_what_is_not_there_says_how_to_get_it(cache: Path) -> None:
    del cache
    with pytest.raises(CheckpointError, match=r"a/b is not in the local cache .*; hf download a/b"):
        find.find("a/b")
    with pytest.raises(UsageError, match="no checkpoint 'nowhere'; expected a folder, or a hub id"):
        find.find("nowhere")


def test_a_recipes_folder_that_is_missing_names_what_makes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "ROOT", tmp_path)
    with pytest.raises(CheckpointError, match=r"no checkpoint at .*tiny; make it with: make checkpoints"):
        find.of_recipe(recipes.load("tiny"))
    (tmp_path / "checkpoints" / "tiny").mkdir(parents=True)
    assert find.of_recipe(recipes.load("tiny")) == tmp_path / "checkpoints" / "tiny"


@pytest.mark.parametrize(
    "name", ["", "../nowhere", "./a/b", "-x/y", "a/" + "b" * 97, "x" * 300, "ünï/cödé", "a/b@main"]
)
def test_what_is_neither_folder_nor_hub_id_is_one_line(name: str) -> None:
    with pytest.raises(UsageError, match=r"expected a folder, or a hub id") as refused:
        find.find(name)
    assert len(str(refused.value)) < 500
