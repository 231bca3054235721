"""lm_head with its argmax in one launch, beside the two apart: inputs whose logits tie, and some that are no number."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.ops import sample
from engine.ops.sample import cuda as sample_cuda
from engine.weights.types import Nvfp4Weight

KINDS = ("random", "five rows", "one row", "nan", "some nan", "infinite", "negative", "zeros")


def make(kind: str, m: int, n: int, k: int, generator: torch.Generator) -> tuple[Nvfp4Weight, Tensor]:
    """(weight [n, k], x bf16 [m, k]), on the generator's device.

    "five rows" and "one row": copies of so few that equal logits lie in one lane's rows, in one tile, and in different
    tiles, warps and blocks.
    """
    where = {"generator": generator, "device": generator.device}
    packed = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, **where)
    scale = torch.randint(0x20, 0x40, (n, k // 16), dtype=torch.uint8, **where)
    row_scale = torch.rand(n, **where) + 0.5
    x = torch.randn(m, k, **where).bfloat16()
    some = torch.randperm(n, **where)[: max(2, n // 5)]
    match kind:
        case "five rows" | "one row":
            picked = torch.arange(n, device=generator.device).flip(0) % (5 if kind == "five rows" else 1)
            packed, scale, row_scale = packed[picked], scale[picked], row_scale[picked]
        case "nan":
            row_scale.fill_(float("nan"))
        case "some nan":
            row_scale[some] = float("nan")
        case "infinite":
            row_scale[some] = float("inf")
        case "negative":
            packed, x = packed | 0x88, x.abs()
        case "zeros":  # of either sign, which are equal
            row_scale.zero_()
    return Nvfp4Weight(packed, scale.view(torch.float8_e4m3fn), row_scale), x


def check(logits: Tensor, ids: Tensor, plain: Tensor) -> None:
    """The logits are those of the product alone, bit for bit; the ids are what torch finds in them."""
    assert torch.equal(logits.view(torch.int16), plain.view(torch.int16))
    assert torch.equal(ids, sample.argmax(plain.float()))


def clean(space: sample_cuda.ArgmaxWorkspace) -> bool:
    return not bool(space.best.any()) and not bool(space.arrived.any())
