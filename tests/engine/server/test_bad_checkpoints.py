"""A broken checkpoint through the command line: `engine census` and `serve` end with one line and exit code 69."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import make_checkpoint
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine import cli
from engine.errors import UNAVAILABLE
from tests.ports import free_port

ROOT = "model.language_model.layers."
UP, QKV = f"{ROOT}1.mlp.up_proj", f"{ROOT}0.linear_attn.in_proj_qkv"
EXPERT = f"{ROOT}2.mlp.experts.5.up_proj"

Break = Callable[[Path], object]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("whole")
    made = {}
    for shape in ("tiny", "tiny-moe"):
        for layout in ("modelopt", "compressed-tensors"):
            made[f"{shape} {layout}"] = folder = root / f"{shape}-{layout}"
            options = ["--layers", "4", "--device", "cpu", "--shape", shape, "--layout", layout]
            make_checkpoint.main([*options, str(folder)])
    return made


def tensors(change: Callable[[dict[str, torch.Tensor]], object], name: str) -> Break:
    """Change the shard that has `name`."""

    def apply(folder: Path) -> None:
        index_file = folder / "model.safetensors.index.json"
        index = json.loads(index_file.read_text())
        shard = folder / index["weight_map"][name]
        found = load_file(shard)
        change(found)
        save_file(found, shard)
        index["weight_map"] = {n: s for n, s in index["weight_map"].items() if s != shard.name or n in found}
        index["weight_map"] |= dict.fromkeys(found, shard.name)
        index_file.write_text(json.dumps(index))

    return apply


def put(name: str, value: float | torch.Tensor) -> Break:
    """A tensor in another one's place, or its every element another number."""

    def change(found: dict[str, torch.Tensor]) -> None:
        found[name] = value if isinstance(value, torch.Tensor) else torch.full_like(found[name], value)

    return tensors(change, name)


def block_scale(name: str, byte: int) -> Break:
    def change(found: dict[str, torch.Tensor]) -> None:
        raw = found[name].view(torch.uint8).clone()
        raw[-1, -1] = byte
        found[name] = raw.view(torch.float8_e4m3fn)

    return tensors(change, name)


def drop(name: str) -> Break:
    return tensors(lambda found: found.pop(name), name)


def as_json(file: str, change: Callable[[dict], object]) -> Break:
    def apply(folder: Path) -> None:
        content = json.loads((folder / file).read_text())
        change(content)
        (folder / file).write_text(json.dumps(content))

    return apply


def listed(name: str, algorithm: str) -> Callable[[dict], None]:
    def change(config: dict) -> None:
        section = config.get("quantization_config") or config["quantization"]
        section["quantized_layers"][name] = {"quant_algo": algorithm}

    return change


def last_shard(folder: Path) -> Path:
    return sorted(folder.glob("*.safetensors"))[-1]


def cut(folder: Path) -> None:
    last_shard(folder).write_bytes(last_shard(folder).read_bytes()[:-1])


SINGLE, MOE = "tiny modelopt", "tiny-moe modelopt"
TINY_CT, MOE_CT = "tiny compressed-tensors", "tiny-moe compressed-tensors"
POSITIVE = "expected a positive finite scale; download"
FAULTS: dict[str, tuple[str, Break, str]] = {
    "truncated shard": (SINGLE, cut, r"safetensors: found \d+ bytes, expected \d+; finish the download"),
    "missing shard": (
        SINGLE,
        lambda f: last_shard(f).unlink(),
        "listed in the index and not there; finish the download",
    ),
    "missing tensor": (
        SINGLE,
        drop(f"{UP}.weight_scale"),
        r"layers\.1\.mlp\.up_proj\.weight_scale: missing, expected F8",
    ),
    "unknown quant_algo": (
        SINGLE,
        as_json("config.json", listed(UP, "INT3")),
        f"{UP} has quant_algo 'INT3'; known are .*: use a checkpoint that is stored so",
    ),
    "unknown quant_algo of all layers": (
        SINGLE,
        as_json("config.json", lambda c: c["quantization_config"].update(quant_algo="W4A8_AWQ")),
        r"config\.json: quant_algo 'W4A8_AWQ'; known are .*: use a checkpoint that is stored so",
    ),
    "unknown quant_method": (
        SINGLE,
        as_json("config.json", lambda c: c["quantization_config"].update(quant_method="awq")),
        "quant_method 'awq'; this engine reads modelopt and compressed-tensors, use a checkpoint that is stored so",
    ),
    "disagreeing files": (
        SINGLE,
        as_json("hf_quant_config.json", listed(UP, "FP8")),
        r"layers\.1\.mlp\.up_proj: config\.json says ModelOpt NVFP4, hf_quant_config\.json says FP8.*download both",
    ),
    "zero global scale": (
        SINGLE,
        put(f"{UP}.weight_scale_2", 0.0),
        rf"up_proj\.weight_scale_2: found 0\.0, {POSITIVE}",
    ),
    "NaN global scale": (SINGLE, put(f"{UP}.weight_scale_2", math.nan), rf"weight_scale_2: found nan, {POSITIVE}"),
    "infinite global scale": (SINGLE, put(f"{UP}.weight_scale_2", math.inf), rf"weight_scale_2: found inf, {POSITIVE}"),
    "negative FP8 scale": (
        SINGLE,
        put(f"{QKV}.weight_scale", -1.0),
        rf"in_proj_qkv\.weight_scale: found -1\.0, {POSITIVE}",
    ),
    "NaN input scale": (
        SINGLE,
        put(f"{QKV}.input_scale", math.nan),
        rf"in_proj_qkv\.input_scale: found nan, {POSITIVE}",
    ),
    "zero divisor": (TINY_CT, put(f"{UP}.weight_global_scale", 0.0), rf"weight_global_scale: found 0\.0, {POSITIVE}"),
    "negative divisor": (
        TINY_CT,
        put(f"{UP}.weight_global_scale", -2.0),
        rf"weight_global_scale: found -2\.0, {POSITIVE}",
    ),
    "NaN row scale": (
        TINY_CT,
        put(f"{QKV}.weight_scale", math.nan),
        rf"in_proj_qkv\.weight_scale: found nan, {POSITIVE}",
    ),
    "NaN block scale": (
        SINGLE,
        block_scale(f"{UP}.weight_scale", 0x7F),
        r"up_proj\.weight_scale: found NaN, expected block",
    ),
    "negative block scale": (
        SINGLE,
        block_scale(f"{UP}.weight_scale", 0x90),
        r"weight_scale: found a negative value, exp",
    ),
    "NaN in an unquantised layer": (
        SINGLE,
        put(f"{ROOT}0.linear_attn.in_proj_a.weight", math.nan),
        r"layers\.0\.linear_attn\.in_proj_a\.weight: found nan, expected finite numbers",
    ),
    "NaN in a norm": (
        MOE,
        put("model.language_model.norm.weight", math.nan),
        r"norm\.weight: found nan, expected finite numbers",
    ),
    "NaN KV scale": (
        SINGLE,
        put(f"{ROOT}3.self_attn.k_proj.k_scale", math.nan),
        r"k_proj\.k_scale: found nan, expected a",
    ),
    "missing expert": (
        MOE,
        drop(f"{EXPERT}.weight"),
        r"layers\.2\.mlp\.experts\.5\.up_proj\.weight: missing, expected U8",
    ),
    "misshapen expert": (
        MOE,
        put(f"{EXPERT}.weight", torch.zeros(8, 128, dtype=torch.uint8)),
        rf"{EXPERT}\.weight: found U8 \[8, 128\], expected U8 \[64, 128\]; use the config\.json",
    ),
    "expert of another scheme": (
        MOE_CT,
        put(f"{EXPERT}.weight_packed", torch.zeros(64, 256).bfloat16()),
        rf"{EXPERT}\.weight_packed: found BF16 \[64, 256\], expected U8 \[64, 128\]",
    ),
    "expert listed otherwise": (
        MOE,
        lambda f: [as_json(name, listed(EXPERT, "FP8"))(f) for name in ("config.json", "hf_quant_config.json")],
        r"experts\.5\.up_proj: is FP8, static input scale, .*experts\.0\.gate_proj is ModelOpt NVFP4; expected one",
    ),
    "stacked and single": (
        MOE,
        tensors(lambda f: f.update({f"{ROOT}2.mlp.experts.down_proj": torch.zeros(8, 4)}), f"{EXPERT}.weight"),
        r"layers\.2\.mlp\.experts: found both stacked and single experts \(.*\), expected one of the two",
    ),
}


def told(command: list[str], log: str) -> list[str]:
    """What the user reads: the server's own first line says only where it listens."""
    lines = [line for line in log.splitlines() if "listening on" not in line]
    assert all(line.startswith("engine: ") for line in lines), (command, log)
    return lines


@pytest.mark.parametrize("fault", FAULTS)
def test_census_tells_it_in_one_line(whole, tmp_path, capsys, fault):
    layout, spoil, message = FAULTS[fault]
    folder = Path(shutil.copytree(whole[layout], tmp_path / "broken"))
    spoil(folder)
    assert cli.run(["census", str(folder), "--device", "cpu"]) == UNAVAILABLE
    out = capsys.readouterr()
    assert out.out == ""
    (line,) = told(["census"], out.err)
    assert re.search(message, line), line
    assert re.search("finish the download|download .*again|use ", line), "what to do"
    assert len(line) < 600


@pytest.mark.parametrize(
    "fault", ["truncated shard", "disagreeing files", "NaN block scale", "NaN in a norm", "stacked and single"]
)
def test_serve_tells_it_in_one_line_and_frees_its_port(whole, tmp_path, capsys, fault):
    """One fault of each stage: headers, configuration, values, experts. The others take the same way."""
    layout, spoil, message = FAULTS[fault]
    folder = Path(shutil.copytree(whole[layout], tmp_path / "broken"))
    spoil(folder)
    port = free_port()
    for _ in range(2):
        assert cli.run(["serve", str(folder), "--device", "cpu", "--port", str(port)]) == UNAVAILABLE
        (line,) = told(["serve"], capsys.readouterr().err)
        assert re.search(message, line), line


def test_the_same_folders_unbroken_are_served_by_census(whole, capsys):
    for layout, folder in whole.items():
        assert cli.run(["census", str(folder), "--device", "cpu"]) == 0, layout
    assert "WIDER" not in capsys.readouterr().out


def test_too_little_memory_is_one_line(whole, monkeypatch, capsys):
    monkeypatch.setattr("engine.runner.free_bytes", lambda _: 1_000_000)
    assert cli.run(["census", str(whole[SINGLE]), "--device", "cpu"]) == UNAVAILABLE
    (line,) = told(["census"], capsys.readouterr().err)
    assert re.search(r"needs \d+ bytes \(\d+ of weights, .*, but 1000000 are free on cpu; free memory there, or", line)
