"""What the sampler draws on CUDA is what it draws on a CPU: same seed, same ids, every option alone and all mixed.

The two round softmax and sums apart in the last bits: a draw whose uniform number lies within NEAR of an id's end
may be its neighbour's. On a CPU the same comparison runs against itself, and against faults that it must see.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from engine.batch import Segment
from engine.ops import sample
from engine.request import SamplingParams
from engine.sampler import Sampler, seeded_uniform

NEAR = 1e-6
VOCAB = 4099
CPU = torch.device("cpu")
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
OPTIONS: dict[str, dict[str, object]] = {
    "greedy": {"temperature": 0.0},
    "greedy with penalties": {
        "temperature": 0.0, "repetition_penalty": 1.3, "presence_penalty": 0.7, "frequency_penalty": -0.4
    },
    "temperature": {"temperature": 0.7},
    "hot": {"temperature": 5.0},
    "top_k": {"top_k": 20},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.05},
    "repetition": {"repetition_penalty": 1.8},
    "presence": {"presence_penalty": 1.5},
    "frequency": {"frequency_penalty": -1.5},
    "bias": {"logit_bias": ((5, 4.0), (6, -100.0))},
    "all": {
        "temperature": 1.2, "top_k": 50, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.2,
        "presence_penalty": 0.3, "frequency_penalty": 0.2, "logit_bias": ((7, 1.0),),
    },
}  # fmt: skip


class Shifted(Sampler):
    """Draws with uniform numbers that lie `shift` off."""

    shift = 0.0

    def _uniform(self, segment: Segment) -> float:
        assert segment.params.seed is not None
        u = seeded_uniform(segment.params.seed, segment.position + len(segment.token_ids))
        return min(max(u + self.shift, 0.0), 1.0 - 2**-53)


def segment(row: int, seed: int, options: dict[str, object], vocab: int = VOCAB) -> Segment:
    prompt, output = (
        tuple((row * 31 + i * 7) % vocab for i in range(40)),
        [(row * 13 + i * i) % vocab for i in range(9)],
    )
    params = dataclasses.replace(SamplingParams(max_tokens=64, temperature=1.0, seed=seed), **options)
    return Segment(
        f"r{row}", (output[-1],), len(prompt) + len(output) - 1, (0,), row, False, True, params, prompt, output
    )


def logits_of(rows: int, seed: int, vocab: int = VOCAB) -> Tensor:
    """Fresh, and of bfloat16's grid as a graph's are, so that some are equal."""
    return (torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 2).bfloat16().float()


def drawn(device: str, logits: Tensor, segments: list[Segment], shift: float = 0.0) -> list[int]:
    sampler = Shifted(logits.shape[1], torch.device(device))
    sampler.shift = shift
    return [token for token, _ in sampler.sample(logits.clone().to(device), segments)]


def differing(device: str, logits: Tensor, segments: list[Segment]) -> list[int]:
    """Rows whose id is none that the CPU draws at this uniform number, or NEAR below or above it."""
    expected = list(zip(*(drawn("cpu", logits, segments, shift) for shift in (-NEAR, 0.0, NEAR)), strict=True))
    return [i for i, token in enumerate(drawn(device, logits, segments)) if token not in expected[i]]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rows", [1, 2, 7, 32])
@pytest.mark.parametrize("name", OPTIONS)
def test_one_option_in_every_row(device: str, rows: int, name: str) -> None:
    for seed in range(3):
        segments = [segment(i, 100 * seed + i, OPTIONS[name]) for i in range(rows)]
        assert differing(device, logits_of(rows, seed), segments) == []


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rows", [1, 2, 12, 32])
def test_options_mixed_in_one_batch(device: str, rows: int) -> None:
    kinds = list(OPTIONS.values())
    for seed in range(3):
        segments = [segment(i, seed - 50 * i, kinds[(i + seed) % len(kinds)]) for i in range(rows)]
        assert differing(device, logits_of(rows, 10 + seed), segments) == []


@pytest.mark.parametrize("device", DEVICES)
def test_a_whole_vocabulary(device: str) -> None:
    vocab, kinds = 248320, list(OPTIONS.values())
    segments = [segment(i, i, options, vocab) for i, options in enumerate(kinds)]
    assert differing(device, logits_of(len(kinds), 3, vocab), segments) == []


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["temperature", "top_p", "all"])
def test_a_seed_says_what_is_drawn_whatever_is_beside_it(device: str, name: str) -> None:
    logits, others = logits_of(32, 4), list(OPTIONS.values())
    alone = drawn(device, logits[:1], [segment(0, 77, OPTIONS[name])])
    beside = [segment(0, 77, OPTIONS[name]), *(segment(i, i, others[i % len(others)]) for i in range(1, 32))]
    first, *rest = drawn(device, logits, beside)
    assert [first] == alone
    assert drawn(device, logits, beside) == [first, *rest]
    seeds = [drawn(device, logits[:1], [segment(0, seed, OPTIONS[name])])[0] for seed in range(40)]
    assert len(set(seeds)) > 5


FAULTS = {
    "top_k is one too many": ("top_k", lambda a: (*a[:3], a[3] + 1, *a[4:])),
    "top_p is a tenth too low": ("top_p", lambda a: (*a[:4], a[4] - 0.1, *a[5:])),
    "min_p is left out": ("min_p", lambda a: (*a[:5], a[5] * 0)),
    "a temperature is a hundredth off": ("temperature", lambda a: (*a[:2], a[2] * 1.01, *a[3:])),
    "a uniform number of three digits": ("hot", lambda a: (a[0], (a[1] * 1e3).round() / 1e3, *a[2:])),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_comparison_sees_a_fault(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, change = FAULTS[fault]
    real, logits = sample.draw, logits_of(32, 5)
    segments = [segment(i, 1000 + i, OPTIONS[name]) for i in range(32)]
    expected = [drawn("cpu", logits, segments, shift) for shift in (-NEAR, 0.0, NEAR)]
    monkeypatch.setattr(sample, "draw", lambda *a: real(*change(a)))
    broken = drawn("cpu", logits, segments)
    assert any(token not in those for token, *those in zip(broken, *expected, strict=True))
