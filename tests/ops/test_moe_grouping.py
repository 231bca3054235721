"""ops/moe/cuda without a GPU: what sorting lays out, against the definition; what is refused."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.ops.moe import cuda, naive, route
from tests.ops.sorted_routing import routing_by_sort


def logits_for(kind: str, tokens: int, experts: int, seed: int) -> torch.Tensor:
    """Random, all equal, few distinct values (ties), all tokens alike, one expert far ahead, two halves far apart;

    near: neighbours in bfloat16; rounding: different logits, equal in the fp32 softmax; faint: the chosen beyond the
    first have probabilities below fp32's normal range; never: one expert behind all the others; extreme: 0 and
    bfloat16's largest numbers of both signs.
    """
    g = torch.Generator().manual_seed(seed)
    drawn = torch.randn(tokens, experts + 1, generator=g) * 3
    match kind:
        case "equal":
            drawn[:, :experts] = 0.5
        case "ties":
            drawn = drawn.round()
        case "alike":
            drawn = drawn[:1].repeat(tokens, 1)
        case "one":
            drawn[:, experts // 2] = 40
        case "underflow":
            drawn[:, ::2] = -200
        case "near":
            drawn = 1 + torch.randint(0, 3, drawn.shape, generator=g) / 128
        case "rounding":
            drawn = drawn.round() * 2.0**-40
        case "faint":
            drawn = -92 - drawn.abs()
            drawn[:, 1] = 0
        case "never":
            drawn[:, experts // 2] = -60
        case "extreme":
            drawn = drawn.round().sign() * torch.finfo(torch.bfloat16).max
    return drawn.bfloat16()


def check(made: cuda.Routing, logits: torch.Tensor, top_k: int) -> None:
    """Every pair once, sorted by expert and token; an entry an expert's next, only the last short; weights by pair."""
    tokens, experts = logits.shape[0], logits.shape[1] - 1
    slots = top_k + 1
    weights, ids = route(logits[:, :experts].cpu(), top_k)
    assert made.ids.cpu().tolist() == ids.tolist()
    expert_of = torch.cat((ids, torch.full((tokens, 1), experts)), 1).flatten().tolist()
    pairs = made.pairs.cpu().tolist()
    assert pairs == sorted(range(tokens * slots), key=lambda p: (expert_of[p], p // slots))
    listed = []
    entries = made.entries.cpu()[: int(made.count)].tolist()
    for expert, first, count, zero in entries:
        assert 1 <= count <= made.entry_pairs
        assert zero == 0
        assert first == len(listed)
        listed += pairs[first : first + count]
        assert all(expert_of[p] == expert for p in pairs[first : first + count])
    assert listed == pairs
    full = [count for (expert, _, count, _), after in itertools.pairwise(entries) if after[0] == expert]
    assert all(count == made.entry_pairs for count in full), "only an expert's last entry may be short"
    if made.positions is not None and made.ends is not None:
        assert [pairs[i] for i in made.positions.tolist()] == list(range(tokens * slots))
        assert made.ends.tolist() == [sum(other <= e for other in expert_of) for e in range(experts + 1)]
    by_pair = made.weights.cpu().view(tokens, slots)
    assert torch.allclose(by_pair[:, :top_k], weights, rtol=1e-6, atol=0)
    assert torch.allclose(by_pair[:, top_k], logits[:, experts].cpu().float().sigmoid(), rtol=1e-6, atol=0)


KINDS = ["random", "equal", "ties", "alike", "one", "underflow"]
SUBTLE = ["near", "rounding", "faint", "never", "extreme"]


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(KINDS + SUBTLE),
    st.integers(1, 200),
    st.sampled_from([(4, 2), (8, 8), (64, 4), (256, 8)]),
    st.integers(0, 99),
)
def test_every_pair_is_in_one_entry(kind: str, tokens: int, shape: tuple[int, int], seed: int) -> None:
    experts, top_k = shape
    logits = logits_for(kind, tokens, experts, seed)
    check(routing_by_sort(logits, top_k), logits, top_k)


@pytest.mark.parametrize("tokens", [33, 512])
def test_all_tokens_to_one_expert(tokens: int) -> None:
    logits = logits_for("alike", tokens, 256, 3)
    made = routing_by_sort(logits, 8)
    check(made, logits, 8)
    assert int(made.count) == 9 * -(-tokens // cuda.MANY_PAIRS)


@pytest.mark.parametrize("kind", KINDS + SUBTLE)
def test_ids_are_the_definition_s_at_every_batch_from_1_to_512(kind: str) -> None:
    """Against numbers of Python, one token at a time: most probable first, then by id. A token's experts do not depend
    on the batch it is in, so one reference serves every size.
    """
    logits = logits_for(kind, 512, 256, 11)
    expected = naive.route(logits[:, :256], 8)[1].tolist()
    for tokens in range(1, 513):
        start = (tokens * 37) % (513 - tokens)
        made = routing_by_sort(logits[start : start + tokens], 8)
        assert made.ids.tolist() == expected[start : start + tokens]
        pairs = made.pairs.tolist()
        assert sorted(pairs) == list(range(tokens * 9)), "each token at each of its experts once, and no token else"
        used = made.entries[: int(made.count)]
        assert int(used[:, 2].sum()) == tokens * 9
        assert not (kind == "never" and (used[:, 0] == 128).any())


@pytest.mark.parametrize(
    ("logits", "top_k"),
    [
        (torch.zeros(2, 17), 2),
        (torch.zeros(2, 258, dtype=torch.bfloat16), 8),
        (torch.zeros(2, 34, dtype=torch.bfloat16), 16),
        (torch.zeros(17, 2, dtype=torch.bfloat16).t(), 2),
    ],
)
def test_what_the_kernel_does_not_take_is_refused(logits: torch.Tensor, top_k: int) -> None:
    with pytest.raises(ValueError, match="expected contiguous bfloat16, at most 256 experts and 15 of them a token"):
        cuda.routing(logits, top_k)
