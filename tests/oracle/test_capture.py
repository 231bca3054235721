"""Teacher-forced log-probs: what is asked, how ties and ranks are read, and that a wrong answer is never a margin."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from gate.errors import ArmError
from oracle.capture import teacher_forced


def entry(logprob: float, rank: int) -> dict[str, Any]:
    return {"logprob": logprob, "rank": rank, "decoded_token": "t"}


ROWS = [
    None,
    {"11": entry(-0.5, 1)},
    {"12": entry(-0.25, 1), "7": entry(-2.0, 2)},
    {"13": entry(-1.5, 2), "5": entry(-0.5, 1), "3": entry(-0.5, 1)},
]


def client(rows: Any, status: int = 200, sent: list[dict[str, Any]] | None = None) -> httpx.Client:
    def answer(request: httpx.Request) -> httpx.Response:
        if sent is not None:
            sent.append(json.loads(request.content))
        return httpx.Response(status, json={"choices": [{"prompt_logprobs": rows}]})

    return httpx.Client(base_url="http://oracle", transport=httpx.MockTransport(answer))


def test_each_output_position_is_judged_on_the_given_prefix() -> None:
    sent: list[dict[str, Any]] = []
    with client(ROWS, sent=sent) as oracle:
        first, second = teacher_forced(oracle, "m", [10, 11], [12, 13])
    assert sent[0]["prompt"] == [10, 11, 12, 13]
    assert sent[0]["prompt_logprobs"] == 20
    assert sent[0]["temperature"] == 0
    assert (first.token_id, first.rank, first.margin_nats, first.top_ids) == (12, 1, 0.0, (12,))
    assert (second.token_id, second.rank, second.margin_nats) == (13, 2, 1.0)


def test_an_exact_tie_is_a_set_lowest_id_first() -> None:
    with client(ROWS) as oracle:
        assert teacher_forced(oracle, "m", [10, 11], [12, 13])[1].top_ids == (3, 5)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (None, "returned no prompt_logprobs; expected 4"),
        (ROWS[:3], "returned 3 prompt_logprobs; expected 4"),
        ([*ROWS[:3], {"5": entry(-0.5, 1)}], "no log-prob for token 13 at output position 1"),
        ([*ROWS[:3], None], "no log-prob for token 13 at output position 1"),
    ],
)
def test_an_answer_that_is_not_whole_is_an_error(rows: Any, message: str) -> None:
    with client(rows) as oracle, pytest.raises(ArmError, match=message):
        teacher_forced(oracle, "m", [10, 11], [12, 13])


def test_a_refusal_is_passed_on() -> None:
    with client(ROWS, status=400) as oracle, pytest.raises(ArmError, match="answered 400"):
        teacher_forced(oracle, "m", [10, 11], [12, 13])
