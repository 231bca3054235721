"""A choice's text, ids and end do not depend on how its tokens are grouped into deliveries."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.batch import Delivery
from engine.request import FinishReason, Request, SamplingParams
from engine.server.choice import Choice
from engine.server.text import StopStrings
from tests.engine.server import fakes

TOKENIZER = fakes.byte_level_tokenizer()


def outcome(ids, sizes, reason, stops, min_tokens, *, include):
    request = Request("r", (1,), SamplingParams(64, min_tokens=min_tokens, stop_token_ids=(70,)))
    choice = Choice(
        0,
        request,
        TOKENIZER.detokenizer(skip_special_tokens=True),
        StopStrings(stops, include=include) if stops else None,
        include_stop=include,
    )
    pieces, start = [], 0
    for size in [*sizes, len(ids)]:
        part = tuple(ids[start : start + size])
        start += size
        last = start >= len(ids)
        piece = choice.advance(
            Delivery("r", part, tuple(fakes.logprobs_of(i, 0) for i in part), finish_reason=reason if last else None)
        )
        if piece is not None:
            pieces.append(piece)
        if last:
            break
    assert [p.finish_reason is not None for p in pieces] == [False] * (len(pieces) - 1) + [True]
    assert all(len(p.logprobs) == len(p.token_ids) for p in pieces)
    taken = [i for p in pieces for i in p.token_ids]
    assert choice.tokens == len(taken)
    assert taken == ids[: len(taken)]
    assert choice.advance(Delivery("r", (1,))) is None
    return "".join(p.text for p in pieces), len(taken), pieces[-1].finish_reason, pieces[-1].stop_reason


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(0, 310), min_size=1, max_size=20),
    st.lists(st.integers(1, 5), max_size=12),
    st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]),
    st.lists(st.sampled_from(["a", "the", "th", " b", "öß", "\ufffd"]), max_size=2),
    st.integers(0, 6),
    st.booleans(),
)
def test_grouping_changes_nothing(ids, sizes, reason, stops, min_tokens, include):
    one_by_one = outcome(ids, [1] * len(ids), reason, stops, min_tokens, include=include)
    assert outcome(ids, sizes, reason, stops, min_tokens, include=include) == one_by_one
    text, count, finish, _ = one_by_one
    if not stops:
        shown = ids[:-1] if reason is FinishReason.STOP and not include else ids
        assert (text, count, finish) == (TOKENIZER.decode(shown, skip_special_tokens=True), len(ids), reason.value)


def test_prompt_logprobs_of_prefill_chunks_are_joined_and_send_nothing():
    choice = Choice(0, Request("r", (5, 6, 7), SamplingParams(1)), TOKENIZER.detokenizer(skip_special_tokens=True))
    assert choice.advance(Delivery("r", (), prompt_logprobs=(None, fakes.logprobs_of(6, 1)))) is None
    assert choice.advance(Delivery("r", (40,), prompt_logprobs=(fakes.logprobs_of(7, 1),))) is not None
    assert [entry and entry.token_id for entry in choice.prompt_logprobs] == [None, 6, 7]
