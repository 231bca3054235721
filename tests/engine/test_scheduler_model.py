"""Any trace of arrivals, lengths and aborts, in pools of any size, generates what each request generates alone."""

from __future__ import annotations

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from engine.request import FinishReason, SamplingParams
from tests.engine.memory_model import VOCAB, Arrival, Trace, crowd, play


@st.composite
def arrivals(draw: st.DrawFn) -> Arrival:
    max_tokens = draw(st.integers(1, 24))
    return Arrival(
        at_step=draw(st.integers(0, 9)),
        prompt=tuple(draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=25))),
        params=SamplingParams(
            max_tokens=max_tokens,
            min_tokens=draw(st.integers(0, max_tokens)),
            ignore_eos=draw(st.sampled_from([True, True, False])),
            stop_token_ids=draw(st.sampled_from([(), (), (7,)])),
        ),
        abort_at=draw(st.none() | st.integers(0, 40)),
        abort_in_flight=draw(st.booleans()),
    )


traces = st.builds(
    Trace,
    block_tokens=st.integers(1, 4),
    num_blocks=st.integers(6, 16),
    max_num_seqs=st.integers(2, 5),
    extra_budget=st.integers(0, 12),
    ahead=st.booleans(),
    arrivals=st.lists(arrivals(), min_size=2, max_size=9).map(
        lambda listed: tuple(sorted(listed, key=lambda arrival: arrival.at_step))
    ),
)


@settings(max_examples=400, deadline=None)
@given(traces)
def test_any_trace_generates_what_each_request_generates_alone(trace: Trace) -> None:
    outcome = play(trace)
    stats = outcome.scheduler.stats()
    event(f"pre-empted: {stats.preemptions > 0}, aborted: {stats.finished[FinishReason.ABORT] > 0}")
    event(f"steps ahead: {outcome.ahead > 0}")


@pytest.mark.parametrize("ahead", [False, True])
def test_the_crowd_is_preempted_and_still_right(ahead: bool) -> None:
    outcome = play(crowd(ahead=ahead))
    assert outcome.scheduler.stats().preemptions >= 3
    assert outcome.refused == 0
    assert (outcome.ahead > 0) is ahead


@pytest.mark.parametrize("ahead", [False, True])
def test_the_crowd_with_aborts_is_right(ahead: bool) -> None:
    outcome = play(crowd(abort_every=2, ahead=ahead))
    assert outcome.scheduler.stats().finished[FinishReason.ABORT] >= 3
