"""Census: bytes resident per module and dtype, found by walking the model itself, beside the checkpoint's.

The walk believes no bookkeeping: it follows attributes from the model object to every tensor's storage, so a weight
that was quietly widened, or kept twice, shows up whoever made it. Only what the torch references declare as their
dequantised copies (`Operand.matrix`, bounded by a budget) is counted apart.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.ops.linear import Operand
from engine.weights.loader import ModelWeights

FUSED = {
    "q_proj": "qkv_proj",
    "k_proj": "qkv_proj",
    "v_proj": "qkv_proj",
    "gate_proj": "gate_up_proj",
    "up_proj": "gate_up_proj",
    "in_proj_qkv": "in_proj_qkvz",
    "in_proj_z": "in_proj_qkvz",
    "in_proj_b": "in_proj_ba",
    "in_proj_a": "in_proj_ba",
    "gate": "router",
    "shared_expert_gate": "router",
}
"""Checkpoint projection -> the model's attribute that joins it with its neighbours."""

SHARED = ".shared_expert."
"""Counted with the routed experts: a model may hold it as one more of them."""

SCALE_BYTES_PER_ROW = 4
"""Room for one fp32 scale per output row: what exact fusing costs beside the shipped bytes. More would hide one expert
of 256 in bfloat16.
"""


@dataclass(frozen=True, slots=True)
class CensusRow:
    """One module of the model: a fused projection of one layer, all experts' projection of one layer, or a rest."""

    module: str
    is_linear: bool
    rows: int
    """Output rows over all its shards; 0 for what is not a linear layer."""
    shipped: Mapping[str, int]
    """Bytes by dtype in the checkpoint."""
    resident: Mapping[str, int]
    """Bytes by dtype in memory, without `copy_bytes`."""
    copy_bytes: int
    """Dequantised copies that the torch references keep within ModelConfig.dequant_cache_bytes."""

    @property
    def is_widened(self) -> bool:
        """A linear layer that takes more than its shipped bytes and a scale per row. The embedding, norms and other
        small tensors may be widened: they are read by row or precomputed once.
        """
        room = SCALE_BYTES_PER_ROW * self.rows
        return self.is_linear and sum(self.resident.values()) > sum(self.shipped.values()) + room


@dataclass(frozen=True, slots=True)
class Census:
    rows: tuple[CensusRow, ...]

    @property
    def shipped_bytes(self) -> int:
        return sum(sum(row.shipped.values()) for row in self.rows)

    @property
    def resident_bytes(self) -> int:
        return sum(sum(row.resident.values()) for row in self.rows)

    @property
    def copy_bytes(self) -> int:
        return sum(row.copy_bytes for row in self.rows)

    @property
    def widened(self) -> tuple[str, ...]:
        return tuple(row.module for row in self.rows if row.is_widened)

    @property
    def absent(self) -> tuple[str, ...]:
        """Linear layers of the checkpoint that the walk did not find: the census would be blind to them."""
        return tuple(row.module for row in self.rows if row.is_linear and not row.resident)

    def lines(self) -> list[str]:
        """A table for people, modules of equal layers merged, bytes in GB (10^9)."""
        merged: dict[str, list[CensusRow]] = defaultdict(list)
        for row in self.rows:
            merged[".".join("*" if part.isdigit() else part for part in row.module.split("."))].append(row)
        out = [f"{'module':44} {'count':>5} {'shipped GB':>11} {'resident GB':>11} {'copies GB':>10}  dtypes, resident"]
        for name, rows in merged.items():
            dtypes: dict[str, int] = defaultdict(int)
            for row in rows:
                for dtype, nbytes in row.resident.items():
                    dtypes[dtype] += nbytes
            cells = (
                sum(sum(r.shipped.values()) for r in rows),
                sum(dtypes.values()),
                sum(r.copy_bytes for r in rows),
            )
            flag = "  WIDER THAN SHIPPED" if any(r.is_widened for r in rows) else ""
            text = ", ".join(f"{d} {b / 1e9:.6f}" for d, b in sorted(dtypes.items()))
            numbers = " ".join(f"{c / 1e9:>{w}.6f}" for c, w in zip(cells, (11, 11, 10), strict=True))
            out.append(f"{name:44} {len(rows):>5} {numbers}  {text}{flag}")
        total = (self.shipped_bytes, self.resident_bytes, self.copy_bytes)
        numbers = " ".join(f"{c / 1e9:>{w}.6f}" for c, w in zip(total, (11, 11, 10), strict=True))
        out.append(f"{'total':44} {len(self.rows):>5} {numbers}")
        return out


def take_census(model: object, weights: ModelWeights) -> Census:
    """Walk `model` and set what is found beside the checkpoint that `weights` reads."""
    groups = {name: _group(name) for name in weights.linears}
    linear_groups = dict.fromkeys(groups.values())
    shipped: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for name, info in weights.checkpoint.tensors.items():
        block, _, leaf = name.partition(".mlp.experts.")
        stack = f"{block}.mlp.{leaf.partition('.')[0]}"
        is_stack = leaf and stack in linear_groups
        group = stack if is_stack else groups.get(name.rpartition(".")[0]) or _rest(name)
        shipped[group][info.dtype] += info.nbytes
    resident: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    copies: dict[str, int] = defaultdict(int)
    for path, tensor, is_copy in _tensors(model):
        parts = path.replace(SHARED, ".").split(".")
        prefixes = (".".join(parts[:i]) for i in range(len(parts), 0, -1))
        group = next((p for p in prefixes if p in linear_groups), None) or _rest(path)
        if is_copy:
            copies[group] += tensor.nbytes
        else:
            resident[group][_dtype(tensor)] += tensor.nbytes
    rows: dict[str, int] = defaultdict(int)
    for name, (n, _) in weights.linears.items():
        rows[groups[name]] += n
    names = dict.fromkeys((*linear_groups, *shipped, *resident))
    return Census(
        tuple(
            CensusRow(name, name in linear_groups, rows[name], dict(shipped[name]), dict(resident[name]), copies[name])
            for name in names
        )
    )


def _group(module: str) -> str:
    """`layers.0.mlp.experts.3.up_proj` and `layers.0.mlp.shared_expert.up_proj` -> `layers.0.mlp.gate_up_proj`."""
    parent, _, leaf = module.replace(SHARED, ".").rpartition(".")
    if ".experts" in parent:
        parent = parent.partition(".experts")[0]
    joined = FUSED.get(leaf, leaf)
    return f"{parent}.{joined}" if parent else joined


def _rest(name: str) -> str:
    """Small tensors are counted per layer, the others by their first name."""
    parts = name.split(".")
    return f"layers.{parts[1]}.small" if parts[0] == "layers" else parts[0]


def _dtype(tensor: Tensor) -> str:
    """safetensors' names, so that both sides of the table read alike."""
    names = {
        torch.float32: "F32",
        torch.bfloat16: "BF16",
        torch.float16: "F16",
        torch.float8_e4m3fn: "F8_E4M3",
        torch.uint8: "U8",
    }
    return names.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))


def _tensors(root: object) -> Iterator[tuple[str, Tensor, bool]]:
    """(attribute path, tensor, whether it is a declared copy), every storage once."""
    seen_objects: set[int] = set()
    seen_storage: set[tuple[str, int, int]] = set()
    stack: list[tuple[str, object, bool]] = [("", root, False)]
    while stack:
        path, value, is_copy = stack.pop()
        if isinstance(value, Tensor):
            key = (str(value.device), value.data_ptr(), value.nbytes)
            if key not in seen_storage:
                seen_storage.add(key)
                yield path, value, is_copy
            continue
        if id(value) in seen_objects or isinstance(value, (str, bytes, int, float, type, torch.dtype, torch.device)):
            continue
        seen_objects.add(id(value))
        # Pushed in reverse, so that an operand's weight is met before a matrix that is the same tensor.
        for name, child in reversed(list(_children(value))):
            declared = isinstance(value, Operand) and name == "matrix"
            stack.append((f"{path}.{name}" if path else name, child, is_copy or declared))


def _children(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        yield from ((str(k), v) for k, v in value.items())
    elif isinstance(value, (list, tuple)):
        yield from ((str(i), v) for i, v in enumerate(value))
    elif dataclasses.is_dataclass(value):
        yield from ((f.name, getattr(value, f.name)) for f in dataclasses.fields(value))
    elif type(value).__module__.startswith("engine."):
        yield from vars(value).items()
