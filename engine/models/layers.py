"""The pieces both models share: linears, norms, SwiGLU, gated attention, Gated DeltaNet.

Attribute names are the checkpoint's; where projections of one input are fused into one product, the attribute joins
their names (`qkv_proj`, `in_proj_qkvz`, `in_proj_ba`, `gate_up_proj`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from engine.models.caches import AttentionCache, GdnCache
from engine.models.config import TextConfig
from engine.models.step import Step
from engine.ops import attention, gdn, norm, rope
from engine.ops.linear import Budget, Operand, linear, prepare
from engine.ops.moe import silu_mul
from engine.weights.types import Fp8Weight, Nvfp4Weight, Weight, WeightError, fuse


class Weights(Protocol):
    """Where a model takes its weights from. Names are the checkpoint's, without the root (`layers.0.mlp.up_proj`)."""

    def linear(self, name: str) -> Weight: ...

    def stacked(self, names: Sequence[str]) -> Nvfp4Weight | Fp8Weight: ...

    def tensor(self, name: str) -> Tensor: ...

    def scalar(self, name: str, default: float) -> float: ...


@dataclass(frozen=True, slots=True)
class Source:
    """What a layer is built from."""

    weights: Weights
    config: TextConfig
    dtype: torch.dtype
    """Activation dtype."""
    budget: Budget
    """For dequantised copies; shared by all layers."""
    quantize_inputs: bool = True
    """W8A8 layers quantise their inputs. Off for agreement runs in float32: rounding to E4M3 is discontinuous, and
    turns the last bit of fp32 into differences as large as bfloat16's own noise within a few layers.
    """

    def operand(self, weight: Weight) -> Operand:
        return prepare(weight, self.dtype, self.budget, quantize_inputs=self.quantize_inputs)


def operand(source: Source, *names: str) -> Operand:
    """The projections as one operand; WeightError where their schemes differ."""
    return source.operand(fuse([source.weights.linear(name) for name in names]))


class Linear:
    """One or more projections of the same input, as one product where their schemes allow it."""

    def __init__(self, source: Source, *names: str) -> None:
        shards = [source.weights.linear(name) for name in names]
        try:
            parts = [fuse(shards)]
        except WeightError:
            # Shards of different schemes (one layer kept in bfloat16, say) stay separate products.
            parts = shards
        self.operands: tuple[Operand, ...] = tuple(source.operand(part) for part in parts)

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, K] -> [tokens, N], N over all projections in order."""
        if len(self.operands) == 1:
            return linear(x, self.operands[0])
        return torch.cat([linear(x, operand) for operand in self.operands], -1)


class RMSNorm:
    """Zero-centred: the checkpoint stores the scale minus one."""

    def __init__(self, source: Source, name: str) -> None:
        self.scale = 1.0 + source.weights.tensor(f"{name}.weight").float()
        self.eps = source.config.rms_norm_eps

    def __call__(self, x: Tensor) -> Tensor:
        return norm.rms_norm(x, self.scale, self.eps)

    def add(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """(normed, residual + x)."""
        return norm.add_rms_norm(x, residual, self.scale, self.eps)


class MLP:
    """SwiGLU: down(silu(gate x) · up x)."""

    def __init__(self, source: Source, name: str) -> None:
        self.gate_up_proj = Linear(source, f"{name}.gate_proj", f"{name}.up_proj")
        self.down_proj = Linear(source, f"{name}.down_proj")

    def __call__(self, x: Tensor) -> Tensor:
        return self.down_proj(silu_mul(self.gate_up_proj(x)))


class Attention:
    """Grouped-query attention with a sigmoid output gate and per-head norms."""

    def __init__(self, source: Source, name: str) -> None:
        config = source.config
        self.heads = config.num_attention_heads
        self.kv_heads = config.num_key_value_heads
        self.head_dim = config.head_dim
        self.qkv_proj = Linear(source, f"{name}.q_proj", f"{name}.k_proj", f"{name}.v_proj")
        self.o_proj = Linear(source, f"{name}.o_proj")
        self.q_norm = RMSNorm(source, f"{name}.q_norm")
        self.k_norm = RMSNorm(source, f"{name}.k_norm")
        self.k_scale = source.weights.scalar(f"{name}.k_proj.k_scale", 1.0)
        self.v_scale = source.weights.scalar(f"{name}.v_proj.v_scale", 1.0)

    def __call__(self, x: Tensor, cos_sin: Tensor, step: Step, cache: AttentionCache) -> Tensor:
        """[tokens, hidden] -> the same; cos_sin [tokens, rotary_dim]."""
        width, kv_width = self.heads * self.head_dim, self.kv_heads * self.head_dim
        q_gate, k, v = self.qkv_proj(x).tensor_split((2 * width, 2 * width + kv_width), -1)
        # Query and output gate alternate per head: [q 0 | gate 0 | q 1 | gate 1 | ...].
        q, gate = q_gate.reshape(-1, self.heads, 2 * self.head_dim).chunk(2, -1)
        q = rope.apply(self.q_norm(q), cos_sin)
        k = rope.apply(self.k_norm(k.reshape(-1, self.kv_heads, self.head_dim)), cos_sin)
        scales = (self.k_scale, self.v_scale)
        attention.write(cache.k, k, step.kv_slots, self.k_scale)
        attention.write(cache.v, v.reshape(k.shape), step.kv_slots, self.v_scale)
        out = []
        if step.pages is not None:
            out.append(attention.decode(q[: step.decodes], cache.k, cache.v, step.pages, *scales))
        for run in step.runs:
            rows = q[run.start : run.end]
            out.append(attention.prefill(rows, cache.k, cache.v, run.kv_slots, run.position, *scales))
        mixed = torch.cat(out) if len(out) > 1 else out[0]
        return self.o_proj((mixed * gate.sigmoid()).flatten(1))


class GatedDeltaNet:
    """Linear attention with a recurrent state; see ops/gdn for the rule."""

    def __init__(self, source: Source, name: str) -> None:
        config, weights = source.config, source.weights
        self.in_proj_qkvz = Linear(source, f"{name}.in_proj_qkv", f"{name}.in_proj_z")
        self.in_proj_ba = Linear(source, f"{name}.in_proj_b", f"{name}.in_proj_a")
        self.out_proj = Linear(source, f"{name}.out_proj")
        self.core = gdn.GdnWeights(
            conv=weights.tensor(f"{name}.conv1d.weight").float().squeeze(1).contiguous(),
            decay_rate=-weights.tensor(f"{name}.A_log").float().exp(),
            dt_bias=weights.tensor(f"{name}.dt_bias").float(),
            norm=weights.tensor(f"{name}.norm.weight").float(),
            eps=config.rms_norm_eps,
            key_heads=config.linear_num_key_heads,
            value_heads=config.linear_num_value_heads,
            key_dim=config.linear_key_head_dim,
            value_dim=config.linear_value_head_dim,
        )

    def __call__(self, x: Tensor, step: Step, cache: GdnCache) -> Tensor:
        """[tokens, hidden] -> the same."""
        core = self.core
        value_width = core.value_heads * core.value_dim
        qkv, z = self.in_proj_qkvz(x).tensor_split((-value_width,), -1)
        b, a = self.in_proj_ba(x).chunk(2, -1)
        out = []
        if step.decodes:
            n = step.decodes
            rows = (qkv[:n], z[:n], b[:n], a[:n])
            out.append(gdn.decode(*rows, cache.conv, cache.recurrent, step.state_slots, core))
        if step.chunks is not None:
            n = step.decodes
            rows = (qkv[n:], z[n:], b[n:], a[n:])
            out.append(gdn.prefill_runs(*rows, cache.conv, cache.recurrent, step.chunks, core))
        return self.out_proj(torch.cat(out) if len(out) > 1 else out[0])
