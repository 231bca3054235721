"""What `engine bench op prefill` runs: one sequence's tokens through Gated DeltaNet, launch by launch, and attention.

A case's batch is its tokens. The parts of Gated DeltaNet are timed apart and checked together, against torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.bench import Case
from engine.bench_tokens import error
from engine.kernels import library
from engine.ops import attention, gdn
from engine.ops.attention.cuda_prefill import gate


@dataclass(frozen=True, slots=True)
class Heads:
    """The 27B's."""

    key: int = 16
    value: int = 48
    query: int = 24
    kv: int = 4


HEADS = Heads()
DIM, HEAD_DIM, BLOCK_TOKENS, EPS = 128, 256, 16, 1e-6
GDN_ERROR, ATTENTION_ERROR = 6e-3, 1e-2
"""As tests/ops hold the kernels to: bfloat16 between the launches."""


def prefill_cases(tokens: int, device: torch.device, heads: Heads = HEADS) -> Iterator[Case]:
    yield from _gdn(tokens, device, heads)
    yield from _attention(tokens, device, heads)


def _gdn(tokens: int, device: torch.device, heads: Heads) -> Iterator[Case]:
    from engine.ops.gdn import chunked, cuda_prefill  # here, since chunked needs Triton, which only a CUDA torch has

    channels, width = (2 * heads.key + heads.value) * DIM, heads.value * DIM
    weights = gdn.GdnWeights(
        conv=torch.rand(channels, 4, device=device) - 0.5,
        decay_rate=-torch.rand(heads.value, device=device) * 4,
        dt_bias=torch.rand(heads.value, device=device),
        norm=torch.rand(DIM, device=device) + 0.5,
        eps=EPS,
        key_heads=heads.key,
        value_heads=heads.value,
        key_dim=DIM,
        value_dim=DIM,
    )
    qkvz = torch.randn(tokens, channels + width, device=device).bfloat16()
    ba = torch.randn(tokens, 2 * heads.value, device=device).bfloat16()
    conv_state = torch.randn(1, channels, 3, device=device).bfloat16()
    state = torch.randn(1, heads.value, DIM, DIM, device=device) * 0.3
    out, o = (torch.empty(tokens, width, dtype=torch.bfloat16, device=device) for _ in "oo")
    b, a = ba.chunk(2, -1)
    caches = (conv_state.clone(), state.clone())
    expected = gdn.prefill(qkvz[:, :channels], qkvz[:, channels:], b, a, *caches, 0, weights)
    cuda_prefill.prefill(qkvz, ba, conv_state, state, 0, weights, out, None)
    found = max(error(out, expected), error(state, caches[1]))
    mixed = torch.randn(tokens, channels, device=device).bfloat16()

    def convolve(_: int) -> None:
        sizes = (tokens, channels, qkvz.stride(0), conv_state[0].stride(0))
        library.call("engine_gdn_conv", device, qkvz, weights.conv, conv_state[0], mixed, None, None, *sizes)

    def scan(_: int) -> None:
        chunked.delta_rule(mixed, ba, state[0], weights, o)

    def norm(_: int) -> None:
        sizes = (tokens, heads.value, qkvz.stride(0), EPS)
        library.call("engine_gdn_gated_norm", device, o, qkvz[:, channels:], weights.norm, None, out, *sizes)

    chunks = -(-tokens // chunked.CHUNK_TOKENS)
    squares = heads.value * chunks * 4 * chunked.CHUNK_TOKENS * (chunked.CHUNK_TOKENS * 2 + 4)
    parts: tuple[tuple[str, int, Callable[[int], None]], ...] = (
        ("gdn convolution", 2 * mixed.nbytes, convolve),
        ("gdn chunks, scan", 2 * mixed.nbytes + 2 * squares + 2 * state.nbytes + o.nbytes, scan),
        ("gdn gated norm", 3 * o.nbytes, norm),
    )
    for name, nbytes, run in parts:
        yield Case(name, tokens, nbytes, run, 1, found, GDN_ERROR)


def _attention(tokens: int, device: torch.device, heads: Heads) -> Iterator[Case]:
    """A prompt's own tokens, in FP8, from the cache; then the output gate."""
    shape = (-(-tokens // BLOCK_TOKENS), BLOCK_TOKENS, heads.kv, HEAD_DIM)
    keys, values = (torch.randn(shape, device=device).to(torch.float8_e4m3fn) for _ in "kv")
    slots = torch.arange(tokens, device=device)
    q = torch.randn(tokens, heads.query, HEAD_DIM, device=device).bfloat16()
    qkv = torch.randn(tokens, 2 * (heads.query + heads.kv) * HEAD_DIM, device=device).bfloat16()

    def attend(_: int) -> Tensor:
        return attention.prefill(q, keys, values, slots, 0, 1.0, 1.0)

    got = attend(0)
    k, v = (cache.view(torch.uint8).flatten(0, 1)[:tokens].view(cache.dtype).double() for cache in (keys, values))
    rows = torch.tensor(sorted({0, tokens // 2, tokens - 1}), device=device)
    expected = _rows(q.double(), k, v, rows)
    nbytes = 2 * q.nbytes + 2 * tokens * heads.kv * HEAD_DIM
    yield Case("attention of a prompt", tokens, nbytes, attend, 1, error(got[rows], expected), ATTENTION_ERROR)
    queries = qkv[:, : 2 * heads.query * HEAD_DIM].view(tokens, heads.query, 2, HEAD_DIM)
    gated = q.float() * queries[:, :, 1].float().sigmoid()
    made = gate(q, qkv, None)
    found = error(made, gated.flatten(1))
    yield Case("attention gate", tokens, 3 * q.nbytes, lambda _: gate(q, qkv, None), 1, found, ATTENTION_ERROR)


def _rows(q: Tensor, k: Tensor, v: Tensor, rows: Tensor) -> Tensor:
    """Causal attention of these rows, in float64."""
    group = q.shape[1] // k.shape[1]
    out = []
    for row in rows.tolist():
        seen_k, seen_v = (x[: row + 1].repeat_interleave(group, 1) for x in (k, v))
        scores = torch.einsum("hd,thd->ht", q[row], seen_k) * q.shape[2] ** -0.5
        out.append(torch.einsum("ht,thd->hd", scores.softmax(-1), seen_v))
    return torch.stack(out)
