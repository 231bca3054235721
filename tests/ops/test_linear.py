"""ops/linear against its fp32 specification, for every weight type, cached and not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.ops.linear import Budget, linear, naive, prepare
from engine.ops.linear.quantize import quantize_per_token, round_e4m3
from engine.weights.types import DenseWeight, Fp8Weight, Nvfp4Weight, Weight

KINDS = ["dense-bf16", "dense-f32", "nvfp4", "fp8-static", "fp8-dynamic"]
TOKENS = [1, 3, 17]
N, K = 48, 64


def make(kind: str, generator: torch.Generator) -> Weight:
    values = torch.randn(N, K, generator=generator) * 0.05
    rows = torch.rand(N, generator=generator) * 0.01 + 0.001
    if kind == "dense-bf16":
        return DenseWeight(values.bfloat16())
    if kind == "dense-f32":
        return DenseWeight(values)
    if kind == "nvfp4":
        packed = torch.randint(0, 256, (N, K // 2), generator=generator).to(torch.uint8)
        blocks = (torch.rand(N, K // 16, generator=generator) * 4).to(torch.float8_e4m3fn)
        return Nvfp4Weight(packed, blocks, rows)
    codes = (values * 1000).to(torch.float8_e4m3fn)
    return Fp8Weight(codes, rows, torch.tensor(0.02) if kind == "fp8-static" else None)


def run(kind: str, tokens: int, dtype: torch.dtype, budget: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    weight = make(kind, generator)
    x = torch.randn(tokens, K, generator=generator).to(dtype)
    return linear(x, prepare(weight, dtype, Budget(budget))), naive.linear(x, weight)


@pytest.mark.parametrize("budget", [0, 1 << 30], ids=["per-call", "cached"])
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("kind", KINDS)
def test_float32_equals_the_specification(kind, tokens, budget, generator):
    actual, expected = run(kind, tokens, torch.float32, budget, generator)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("budget", [0, 1 << 30], ids=["per-call", "cached"])
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_is_one_rounding_away(kind, tokens, budget, generator):
    actual, expected = run(kind, tokens, torch.bfloat16, budget, generator)
    assert actual.dtype == torch.bfloat16
    # W4A16 also rounds each dequantised weight; over K terms that error is below one rounding of the result's scale.
    torch.testing.assert_close(actual.float(), expected, rtol=2**-7, atol=2**-8 * float(expected.abs().max()))


@pytest.mark.parametrize("kind", ["dense-bf16", "nvfp4"])
def test_cpu_without_bfloat16_instructions_multiplies_the_same_values_in_float32(kind, generator, monkeypatch):
    weight = make(kind, generator)
    x = torch.randn(5, K, generator=generator).bfloat16()
    monkeypatch.setattr("engine.ops.linear.fast_bfloat16", lambda _: True)
    narrow = linear(x, prepare(weight, torch.bfloat16, Budget(1 << 20)))
    monkeypatch.setattr("engine.ops.linear.fast_bfloat16", lambda _: False)
    operand = prepare(weight, torch.bfloat16, Budget(1 << 20))
    assert operand.matrix.dtype == torch.float32
    torch.testing.assert_close(linear(x, operand), narrow, rtol=2**-7, atol=1e-4 * float(narrow.abs().max()))


@pytest.mark.parametrize("kind", ["fp8-static", "fp8-dynamic"])
def test_unquantised_inputs_meet_the_dequantised_weight(kind, generator):
    weight = make(kind, generator)
    x = torch.randn(5, K, generator=generator)
    operand = prepare(weight, torch.float32, Budget(0), quantize_inputs=False)
    torch.testing.assert_close(linear(x, operand), x @ weight.dequantize(torch.float32).T)


def test_budget_is_spent_once_and_never_exceeded(generator):
    budget = Budget(N * K * 4)
    first = prepare(make("fp8-static", generator), torch.float32, budget)
    second = prepare(make("fp8-static", generator), torch.float32, budget)
    assert first.copy_bytes == N * K * 4
    assert second.copy_bytes == 0
    assert second.matrix is None
    assert budget.free_bytes == 0


def test_dense_weight_of_the_right_dtype_is_not_copied(generator):
    operand = prepare(make("dense-f32", generator), torch.float32, Budget(0))
    assert operand.matrix is operand.weight.weight
    assert operand.copy_bytes == 0


def test_activations_beyond_the_static_range_saturate(generator):
    weight = make("fp8-static", generator)
    operand = prepare(weight, torch.float32, Budget(0))
    limit = 448.0 * 0.02
    x = torch.full((1, K), limit)
    assert torch.equal(linear(x * 5, operand), linear(x, operand))


def test_row_of_zeros_stays_finite():
    values, scale = quantize_per_token(torch.zeros(2, K))
    assert torch.equal(values, torch.zeros(2, K))
    assert bool((scale > 0).all())


def test_round_e4m3_equals_the_conversion_to_float8_and_back():
    codes = torch.arange(0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    ties = (codes[1:] + codes[:-1]) / 2
    around = torch.cat([torch.nextafter(ties, ties.new_tensor(to)) for to in (-1.0, 500.0)])
    bits = torch.arange(0, torch.tensor(448.0).view(torch.int32).item(), 1009, dtype=torch.int32)
    x = torch.cat((codes, ties, around, bits.view(torch.float32), torch.tensor([448.0, 2.0**-149])))
    x = torch.cat((x, -x))
    assert torch.equal(round_e4m3(x), x.to(torch.float8_e4m3fn).float())
    assert bool(round_e4m3(torch.tensor([float("nan")])).isnan().all())
