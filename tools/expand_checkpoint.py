#!/usr/bin/env python3
"""Make the oracle's copy of a checkpoint: what a CPU vLLM cannot run is expanded to BF16, nothing else changes.

    tools/expand_checkpoint.py checkpoints/tiny checkpoints/tiny-oracle

NVFP4 modules become `weight` in BF16 and leave `quantized_layers`: E2M1 × E4M3 is exact, the global scale is applied in
fp32, the result is rounded once. FP8 modules stay FP8 unless --all (MoE: CPU vLLM refuses every quantised MoE).
`expanded_from.json` in the copy records the source's digest, that of the copy's other files, and the expanded modules.

The decoding here is written apart from the engine's on purpose: the oracle must not inherit the engine's mistakes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

INDEX = "model.safetensors.index.json"
SIDE_TENSORS = ("weight_scale", "weight_scale_2", "input_scale", "weight_global_scale", "input_global_scale")


class UsageError(Exception):
    """The checkpoint cannot be expanded; the message says what was found and what to do."""


def digest(folder: Path) -> str:
    """SHA-256 over the sorted lines `<sha256 of the file>  <name>` of every file in the folder."""
    lines = []
    for path in sorted(p for p in folder.iterdir() if p.is_file()):
        with path.open("rb") as file:
            lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.name}\n")
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def read_json(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        raise UsageError(f"{path}: not found; expected a Hugging Face checkpoint folder") from None
    except json.JSONDecodeError as error:
        raise UsageError(f"{path}: not JSON ({error}); copy it again") from None
    return content


def decode_nvfp4(packed: Tensor, block_scale: Tensor, multiplier: float) -> Tensor:
    """u8 [N, K/2] and E4M3 [N, K/16] -> BF16 [N, K]. Built from the fields of the 4-bit float, not from a table."""
    rows, half = packed.shape
    code = torch.empty(rows, half * 2, dtype=torch.uint8)
    code[:, 0::2], code[:, 1::2] = packed % 16, packed // 16
    exponent, mantissa = (code // 2 % 4).float(), (code % 2).float()
    magnitude = torch.where(exponent == 0, mantissa / 2, torch.exp2(exponent - 1) * (1 + mantissa / 2))
    value = torch.where(code >= 8, -magnitude, magnitude)
    value *= block_scale.float().repeat_interleave(16, dim=1)
    return (value * multiplier).bfloat16()


def decode_fp8(weight: Tensor, scale: Tensor) -> Tensor:
    """E4M3 [N, K] with a scale [], [1], [N] or [N, 1] -> BF16 [N, K]."""
    return (weight.float() * scale.float().reshape(-1, 1)).bfloat16()


class Source:
    """Tensors of the source by name."""

    def __init__(self, folder: Path) -> None:
        weight_map: dict[str, str] = read_json(folder / INDEX)["weight_map"]
        self.files = {name: safe_open(folder / name, framework="pt") for name in sorted(set(weight_map.values()))}
        self.where = weight_map

    def get(self, name: str) -> Tensor:
        tensor: Tensor = self.files[self.where[name]].get_tensor(name)
        return tensor

    def scheme(self, module: str) -> str | None:
        """nvfp4, fp8, or None for a module whose weight is not quantised."""
        if f"{module}.weight_scale_2" in self.where or f"{module}.weight_packed" in self.where:
            return "nvfp4"
        return "fp8" if f"{module}.weight_scale" in self.where else None

    def expanded(self, module: str) -> Tensor:
        """BF16 [N, K]."""
        if self.scheme(module) == "fp8":
            return decode_fp8(self.get(f"{module}.weight"), self.get(f"{module}.weight_scale"))
        blocks = self.get(f"{module}.weight_scale")
        if f"{module}.weight_packed" in self.where:  # compressed-tensors stores the divisor
            divisor = self.get(f"{module}.weight_global_scale").double().item()
            return decode_nvfp4(self.get(f"{module}.weight_packed"), blocks, 1 / divisor)
        return decode_nvfp4(self.get(f"{module}.weight"), blocks, self.get(f"{module}.weight_scale_2").item())


def trim_config(quantization: dict[str, Any], modules: set[str]) -> dict[str, Any] | None:
    """The quantisation section without the expanded modules; None when nothing quantised is left."""
    if "quantized_layers" not in quantization:
        raise UsageError(
            f"quant_method {quantization.get('quant_method')!r} without quantized_layers: found no per-module table to "
            "trim, expected ModelOpt MIXED_PRECISION; pass --all to expand everything"
        )
    left = {name: spec for name, spec in quantization["quantized_layers"].items() if name not in modules}
    return {**quantization, "quantized_layers": left} if left else None


def expand(source_folder: Path, out: Path, everything: bool) -> list[str]:
    """Write the copy; returns the expanded modules."""
    source = Source(source_folder)
    names = {n.rpartition(".")[0] for n in source.where if n.endswith((".weight_scale", ".weight_packed"))}
    modules = sorted(m for m in names if everything or source.scheme(m) == "nvfp4")
    if not modules:
        raise UsageError(f"{source_folder}: no module to expand; the oracle can serve it as it is")
    config = read_json(source_folder / "config.json")
    remaining = None if everything else trim_config(config["quantization_config"], set(modules))
    config.pop("quantization_config", None)
    if remaining is not None:
        config["quantization_config"] = remaining

    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    dropped = {f"{m}.{t}" for m in modules for t in SIDE_TENSORS}
    if remaining is None:
        dropped |= {n for n in source.where if n.endswith((".k_scale", ".v_scale"))}
    weight_map: dict[str, str] = {}
    total = 0
    for file in source.files:
        tensors: dict[str, Tensor] = {}
        for name in (n for n, f in source.where.items() if f == file and n not in dropped):
            module = name.rpartition(".")[0]
            is_expanded = module in modules and name.endswith((".weight", ".weight_packed"))
            tensors[f"{module}.weight" if is_expanded else name] = (
                source.expanded(module) if is_expanded else source.get(name)
            )
        if tensors:
            save_file(tensors, partial / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(tensors, file)
        total += sum(t.nbytes for t in tensors.values())
        print(f"{file}: {len(tensors)} tensors")

    for path in source_folder.iterdir():
        if path.is_file() and path.suffix != ".safetensors":
            shutil.copyfile(path, partial / path.name)
    legacy = partial / "hf_quant_config.json"
    if legacy.exists():
        twin = read_json(legacy)
        if remaining is None:
            legacy.unlink()
        else:
            twin["quantization"]["quantized_layers"] = remaining["quantized_layers"]
            legacy.write_text(json.dumps(twin, indent=1) + "\n")
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    for name, content in {"config.json": config, INDEX: index}.items():
        (partial / name).write_text(json.dumps(content, indent=1) + "\n")
    record = {
        "source_digest_sha256": digest(source_folder),
        "copy_digest_sha256": digest(partial),
        "expanded_to_bf16": modules,
    }
    (partial / "expanded_from.json").write_text(json.dumps(record, indent=1) + "\n")
    if out.exists():
        shutil.rmtree(out)
    partial.rename(out)
    return modules


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="checkpoint folder to read")
    parser.add_argument("out", type=Path, help="folder to make")
    parser.add_argument("--all", action="store_true", help="expand FP8 modules too (needed for MoE)")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing folder")
    args = parser.parse_args(argv)
    if args.out.exists() and not args.overwrite:
        parser.error(f"{args.out} exists; remove it or pass --overwrite")
    try:
        modules = expand(args.source, args.out, args.all)
    except UsageError as error:
        parser.error(str(error))
    print(f"{args.out}: {len(modules)} modules expanded to BF16")


if __name__ == "__main__":
    main()
