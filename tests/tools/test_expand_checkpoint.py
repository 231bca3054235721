"""The oracle's copy: expanded modules equal the engine's own reading bit for bit, everything else is untouched."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import expand_checkpoint
import make_checkpoint
import pytest
import torch
from safetensors import safe_open

from engine.models.config import load_text_config
from engine.weights.loader import load_weights
from engine.weights.types import DenseWeight, Fp8Weight, Nvfp4Weight
from gate.preflight.digest import digest

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("source")
    options = {
        "dense": ["--distinct-shard-scales"],
        "moe": ["--shape", "tiny-moe"],
        "compressed": ["--layout", "compressed-tensors", "--w4a4"],
        "bf16": ["--layout", "bf16"],
    }
    for name, more in options.items():
        make_checkpoint.main(["--device", "cpu", "--layers", "4", *more, str(root / name)])
    return {name: root / name for name in options}


def weights(folder: Path):
    return load_weights(folder, load_text_config(folder), "cpu")


def stored(folder: Path) -> dict[str, torch.Tensor]:
    out = {}
    for name, shard in json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"].items():
        with safe_open(folder / shard, framework="pt") as file:
            out[name] = file.get_tensor(name)
    return out


def test_dense_nvfp4_is_expanded_exactly_and_fp8_left_alone(source: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "copy"
    expand_checkpoint.main([str(source["dense"]), str(out)])
    before, after = weights(source["dense"]), weights(out)
    kinds = set()
    for name in before.linears:
        shipped, copy = before.linear(name), after.linear(name)
        if isinstance(shipped, Nvfp4Weight):
            assert isinstance(copy, DenseWeight)
            assert torch.equal(copy.weight, shipped.dequantize(torch.bfloat16)), name
        else:
            assert type(copy) is type(shipped)
            assert torch.equal(copy.dequantize(torch.float32), shipped.dequantize(torch.float32)), name
        kinds.add(type(shipped))
    assert kinds == {Nvfp4Weight, Fp8Weight, DenseWeight}


@pytest.mark.parametrize("name", ["dense", "moe", "compressed"])
def test_all_leaves_a_plain_checkpoint(source: dict[str, Path], tmp_path: Path, name: str) -> None:
    out = tmp_path / "copy"
    expand_checkpoint.main(["--all", str(source[name]), str(out)])
    before, after = weights(source[name]), weights(out)
    for module in before.linears:
        copy = after.linear(module)
        assert isinstance(copy, DenseWeight)
        assert torch.equal(copy.weight, before.linear(module).dequantize(torch.bfloat16)), module
    assert "quantization_config" not in json.loads((out / "config.json").read_text())
    assert not (out / "hf_quant_config.json").exists()
    assert all(t.dtype in (torch.bfloat16, torch.float32) for t in stored(out).values())


def test_what_is_not_expanded_is_the_same_bytes(source: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "copy"
    expand_checkpoint.main([str(source["dense"]), str(out)])
    before, after = stored(source["dense"]), stored(out)
    expanded = set(json.loads((out / "expanded_from.json").read_text())["expanded_to_bf16"])
    assert len(expanded) == 4 * 3 + 1
    for name, tensor in after.items():
        if name.rpartition(".")[0] not in expanded:
            assert torch.equal(tensor.reshape(-1).view(torch.uint8), before[name].reshape(-1).view(torch.uint8))
    gone = before.keys() - after.keys()
    assert gone == {f"{m}.{t}" for m in expanded for t in ("weight_scale", "weight_scale_2", "input_scale")}
    for file in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "preprocessor_config.json"):
        assert (out / file).read_bytes() == (source["dense"] / file).read_bytes()


def test_the_tables_lose_the_expanded_modules_and_nothing_else(source: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "copy"
    expand_checkpoint.main([str(source["dense"]), str(out)])
    before = json.loads((source["dense"] / "config.json").read_text())
    after = json.loads((out / "config.json").read_text())
    left = after["quantization_config"].pop("quantized_layers")
    full = before["quantization_config"].pop("quantized_layers")
    assert after == before
    assert left == {name: spec for name, spec in full.items() if spec == {"quant_algo": "FP8"}}
    twin = json.loads((out / "hf_quant_config.json").read_text())["quantization"]
    assert twin["quantized_layers"] == left


def test_source_and_copy_are_recorded_by_digest(source: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "copy"
    expand_checkpoint.main([str(source["dense"]), str(out)])
    lines = "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(source["dense"].iterdir())
    )
    record = json.loads((out / "expanded_from.json").read_text())
    assert record["source_digest_sha256"] == hashlib.sha256(lines.encode()).hexdigest()
    assert record["copy_digest_sha256"] == digest(out, tmp_path / "cache", frozenset({"expanded_from.json"}))


@pytest.mark.parametrize(
    ("name", "message"), [("bf16", "no module to expand"), ("compressed", "pass --all to expand everything")]
)
def test_what_cannot_be_expanded_is_refused(
    source: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, message: str
) -> None:
    with pytest.raises(SystemExit):
        expand_checkpoint.main([str(source[name]), str(tmp_path / "copy")])
    assert message in capsys.readouterr().err
    assert not (tmp_path / "copy").exists()


def test_a_folder_that_is_no_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        expand_checkpoint.main([str(tmp_path), str(tmp_path / "copy")])
    assert "not found; expected a Hugging Face checkpoint folder" in capsys.readouterr().err


def test_an_existing_copy_is_kept_unless_told(
    source: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        expand_checkpoint.main([str(source["dense"]), str(tmp_path)])
    assert "exists; remove it or pass --overwrite" in capsys.readouterr().err
