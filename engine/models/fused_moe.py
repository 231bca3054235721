"""The feed-forward of a mixture of experts as the kernels want it: four launches, its norm among them.

add + norm + router | routing | gate_up + SwiGLU of the chosen experts | down, weighted
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.kernels.skinny import MAX_TOKENS
from engine.models.fused_layers import Norm, Space, asked
from engine.models.layers import Source
from engine.ops.linear.cuda import Packed
from engine.ops.moe import cuda as moe_cuda
from engine.weights.types import DenseWeight, Nvfp4Weight, WeightError, fuse


class SparseMoeBlock:
    """Routed experts and the shared one, which is one more expert that every token chooses."""

    packed: tuple[Packed, ...] = ()
    """Nothing here is ever written out row by row."""

    def __init__(self, source: Source, name: str) -> None:
        config, linear = source.config, source.weights.linear
        self.top_k = config.num_experts_per_tok
        owners = [*(f"{name}.experts.{e}" for e in range(config.num_experts)), f"{name}.shared_expert"]
        self.gate_up_proj = moe_cuda.pack_gate_up(
            [_nvfp4(source, f"{owner}.gate_proj") for owner in owners],
            [_nvfp4(source, f"{owner}.up_proj") for owner in owners],
        )
        self.down_proj = moe_cuda.pack([_nvfp4(source, f"{owner}.down_proj") for owner in owners])
        router = fuse([linear(f"{name}.gate"), linear(f"{name}.shared_expert_gate")])
        if not isinstance(router, DenseWeight) or router.weight.dtype != torch.bfloat16:
            raise WeightError(f"{name}.gate: found {type(router).__name__}, expected bfloat16")
        self.router = router.weight

    def __call__(self, norm: Norm, parts: Tensor | None, residual: Tensor, _space: Space) -> tuple[Tensor, Tensor]:
        """-> (planes, one per expert of a token; residual)."""
        # Beyond a few tokens the norm would be repeated too often beside the small product.
        few = residual.shape[0] <= MAX_TOKENS
        normed, residual = norm.add(parts, residual, small_weight=self.router if few else None)
        x = asked(normed.out)
        logits = asked(normed.small) if few else F.linear(x, self.router)
        how = moe_cuda.routing(logits, self.top_k, dependent=True)
        pairs = moe_cuda.swiglu(x, self.gate_up_proj, how, dependent=True)
        return moe_cuda.weighted_planes(pairs, self.down_proj, how, dependent=True), residual


def _nvfp4(source: Source, name: str) -> Nvfp4Weight:
    weight = source.weights.linear(name)
    if not isinstance(weight, Nvfp4Weight):
        raise WeightError(f"{name}: found {type(weight).__name__}, expected Nvfp4Weight")
    return weight
