"""The feed-forward of a mixture of experts as the kernels want it: three or four launches, its norm among them.

add + norm + router + routing | gate_up + SwiGLU of the chosen experts | down, weighted
add + norm | router + routing | gate_up + SwiGLU of the chosen experts | down, weighted

Before each product of FP8 experts one launch more makes codes of its input.

Beyond 32 tokens the router is a library's product, the routing two launches, and the next norm multiplies by the
weights. A large prefill step unpacks all experts, where they are NVFP4, and multiplies by a library
(ops/moe/cuda_prefill.py).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional as F

from engine.models.fused_layers import Norm, Space, Stream, asked
from engine.models.layers import Source
from engine.ops.linear.cuda import Projection
from engine.ops.moe import cuda as moe_cuda
from engine.ops.moe import cuda_prefill as moe_prefill
from engine.ops.moe.cuda import Experts, Routing
from engine.weights.types import DenseWeight, WeightError, fuse


class SparseMoeBlock:
    """Routed experts and the shared one, which is one more expert that every token chooses."""

    packed: tuple[Projection, ...] = ()
    """Nothing here needs room in the Scratch that all layers share: what a large step writes out is let go after it."""

    def __init__(self, source: Source, name: str) -> None:
        config, linear = source.config, source.weights.linear
        self.top_k = config.num_experts_per_tok
        owners = [*(f"{name}.experts.{e}" for e in range(config.num_experts)), f"{name}.shared_expert"]
        gate, up, down = ([f"{owner}.{leaf}" for owner in owners] for leaf in ("gate_proj", "up_proj", "down_proj"))
        stacked = source.weights.stacked
        self.gate_up_proj = moe_cuda.pack_gate_up(stacked(gate), stacked(up), len(owners))
        self.down_proj = moe_cuda.pack(stacked(down), len(owners))
        router = fuse([linear(f"{name}.gate"), linear(f"{name}.shared_expert_gate")])
        if not isinstance(router, DenseWeight) or router.weight.dtype != torch.bfloat16:
            raise WeightError(f"{name}.gate: found {type(router).__name__}, expected bfloat16")
        self.router = router.weight
        self.observe: Callable[[Routing], None] | None = None
        """Told of each step's routing, for benches. Not while a graph is captured: a graph reuses its memory."""

    def __call__(self, norm: Norm, stream: Stream, space: Space) -> None:
        """Leaves a plane per expert of a token, or one, or the pairs and their weights."""
        tokens, hidden = stream.residual.shape
        routed, planes = tokens <= moe_cuda.MAX_ROUTED, stream.planes.shape[0]
        if routed and moe_cuda.routes_in_norm(tokens, planes, self.router.shape[0] - 1, hidden):
            normed, how = norm.add_and_route(stream, self.router, self.top_k, space.arrived)
            x = asked(normed.out)
        else:
            x = asked(norm.add(stream).out)
            if routed:
                _, how = moe_cuda.router(x, self.router, self.top_k, space.arrived, dependent=True)
            else:
                how = moe_cuda.routing(F.linear(x, self.router), self.top_k, dependent=True, count=stream.live)
        if self.observe is not None:
            self.observe(how)
        gate_up, down = self.gate_up_proj, self.down_proj
        if isinstance(gate_up, Experts) and isinstance(down, Experts) and moe_prefill.by_library(tokens, x.device):
            stream.parts = moe_prefill.feed_forward(x, gate_up, down, how)
            return
        pairs = moe_cuda.swiglu(x, gate_up, how, dependent=True)
        stream.parts = moe_cuda.down(pairs, down, how, dependent=True)
