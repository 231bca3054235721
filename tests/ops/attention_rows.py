"""Decoding rows of attention: random inputs over a poisoned paged cache, one launch, what torch says of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.ops import attention, norm, rope
from engine.ops.attention import cuda
from engine.ops.rope.cuda import qk_norm_rope
from tests.ops.poison import relative_error

DIM, EPS = 256, 1e-6
OUT_ERROR = 5e-3
SCALES = (0.04, 0.03)
"""Of e4m3 caches; a bfloat16 cache must not care, though checkpoints with scales are served from one."""
K_ERROR = {torch.bfloat16: 1e-3, torch.float8_e4m3fn: 5e-3}
"""A norm that rounds the other way once in a while moves an E4M3 code by one: 1/8 of that one value."""


@dataclass
class Rows:
    """One token each of several sequences; the caches hold all tokens before it and NaN everywhere else."""

    qkv: Tensor
    q_scale: Tensor
    k_scale: Tensor
    cos_sin: Tensor
    k_cache: Tensor
    v_cache: Tensor
    table: Tensor
    lengths: Tensor
    heads: int
    scales: tuple[float, float]

    @property
    def m(self) -> int:
        return self.qkv.shape[0]

    @property
    def kv_heads(self) -> int:
        return self.k_cache.shape[2]

    @property
    def constants(self) -> tuple[Tensor, Tensor, float, Tensor]:
        return self.q_scale, self.k_scale, EPS, self.cos_sin

    def slots(self) -> Tensor:
        """int64 [m]: where the newest tokens go."""
        at, block = self.lengths - 1, self.k_cache.shape[1]
        return self.table.gather(1, (at // block)[:, None])[:, 0] * block + at % block

    def caches(self) -> tuple[Tensor, Tensor]:
        return self.k_cache.clone(), self.v_cache.clone()

    def decode(self, caches: tuple[Tensor, Tensor], splits: int | None, space: cuda.Workspace, **options) -> Tensor:
        where = (self.table, self.lengths, self.scales, space)
        return cuda.decode(self.qkv, *self.constants, *caches, *where, splits=splits, **options)

    def separately(self, caches: tuple[Tensor, Tensor]) -> Tensor:
        """q, by the launch that prefill has; it writes key and value to `caches`."""
        places = (self.lengths - 1, self.slots(), *caches, self.scales)
        return qk_norm_rope(self.qkv, *self.constants, *places)

    def gates(self) -> Tensor:
        return self.qkv[:, : 2 * self.heads * DIM].view(self.m, self.heads, 2, DIM)[:, :, 1]


def make(lengths, heads, kv_heads, kv, generator, *, block=16, device="cpu") -> Rows:
    """Blocks in any order, foreign ones between them; table rows padded with a block that nobody owns."""
    m, scales = len(lengths), SCALES
    blocks = [-(-n // block) for n in lengths]
    order = torch.randperm(sum(blocks) + 2, generator=generator).tolist()
    table = torch.full((m, max(blocks) + 1), order.pop())
    caches = [torch.full((len(order) + 1, block, kv_heads, DIM), float("nan")).to(kv) for _ in scales]
    for row, (count, length) in enumerate(zip(blocks, lengths, strict=True)):
        table[row, :count] = torch.tensor([order.pop() for _ in range(count)])
        slots = (table[row, :, None] * block + torch.arange(block)).flatten()[: length - 1]
        for cache, scale in zip(caches, scales, strict=True):
            values = torch.randn(length - 1, kv_heads, DIM, generator=generator)
            attention.write(cache, values if kv.itemsize == 1 else values.to(kv), slots, scale)
    qkv = torch.randn(m, (2 * heads + 2 * kv_heads) * DIM, generator=generator).bfloat16()
    norms = [torch.rand(DIM, generator=generator) + 0.5 for _ in "qk"]
    cos_sin = rope.table(max(lengths) + 1, 64, 1e7, torch.bfloat16)
    tensors = [x.to(device) for x in (qkv, *norms, cos_sin, *caches, table, torch.tensor(lengths))]
    return Rows(*tensors, heads, scales)


def workspace(rows: Rows, splits: int, allocate=torch.empty) -> cuda.Workspace:
    """Exactly as many parts as this launch has."""
    device, parts = rows.qkv.device, rows.m * rows.kv_heads * splits
    return cuda.Workspace(
        allocate(parts, cuda.GROUP, DIM, device=device),
        allocate(parts, cuda.GROUP, 2, device=device),
        torch.zeros(rows.m * rows.kv_heads, dtype=torch.int32, device=device),
    )


def check(rows: Rows, out: Tensor, caches: tuple[Tensor, Tensor]) -> None:
    """Output and caches of one launch against torch; every byte that is not the newest tokens' is as it was."""
    qkv, q_scale, k_scale, cos_sin, table = (
        x.cpu() for x in (rows.qkv, rows.q_scale, rows.k_scale, rows.cos_sin, rows.table)
    )
    lengths, slots = rows.lengths.cpu(), rows.slots().cpu()
    width = rows.heads * DIM
    q_gate, k, v = qkv.tensor_split((2 * width, 2 * width + rows.kv_heads * DIM), -1)
    turned = cos_sin[lengths - 1]
    q = rope.apply(norm.rms_norm(q_gate.reshape(rows.m, rows.heads, 2, DIM)[:, :, 0], q_scale, EPS), turned)
    k = rope.apply(norm.rms_norm(k.reshape(rows.m, rows.kv_heads, DIM), k_scale, EPS), turned)
    made, wanted = [c.cpu() for c in caches], [c.cpu().clone() for c in (rows.k_cache, rows.v_cache)]
    attention.write(wanted[0], k, slots, rows.scales[0])
    attention.write(wanted[1], v.reshape(k.shape), slots, rows.scales[1])
    (k_rows, k_wanted), (v_rows, v_wanted) = (
        [c.view(-1, rows.kv_heads * DIM) for c in pair] for pair in zip(made, wanted, strict=True)
    )
    assert torch.equal(v_rows.view(torch.uint8), v_wanted.view(torch.uint8))
    others = torch.ones(k_rows.shape[0], dtype=torch.bool).index_fill(0, slots, value=False)
    assert torch.equal(k_rows.view(torch.uint8)[others], k_wanted.view(torch.uint8)[others])
    newest = [c.view(torch.uint8)[slots].view(c.dtype).float() for c in (k_rows, k_wanted)]
    assert relative_error(*newest) < K_ERROR[rows.k_cache.dtype]
    where = attention.pages(table, lengths, int(lengths.max()), rows.k_cache.shape[1])
    wide = [c.float() if c.dtype == torch.bfloat16 else c for c in made]
    mixed = attention.decode(q.float(), *wide, where, *rows.scales)
    assert relative_error(out, (mixed.bfloat16() * rows.gates().cpu().sigmoid()).flatten(1)) < OUT_ERROR
