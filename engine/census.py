"""Census: bytes resident per module and dtype, found by walking the model itself, beside the checkpoint's.

The walk believes no bookkeeping: it follows attributes from the model object to every tensor's storage, so a weight
that was quietly widened, or kept twice, shows up whoever made it. Only what the torch references declare as their
dequantised copies (`Operand.matrix`, bounded by a budget) is counted apart.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.errors import PreconditionError
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

MAY_BE_WIDER = {
    "small": "norm weights, A_log, dt_bias and conv taps, which every kernel takes in fp32",
    "norm": "a norm weight, which every kernel takes in fp32",
    "embed_tokens": "the embedding, of which a step reads one row per token",
}
"""Last part of a row's name -> what is in it and why it may be wider. No other row of the checkpoint's may."""

FP32_BEYOND_16_BITS = 1
"""Resident beyond shipped, over shipped, of what may be wider. More is a second copy."""


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
    def may_be_wider(self) -> str | None:
        """Why this row may be wider than shipped; None where it may not."""
        return None if self.is_linear else MAY_BE_WIDER.get(self.module.rpartition(".")[2])

    @property
    def wider_bytes(self) -> int:
        """Resident beyond shipped, less a scale per output row; 0 for what is computed, of which nothing is shipped."""
        beyond = sum(self.resident.values()) - sum(self.shipped.values()) - SCALE_BYTES_PER_ROW * self.rows
        return max(0, beyond) if self.shipped else 0

    @property
    def is_widened(self) -> bool:
        """Wider than shipped and not allowed to be, or wider than fp32 makes it."""
        allowed = 0 if self.may_be_wider is None else FP32_BEYOND_16_BITS * sum(self.shipped.values())
        return self.wider_bytes > allowed


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

    @property
    def allowed_bytes(self) -> int:
        """Beyond shipped, in what may be wider."""
        return sum(row.wider_bytes for row in self.rows if row.may_be_wider)

    def lines(self) -> list[str]:
        """A table for people, modules of equal layers merged, bytes in GB (10^9)."""
        merged: dict[str, list[CensusRow]] = defaultdict(list)
        for row in self.rows:
            merged[".".join("*" if part.isdigit() else part for part in row.module.split("."))].append(row)
        heads = f"{'module':44} {'count':>5} {'shipped GB':>11} {'resident GB':>11} {'copies GB':>10}"
        out = [f"{heads}  dtypes, shipped -> resident"]
        for name, rows in merged.items():
            shipped, resident = _sum(row.shipped for row in rows), _sum(row.resident for row in rows)
            numbers = _numbers(sum(shipped.values()), sum(resident.values()), sum(row.copy_bytes for row in rows))
            dtypes = f"{_dtypes(shipped) or 'computed'} -> {_dtypes(resident) or 'nothing'}"
            out.append(f"{name:44} {len(rows):>5} {numbers}  {dtypes}{_remark(rows)}")
        numbers = _numbers(self.shipped_bytes, self.resident_bytes, self.copy_bytes)
        out.append(f"{'total':44} {len(self.rows):>5} {numbers}")
        share = self.allowed_bytes / max(self.shipped_bytes, 1)
        out.append(
            f"wider than shipped where that is allowed: {self.allowed_bytes} bytes, {share:.4%} of the checkpoint"
        )
        return out


class WidenedError(PreconditionError):
    """A model that is not served, with what was found in it: `engine census` shows it whole."""

    def __init__(self, census: Census) -> None:
        names = census.widened
        super().__init__(
            f"{names[0]} takes more memory than the checkpoint ships ({len(names)} such modules): weights stay in "
            "their shipped dtype; this is a fault of the engine, report it with `engine census`"
        )
        self.census = census


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


def _sum(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Bytes by dtype over several rows."""
    total: dict[str, int] = defaultdict(int)
    for count in counts:
        for dtype, nbytes in count.items():
            total[dtype] += nbytes
    return total


def _numbers(*nbytes: int) -> str:
    return " ".join(f"{n / 1e9:>{width}.6f}" for n, width in zip(nbytes, (11, 11, 10), strict=True))


def _dtypes(count: Mapping[str, int]) -> str:
    return ", ".join(f"{dtype} {nbytes / 1e9:.6f}" for dtype, nbytes in sorted(count.items()))


def _remark(rows: Sequence[CensusRow]) -> str:
    """Of modules that are equal but for their layer."""
    if any(row.is_widened for row in rows):
        return "  WIDER THAN SHIPPED"
    return f"  wider, allowed: {rows[0].may_be_wider}" if any(row.wider_bytes for row in rows) else ""


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
