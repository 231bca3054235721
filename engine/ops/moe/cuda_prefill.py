"""The feed-forward of a large prefill step on CUDA: all experts' weights in row order once, grouped library products.

    rows of gate_up | x by pair | product | SwiGLU | rows of down | product | weighted sum of a token's pairs

Contract and roundings are those of `cuda.swiglu` and `cuda.down`; in addition each weight is rounded to
bfloat16 with its row scale, as in every library product (ops/linear). Nothing here waits for the device.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.kernels import library
from engine.ops.moe.cuda import Experts, Routing

LIBRARY_TOKENS = 8193
"""Of a step from which on this is taken: steps larger than vLLM's. At 8,192 tokens it is faster, but costs 0.77 GB that
decide the memory axis where vLLM's step is kept (README)."""
LIBRARY_ARCHS = ("90a",)
"""Where torch's grouped product is one launch. On others it reads the groups' ends on the host and loops."""


def by_library(tokens: int, device: torch.device) -> bool:
    """Whether a step of so many tokens had better be multiplied here."""
    return tokens >= LIBRARY_TOKENS and library.arch_of(device) in LIBRARY_ARCHS


def feed_forward(x: Tensor, gate_up: Experts, down: Experts, how: Routing) -> Tensor:
    """x bf16 [tokens, hidden], gate_up of `cuda.pack_gate_up`, a routing of over 32 tokens -> fp32 [1, tokens, hidden].

    One plane for the next norm. Raises ValueError for other shapes.
    """
    tokens, hidden = x.shape
    pairs, inter = tokens * how.slots, gate_up.rows // 2
    if (
        x.dtype != torch.bfloat16
        or not x.is_contiguous()
        or gate_up.shape[1] != hidden
        or down.shape != (hidden, inter)
    ):
        raise ValueError(
            f"moe: found x {x.dtype} {list(x.shape)}, gate_up {list(gate_up.shape)}, down {list(down.shape)} of each "
            f"expert; expected contiguous bfloat16 and shapes of one feed-forward"
        )
    if how.positions is None or how.ends is None or how.tokens != tokens:
        raise ValueError(f"moe: found a routing of {how.tokens} tokens; expected {tokens}, routed as more than 32 are")
    # One allocation for the rows of both weights and, behind down's, what is multiplied by them. So nothing is cut out
    # of the place that x by pair leaves before the last product, which is as large, asks for it.
    space = x.new_empty(max(_numel(gate_up), _numel(down) + pairs * inter))
    by_pair = x.new_empty(pairs, hidden)
    library.call("engine_moe_spread", x.device, x, how.positions, by_pair, tokens, how.slots, hidden, 1)
    y = F.grouped_mm(by_pair, _rows(gate_up, space), offs=how.ends)
    del by_pair
    inner = space[_numel(down) : _numel(down) + pairs * inter].view(pairs, inter)
    library.call("engine_swiglu", x.device, y, inner, pairs, inter)
    del y
    y = F.grouped_mm(inner, _rows(down, space), offs=how.ends)
    out = x.new_empty(1, tokens, hidden, dtype=torch.float32)
    library.call("engine_moe_combine", x.device, y, how.positions, how.weights, out, tokens, how.slots, hidden, 1)
    return out


def _numel(experts: Experts) -> int:
    return experts.row_scale.numel() * experts.shape[1]


def _rows(experts: Experts, space: Tensor) -> Tensor:
    """All experts' weights in bf16 at the start of `space` -> [experts, k, n], columns contiguous."""
    n, k = experts.shape
    rows = space[: _numel(experts)].view(-1, k)
    library.call("engine_w4a16_rows", space.device, experts.units, experts.row_scale, rows, *rows.shape)
    return rows.view(-1, n, k).transpose(1, 2)
