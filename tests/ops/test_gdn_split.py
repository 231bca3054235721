"""Two bfloat16 terms for the fp32 operands of the chunked delta rule, against one TF32 operand; products in fp64.

Models the arithmetic of engine/ops/gdn/chunked.py for one head. What a GPU makes of it: test_prefill_cuda.py.
"""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

BOUND = 1e-5
"""Relative error of the state. The GPU tests allow 5e-4, and 2e-3 for equal keys."""
CHUNK, DIM = 64, 128


def split(x):
    high = x.bfloat16().float()
    return [high, (x - high).bfloat16().float()]


def dropped(x):
    """As the tensor core reads a TF32 operand: without its low 13 bits."""
    return [(x.float().view(torch.int32) & ~0x1FFF).view(torch.float32)]


def rounded(x):
    return dropped((x.float().view(torch.int32) + 0x1000).view(torch.float32))


def product(a, b, terms):
    """a and b as sums of terms; the product of two second terms is left out."""
    pairs = [(i, j) for i in range(len(terms(a))) for j in range(len(terms(b))) if i + j < 2]
    return sum(terms(a)[i].double() @ terms(b)[j].double() for i, j in pairs).float()


def scanned(k, v, beta, state, terms):
    """k [tokens, Dk] and v [tokens, Dv] in bf16's values, beta [tokens], state [Dv, Dk] -> the state after them."""
    for start in range(0, len(k), CHUNK):
        row = slice(start, start + CHUNK)
        norm = torch.rsqrt((k[row] ** 2).sum(1) + 1e-6)
        system = ((k[row] @ k[row].T).double() * norm * (norm * beta[row])[:, None]).tril(-1)
        inverse = torch.linalg.inv(system + torch.eye(CHUNK, dtype=torch.float64)).float()
        error = v[row].T - product(state, k[row].T.contiguous(), terms) * norm
        update = product(error, (inverse * beta[row]).T.contiguous(), terms)
        state = state + product(update * norm, k[row], terms)
    return state


def exact(k, v, beta, state):
    state = state.double()
    for key, value, strength in zip(k.double(), v.double(), beta.double(), strict=True):
        key = key * torch.rsqrt(key @ key + 1e-6)
        state = state + torch.outer(strength * (value - state @ key), key)
    return state


def error(terms, equal, seed):
    generator = torch.Generator().manual_seed(seed)
    k, v = (F.silu(torch.randn(2 * CHUNK, DIM, generator=generator)).bfloat16().float() for _ in range(2))
    beta = torch.randn(2 * CHUNK, generator=generator).sigmoid()
    if equal:
        k, v, beta = k[:1].expand_as(k), v[:1].expand_as(v), torch.full_like(beta, 9.0).sigmoid()
    state = torch.randn(DIM, DIM, generator=generator) * 0.1
    expected = exact(k, v, beta, state)
    return ((scanned(k, v, beta, state, terms) - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("equal", [False, True])
def test_two_terms_are_enough(equal):
    assert max(error(split, equal, seed) for seed in range(8)) < BOUND


@pytest.mark.parametrize("terms", [dropped, rounded])
@pytest.mark.parametrize("equal", [False, True])
def test_one_tf32_term_is_not(terms, equal):
    assert max(error(terms, equal, seed) for seed in range(8)) > 10 * BOUND


def test_dropped_bits_exceed_what_the_gpu_tests_allow():
    assert error(dropped, False, 0) > 5e-4
