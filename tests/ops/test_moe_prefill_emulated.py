"""ops/moe/cuda_prefill on a CPU: its kernels in the emulator, its products by torch."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.nn import functional as F

from engine.kernels import library
from engine.kernels.library import KernelError
from engine.kernels.skinny import Machine
from engine.ops.moe import cuda, cuda_prefill
from tests.ops import emulator
from tests.ops.moe_products import FEED_FORWARD_ERROR, feed_forward_errors, normal, pack, pack_gate_up, stack
from tests.ops.test_moe_grouping import logits_for

needs_compiler = pytest.mark.skipif(emulator.compiler() is None, reason="needs g++ to compile kernels for the CPU")
CPU = torch.device("cpu")


@pytest.fixture
def _emulated(monkeypatch):
    many, prefill, linear = emulator.build("moe", "many"), emulator.build("moe", "prefill"), emulator.build("linear")

    def call(name, *rest):
        (many if "many" in name else prefill if "moe" in name else linear)(name, *rest)

    monkeypatch.setattr(library, "call", call)
    monkeypatch.setattr(cuda, "machine", lambda _: Machine(3, 227 * 1024))
    monkeypatch.setattr(cuda, "WIDE", False)  # beside many.cu; wide.cu has its own tests


@needs_compiler
@pytest.mark.usefixtures("_emulated", "poison")
@pytest.mark.parametrize(
    ("kind", "tokens", "hidden", "inter"),
    [
        ("random", 33, 512, 256),
        ("alike", 65, 256, 256),
        ("one", 33, 256, 256),
        ("never", 40, 256, 256),
    ],
)
def test_a_feed_forward(generator, kind, tokens, hidden, inter):
    """An expert without tokens, one with all of them, and everything between; beside the launches it stands for."""
    ours, theirs = feed_forward_errors(kind, tokens, 8, hidden, inter, generator)
    assert theirs < FEED_FORWARD_ERROR
    assert ours < FEED_FORWARD_ERROR


@needs_compiler
@pytest.mark.usefixtures("_emulated", "poison")
@pytest.mark.parametrize(("tokens", "slots", "k"), [(1, 1, 8), (7, 9, 264), (9, 16, 2048), (17, 3, 1032)])
def test_spread_and_combine_move_every_row(generator, tokens, slots, k):
    """To the bit: what is spread and combined with one weight at a time is the token's row times it."""
    positions = torch.randperm(tokens * slots, generator=generator).int()
    weights = torch.rand(tokens * slots, generator=generator)
    x = normal(tokens, k, generator)
    by_pair = x.new_empty(tokens * slots, k)
    library.call("engine_moe_spread", CPU, x, positions, by_pair, tokens, slots, k, 0)
    assert torch.equal(by_pair[positions.long()], x.repeat_interleave(slots, 0))
    y = normal(tokens * slots, k, generator)
    out = x.new_empty(tokens, k, dtype=torch.float32)
    library.call("engine_moe_combine", CPU, y, positions, weights, out, tokens, slots, k, 0)
    terms = (y[positions.long()].float() * weights[:, None]).view(tokens, slots, k)
    expected = torch.zeros(tokens, k)
    for slot in range(slots):
        expected += terms[:, slot]
    assert torch.equal(out, expected)


@pytest.mark.usefixtures("_emulated")
@needs_compiler
def test_what_is_in_an_expert_nobody_chose_changes_nothing(generator):
    experts = 8
    gate, up = stack(experts, 256, 256, generator), stack(experts, 256, 256, generator)
    down, x = stack(experts, 256, 256, generator), normal(40, 256, generator)
    how = cuda.routing(logits_for("never", 40, experts, 1), 4)
    before = cuda_prefill.feed_forward(x, pack_gate_up(gate, up), pack(down), how)
    for weight in (gate, up, down):
        weight[experts // 2].row_scale.fill_(float("nan"))
    assert torch.equal(cuda_prefill.feed_forward(x, pack_gate_up(gate, up), pack(down), how), before)


@pytest.mark.usefixtures("_emulated")
@needs_compiler
@pytest.mark.parametrize("what", ["ends", "positions", "weights", "gate_up", "down"])
def test_what_is_off_is_seen(generator, what):
    """Three rows of one expert counted to the next; two pairs of a token (on both ways: their weights), two weights or
    two experts swapped.
    """
    gate, up = stack(8, 256, 256, generator), stack(8, 256, 256, generator)
    down, x = stack(8, 256, 256, generator), normal(40, 256, generator)
    how = cuda.routing(logits_for("random", 40, 8, 1), 4)
    right = cuda_prefill.feed_forward(x, pack_gate_up(gate, up), pack(down), how)
    match what:
        case "ends":
            how.ends[2] -= 3
        case "positions" | "weights":
            values = getattr(how, what).clone()
            values[:2] = values[:2].flip(0)
            how = dataclasses.replace(how, **{what: values})
        case "gate_up":
            gate[0], gate[1] = gate[1], gate[0]
        case "down":
            down[0], down[1] = down[1], down[0]
    wrong = cuda_prefill.feed_forward(x, pack_gate_up(gate, up), pack(down), how)
    error = ((wrong - right).norm(dim=-1) / right.norm(dim=-1)).max()
    assert error > 5 * FEED_FORWARD_ERROR


@pytest.mark.usefixtures("_emulated")
@needs_compiler
@pytest.mark.parametrize("sizes", [(0, 1, 8), (1, 0, 8), (1, 17, 8), (1, 1, 12), (1, 1, 0), (1 << 30, 2, 8)])
def test_shapes_outside_the_contract_are_refused(sizes):
    for name, pointers in (("engine_moe_spread", 3), ("engine_moe_combine", 4)):
        with pytest.raises(KernelError, match="returned CUDA error 1"):
            library.call(name, CPU, *([None] * pointers), *sizes, 0)


@pytest.mark.usefixtures("_emulated")
@needs_compiler
def test_tensors_that_do_not_fit_together_are_refused(generator):
    gate_up = pack_gate_up(stack(8, 256, 256, generator), stack(8, 256, 256, generator))
    down, x = pack(stack(8, 256, 256, generator)), normal(40, 256, generator)
    how = cuda.routing(logits_for("random", 40, 8, 1), 4)
    with pytest.raises(ValueError, match="expected contiguous bfloat16 and shapes of one feed-forward"):
        cuda_prefill.feed_forward(x, down, down, how)
    with pytest.raises(ValueError, match="found a routing of 40 tokens; expected 39"):
        cuda_prefill.feed_forward(x[:39], gate_up, down, how)
    with pytest.raises(ValueError, match="routed as more than 32 are"):
        cuda_prefill.feed_forward(x, gate_up, down, dataclasses.replace(how, ends=None))


def test_a_library_multiplies_large_steps_where_its_product_is_one_launch(monkeypatch):
    monkeypatch.setattr(library, "arch_of", lambda _: "90a")
    assert cuda_prefill.by_library(cuda_prefill.LIBRARY_TOKENS, CPU)
    assert not cuda_prefill.by_library(cuda_prefill.LIBRARY_TOKENS - 1, CPU)
    monkeypatch.setattr(library, "arch_of", lambda _: "121a")
    assert not cuda_prefill.by_library(1 << 20, CPU)


def test_a_group_of_the_library_s_product_may_be_empty(generator):
    x, weights = normal(10, 32, generator), torch.randn(4, 16, 32, generator=generator).bfloat16()
    made = F.grouped_mm(x, weights.transpose(1, 2), offs=torch.tensor([0, 7, 7, 10], dtype=torch.int32))
    expected = torch.cat((x[:7].float() @ weights[1].float().T, x[7:].float() @ weights[3].float().T))
    assert torch.allclose(made.float(), expected, rtol=1e-2, atol=1e-2)
