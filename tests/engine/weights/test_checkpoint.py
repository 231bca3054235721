"""A folder that is incomplete, inconsistent or broken fails before any weight is read, naming what is wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.weights.checkpoint import INDEX, Checkpoint, Part
from engine.weights.errors import CheckpointError
from tests.engine.weights.stored import Make, read_all

CPU = torch.device("cpu")


def test_every_tensor_reads_back_as_the_safetensors_library_reads_it(make: Make) -> None:
    folder = make("--with-vision", "--with-mtp")
    checkpoint = Checkpoint(folder)
    stored = read_all(folder)
    assert len(list(folder.glob("*.safetensors"))) > 1
    for name, info in checkpoint.tensors.items():
        tensor, expected = checkpoint.read(name, CPU), stored[info.stored_name]
        assert tensor.dtype == expected.dtype
        assert tensor.shape == expected.shape
        assert torch.equal(tensor.reshape(-1).view(torch.uint8), expected.reshape(-1).view(torch.uint8)), name
    skipped = {n: t for n, t in stored.items() if "visual" in n or n.startswith("mtp")}
    assert len(stored) == len(checkpoint.tensors) + len(skipped)
    assert checkpoint.skipped_bytes == sum(t.nbytes for t in skipped.values()) > 0
    assert checkpoint.text_bytes == sum(t.nbytes for t in stored.values()) - checkpoint.skipped_bytes


def test_rows_can_be_read_alone(make: Make) -> None:
    checkpoint = Checkpoint(make())
    name = "layers.0.mlp.up_proj.weight"
    whole = checkpoint.read(name, CPU)
    rows = [Part(name, row * whole.shape[1], (whole.shape[1],)) for row in (3, 0)]
    assert torch.equal(checkpoint.read_stack(rows, CPU), whole[torch.tensor([3, 0])])


def test_one_file_without_an_index(dense: Path, edit: Callable) -> None:
    before = Checkpoint(dense).tensors.keys()
    edit(dense, lambda _: None)
    assert Checkpoint(dense).tensors.keys() == before


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"found neither model.safetensors.index.json nor model.safetensors"):
        Checkpoint(tmp_path)


def test_a_missing_shard(dense: Path) -> None:
    shard = sorted(dense.glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(CheckpointError, match=f"{shard.name}: listed in the index and not there"):
        Checkpoint(dense)


@pytest.mark.parametrize("keep", [0, 5, 200, -1])
def test_a_shard_cut_short(dense: Path, keep: int) -> None:
    shard = sorted(dense.glob("*.safetensors"))[1]
    data = shard.read_bytes()
    shard.write_bytes(data[:keep])
    with pytest.raises(CheckpointError, match=f"{shard.name}: found {len(data[:keep])} bytes, .*(needs|expected)"):
        Checkpoint(dense)


@pytest.mark.parametrize("garbage", [b"not json" + b" " * 56, b"[1, 2]" + b" " * 58, b'{"a": {"dtype": "F32"}}'])
def test_a_header_that_is_not_safetensors(dense: Path, garbage: bytes) -> None:
    shard = sorted(dense.glob("*.safetensors"))[0]
    shard.write_bytes(len(garbage).to_bytes(8, "little") + garbage)
    with pytest.raises(CheckpointError, match=f"{shard.name}: its header is not safetensors"):
        Checkpoint(dense)


def test_a_header_whose_shape_does_not_fit_its_bytes(dense: Path, edit: Callable) -> None:
    edit(dense, lambda _: None)
    file = dense / "model.safetensors"
    data = file.read_bytes()
    wrong = data.replace(b'"shape":[2003,256]', b'"shape":[2003,255]', 1)
    assert wrong != data
    file.write_bytes(wrong)
    with pytest.raises(CheckpointError, match=r"embed_tokens.weight: BF16 \[2003, 255\] in 1025536 bytes"):
        Checkpoint(dense)


def test_a_stale_copy_in_a_later_shard(dense: Path) -> None:
    shards = sorted(dense.glob("*.safetensors"))
    name = "model.language_model.norm.weight"
    save_file({**load_file(shards[-1]), name: torch.zeros(256).bfloat16()}, shards[-1])
    with pytest.raises(CheckpointError, match=rf"{name}: found in .*{shards[0].name}.* and in .*{shards[-1].name}"):
        Checkpoint(dense)


def test_a_tensor_that_the_index_does_not_know(dense: Path) -> None:
    shard = sorted(dense.glob("*.safetensors"))[0]
    save_file({**load_file(shard), "model.language_model.surprise": torch.zeros(1)}, shard)
    with pytest.raises(CheckpointError, match=r"surprise: found in .*, model.safetensors.index.json puts it nowhere"):
        Checkpoint(dense)


def test_a_tensor_that_only_the_index_knows(dense: Path, edit_json: Callable) -> None:
    first = sorted(dense.glob("*.safetensors"))[0].name
    edit_json(dense / INDEX, lambda index: index["weight_map"].update({"lm_head.bias": first}))
    with pytest.raises(CheckpointError, match=r"lm_head.bias: .* puts it in .*, which lacks it"):
        Checkpoint(dense)


def test_one_tensor_under_two_roots(dense: Path, edit: Callable) -> None:
    def add(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.norm.weight"] = tensors["model.language_model.norm.weight"].clone()

    edit(dense, add)
    with pytest.raises(CheckpointError, match=r"norm.weight: the same tensor as model\..*norm.weight"):
        Checkpoint(dense)


@pytest.mark.parametrize("file", ["../elsewhere.safetensors", "/etc/passwd", "a/b.safetensors"])
def test_an_index_that_points_outside_the_folder(dense: Path, edit_json: Callable, file: str) -> None:
    edit_json(dense / INDEX, lambda index: index["weight_map"].update({"lm_head.weight": file}))
    with pytest.raises(CheckpointError, match="not a plain file name; refused"):
        Checkpoint(dense)


def test_an_index_that_is_not_json(dense: Path) -> None:
    (dense / INDEX).write_text('{"weight_map": {')
    with pytest.raises(CheckpointError, match=rf"{INDEX}: found what is not JSON .*; download it again$"):
        Checkpoint(dense)


def test_an_index_without_a_map(dense: Path) -> None:
    (dense / INDEX).write_text(json.dumps({"metadata": {}}))
    with pytest.raises(CheckpointError, match="found no weight_map"):
        Checkpoint(dense)


def test_a_file_that_shrinks_after_its_header_was_read(dense: Path) -> None:
    checkpoint = Checkpoint(dense)
    info = checkpoint.tensors["lm_head.weight"]
    data = info.shard.read_bytes()
    info.shard.write_bytes(data[: info.offset + info.nbytes // 2])
    with pytest.raises(CheckpointError, match=r"ends inside lm_head.weight"):
        checkpoint.read("lm_head.weight", CPU)


def test_an_unknown_dtype_is_an_error_only_where_it_is_read(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2), "b": torch.ones(2, dtype=torch.int64)}, tmp_path / "model.safetensors")
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.read("a", CPU).tolist() == [1, 1]
    with pytest.raises(CheckpointError, match="b: dtype I64; this engine reads F32"):
        checkpoint.read("b", CPU)


def test_shards_that_the_index_does_not_list_are_not_opened(dense: Path) -> None:
    count = len(Checkpoint(dense).tensors)
    shutil.copyfile(dense / "config.json", dense / "consolidated.safetensors")
    assert len(Checkpoint(dense).tensors) == count
