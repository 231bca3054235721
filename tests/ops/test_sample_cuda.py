"""ops/sample's argmax kernel: the reference's answer, the lowest id of a tie, workspace as it was."""

from __future__ import annotations

import pytest
import torch

from engine.ops import sample
from engine.ops.sample import cuda

pytestmark = pytest.mark.gpu


def run(logits):
    space = cuda.workspace(logits.shape[0], logits.device)
    ids = torch.full((logits.shape[0],), -1, dtype=torch.int64, device=logits.device)
    for _ in range(2):  # the second launch proves that the first one left its workspace clean
        cuda.argmax(logits, ids, space)
    assert int(space.best.abs().sum()) == int(space.arrived.abs().sum()) == 0
    return ids


@pytest.mark.parametrize("rows", [1, 3, 32])
@pytest.mark.parametrize("vocab_size", [8, 4096, 4104, 248320])
def test_argmax(rows, vocab_size, cuda_generator):
    logits = torch.randn(rows, vocab_size, device="cuda", generator=cuda_generator).bfloat16()
    assert torch.equal(run(logits), sample.argmax(logits.float()))


@pytest.mark.parametrize("value", [3.0, 0.0, -2.0, float("-inf")])
def test_ties_go_to_the_lowest_id(value):
    logits = torch.full((2, 10000), float("-inf"), device="cuda", dtype=torch.bfloat16)
    logits[0, [9999, 77, 5000]] = value
    logits[1, [4096, 4095]] = value
    expected = [0, 0] if value == float("-inf") else [77, 4095]
    assert run(logits).tolist() == expected


def test_nan_is_above_every_number():
    logits = torch.full((1, 5000), float("inf"), device="cuda", dtype=torch.bfloat16)
    logits[0, [4999, 4200]] = float("nan")
    assert run(logits).tolist() == [4200]


def test_both_zeros_are_equal():
    logits = torch.full((1, 64), -1.0, device="cuda", dtype=torch.bfloat16)
    logits[0, 5], logits[0, 6] = -0.0, 0.0
    assert run(logits).tolist() == [5]


def test_float32_logits_are_refused():
    logits = torch.zeros(1, 64, device="cuda")
    with pytest.raises(ValueError, match="expected bf16"):
        cuda.argmax(logits, torch.zeros(1, dtype=torch.int64, device="cuda"), cuda.workspace(1, logits.device))
