"""Whatever SamplingParams can hold, every row gets an id that exists: another one would end the engine a step later."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.batch import Segment
from engine.request import RANGES, SamplingParams
from engine.sampler import Sampler

VOCABULARY = 7


def within(name: str) -> st.SearchStrategy[float]:
    low, high = RANGES[name]
    ends = st.sampled_from([low, high, low + (high - low) * 1e-9])
    return ends | st.floats(low, high) if isinstance(high, float) else ends.map(int) | st.integers(int(low), int(high))


@st.composite
def params(draw: st.DrawFn) -> SamplingParams:
    values = {name: draw(within(name)) for name in RANGES}
    masked = draw(st.integers(0, VOCABULARY - 1))
    return SamplingParams(
        8,
        min_tokens=draw(st.sampled_from([0, 4])),
        stop_token_ids=tuple(range(masked)),
        logit_bias=tuple((i, draw(st.sampled_from([-100.0, 100.0]))) for i in range(draw(st.integers(0, VOCABULARY)))),
        seed=draw(st.integers(-(2**63), 2**63 - 1)),
        **values,
    )


@settings(max_examples=150, deadline=None)
@given(st.lists(params(), min_size=1, max_size=3), st.sampled_from([0.0, 1.0, 1e4, 1e6]), st.integers(0, 99))
def test_every_row_gets_an_id_that_exists(asked: list[SamplingParams], spread: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(asked), VOCABULARY, generator=generator) * spread
    segments = [
        Segment(str(i), (1,), 2, (0,), 0, False, sample=True, params=p, prompt_ids=(1, 2), output_ids=[3])
        for i, p in enumerate(asked)
    ]
    for segment, (token, _) in zip(
        segments, Sampler(VOCABULARY, torch.device("cpu")).sample(logits, segments), strict=True
    ):
        assert 0 <= token < VOCABULARY
        forbidden = segment.params.stop_token_ids if segment.params.min_tokens else ()
        assert token not in forbidden
