"""The checkpoint precondition: whole folders pass, and each way of not being whole has its line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gate.errors import CheckpointError
from gate.plan import Plan
from gate.preflight import checkpoint as module
from gate.preflight import hub
from gate.preflight.checkpoint import check, resolve, verify
from gate.preflight.digest import digest
from gate.recipe import Recipe

INDEX = "model.safetensors.index.json"
REVISION = "0893e1606ff3d5f97a441f405d5fc541a6bdf404"
Make = Callable[..., Recipe]


def test_a_whole_folder_passes(checkpoint: Path, recipe: Make) -> None:
    shipped, copy = resolve(recipe())
    assert shipped == copy
    assert shipped.path == checkpoint.resolve()
    assert shipped.digest == digest(checkpoint)
    assert shipped.weight_bytes == sum(path.stat().st_size for path in checkpoint.glob("*.safetensors"))


def test_a_folder_with_one_file_and_no_index_passes(checkpoint: Path, make_shard: Callable[..., bytes]) -> None:
    for path in (*checkpoint.glob("*.safetensors"), checkpoint / INDEX):
        path.unlink()
    (checkpoint / "model.safetensors").write_bytes(make_shard({"x": b"1"}))
    assert verify(checkpoint) == (checkpoint / "model.safetensors").stat().st_size


def remove(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def index_of(weight_map: Any) -> Callable[[Path], object]:
    return lambda folder: (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))


def pickled(folder: Path) -> None:
    for path in (*folder.glob("*.safetensors"), folder / INDEX):
        path.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"pickle")


def truncated(folder: Path) -> None:
    path = folder / "b.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


GOOD = {"x": "a.safetensors", "y": "a.safetensors", "z": "b.safetensors"}


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (remove("config.json"), "has no readable config.json"),
        (lambda folder: (folder / "config.json").write_text("{"), "has no readable config.json"),
        (remove("tokenizer.json"), "has no readable tokenizer.json"),
        (remove("b.safetensors"), "half-downloaded: 1 of 2 shards are missing, first b.safetensors"),
        (truncated, "b.safetensors is truncated or corrupt"),
        (remove(INDEX), f"has no weights; expected {INDEX} or model.safetensors"),
        (pickled, "only pickled weights"),
        (index_of({}), "has no weight_map"),
        (index_of(GOOD | {"w": "b.safetensors"}), r"w is not in it \(1 such"),
        (index_of({"x": "a.safetensors", "z": "b.safetensors"}), r"y is in it too \(1 such"),
        (index_of(GOOD | {"x": "b.safetensors"}), "a.safetensors does not match the index: x is in it too"),
        (index_of(GOOD | {"x": "../../etc/passwd"}), "names a shard '../../etc/passwd'"),
        (index_of(GOOD | {"x": 3}), "half-downloaded: 1 of 3 shards are missing, first 3"),
    ],
)
def test_a_folder_that_is_not_whole_is_refused(
    spoil: Callable[[Path], object], message: str, checkpoint: Path, recipe: Make
) -> None:
    spoil(checkpoint)
    with pytest.raises(CheckpointError, match=message):
        resolve(recipe())


def test_a_missing_folder_says_how_to_make_it(checkpoint: Path, recipe: Make) -> None:
    checkpoint.rename(checkpoint.with_name("elsewhere"))
    with pytest.raises(CheckpointError, match=r"no checkpoint at .*small; make it with: make checkpoints"):
        resolve(recipe())


@pytest.mark.parametrize("key", ["digest", "oracle_digest"])
@pytest.mark.usefixtures("checkpoint")
def test_another_digest_than_pinned_is_refused(key: str, recipe: Make) -> None:
    table = {"path": "checkpoints/small", "oracle_path": "checkpoints/small", key: "0" * 64}
    with pytest.raises(CheckpointError, match=r"has digest [0-9a-f]{64}; expected 0{64}"):
        resolve(recipe(checkpoint=table))


def test_the_oracles_copy_must_be_made_from_what_is_shipped(checkpoint: Path, recipe: Make) -> None:
    copy = checkpoint.with_name("copy")
    copy.mkdir()
    for path in checkpoint.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    table = {"path": "checkpoints/small", "oracle_path": "checkpoints/copy", "make": "make checkpoints"}
    (copy / "expanded_from.json").write_text(json.dumps({"source_digest_sha256": digest(checkpoint)}))
    shipped, other = resolve(recipe(checkpoint=table))
    assert shipped.digest != other.digest
    (checkpoint / "config.json").write_text('{"vocab_size": 11}')
    with pytest.raises(CheckpointError, match="was made from a checkpoint with digest") as refused:
        resolve(recipe(checkpoint=table))
    assert refused.value.hint == f"remove {checkpoint} and {copy}, then: make checkpoints"
    with pytest.raises(CheckpointError) as refused:
        resolve(recipe(checkpoint=table | {"digest": digest(checkpoint)}))
    assert refused.value.hint == f"remove {copy}, then: make checkpoints"
    with pytest.raises(CheckpointError) as refused:
        resolve(recipe(checkpoint=table | {"digest": shipped.digest}))
    assert refused.value.hint.endswith(f"remove {checkpoint}, then: make checkpoints")


def test_a_copy_that_changed_after_it_was_made_is_the_folder_to_remove(checkpoint: Path, recipe: Make) -> None:
    copy = checkpoint.with_name("copy")
    shutil.copytree(checkpoint, copy)
    record = {"source_digest_sha256": digest(checkpoint), "copy_digest_sha256": digest(copy)}
    (copy / "expanded_from.json").write_text(json.dumps(record))
    table = {"path": "checkpoints/small", "oracle_path": "checkpoints/copy", "make": "make checkpoints"}
    resolve(recipe(checkpoint=table))
    (copy / "config.json").write_text('{"vocab_size": 11}')
    with pytest.raises(CheckpointError, match="changed after it was made") as refused:
        resolve(recipe(checkpoint=table))
    assert refused.value.hint == f"remove {copy}, then: make checkpoints"


@pytest.mark.parametrize("spoil", [remove("config.json"), remove("b.safetensors"), truncated])
def test_a_broken_folder_that_a_tool_makes_must_go_first(
    spoil: Callable[[Path], object], checkpoint: Path, recipe: Make
) -> None:
    """make sees a folder that is there, and does nothing."""
    spoil(checkpoint)
    with pytest.raises(CheckpointError) as refused:
        resolve(recipe())
    assert refused.value.hint == f"remove {checkpoint}, then: make checkpoints"


def test_a_checkpoint_that_changed_since_the_plan_is_refused(
    checkpoint: Path, plan: Callable[..., Plan], tmp_path: Path
) -> None:
    planned = plan(digest=digest(checkpoint))
    assert check(planned, tmp_path) == ()
    (checkpoint / "tokenizer.json").write_text('{"changed": true}')
    with pytest.raises(CheckpointError, match=r"of the candidate changed: .* as planned; start a new run"):
        check(planned, tmp_path)


def test_a_hub_checkpoint_in_the_cache_is_used_as_it_is(
    checkpoint: Path, recipe: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "cached", lambda _repo, revision: checkpoint if revision == REVISION else None)
    shipped, _ = resolve(recipe(checkpoint={"hub": "a/b", "revision": REVISION}))
    assert shipped.path == checkpoint


def test_a_hub_checkpoint_that_is_not_whole_is_downloaded_on(
    checkpoint: Path, recipe: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = (checkpoint / "b.safetensors").read_bytes()
    (checkpoint / "b.safetensors").unlink()
    asked: list[str] = []

    def download(_repo: str, _revision: str, why: str) -> Path:
        asked.append(why)
        (checkpoint / "b.safetensors").write_bytes(missing)
        return checkpoint

    monkeypatch.setattr(hub, "cached", lambda *_: checkpoint)
    monkeypatch.setattr(hub, "download", download)
    assert resolve(recipe(checkpoint={"hub": "a/b", "revision": REVISION}))[0].path == checkpoint
    assert "is not whole in the local cache" in asked[0]
    assert "half-downloaded" in asked[0]


def test_the_module_reads_only_folders_inside_the_repository_by_relative_path(recipe: Make) -> None:
    assert (module.ROOT / "recipes").is_dir()
    assert recipe().checkpoint.path == "checkpoints/small"
