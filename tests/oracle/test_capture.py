"""Teacher-forced log-probs: what is asked, how ties and ranks are read, and that a wrong answer is never a margin."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from gate.errors import ArmError
from oracle.capture import decoded, teacher_forced


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
    assert sent[0]["prompt_logprobs"] == 2
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


def one(given: dict[str, dict[str, Any]], **more: Any) -> Any:
    """The answer to prompt (10,) and output (12,)."""

    def answer(_request: httpx.Request) -> httpx.Response:
        content = json.dumps({"choices": [{"prompt_logprobs": [None, given], **more}]})
        return httpx.Response(200, content=content.encode())

    with httpx.Client(base_url="http://oracle", transport=httpx.MockTransport(answer)) as oracle:
        return teacher_forced(oracle, "m", [10], [12])[0]


@pytest.mark.parametrize(("rank", "outside"), [(20, False), (21, True)])
def test_outside_the_top_there_is_no_gap(rank: int, outside: bool) -> None:
    position = one({"5": entry(-0.5, 1), "12": entry(-3.0, rank)})
    assert (position.outside_top, position.gap_nats) == (outside, None if outside else 2.5)


def test_a_tie_of_more_tokens_than_the_top_holds_is_still_a_tie() -> None:
    position = one({"5": entry(-0.5, 1), "12": entry(-0.5, 30)})
    assert (position.outside_top, position.gap_nats) == (False, 0.0)


def test_the_lead_is_over_the_next_token_whatever_was_given() -> None:
    assert one({"5": entry(-0.5, 1), "7": entry(-0.75, 2), "12": entry(-3.0, 3)}).lead_nats == 0.25
    assert one({"5": entry(-0.5, 2), "12": entry(-0.5, 2)}).lead_nats == 0.0
    assert one({"12": entry(-0.5, 1)}).lead_nats is None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 0.01, None, "x"])
def test_a_log_prob_that_is_none_is_an_error(value: Any) -> None:
    for row in ({"12": entry(value, 1), "5": entry(-1, 2)}, {"12": entry(-1, 1), "5": entry(value, 2)}):
        with pytest.raises(ArmError, match=r"the (server|answer)"):
            one(row)


def test_rounding_above_zero_is_not() -> None:
    assert one({"12": entry(1e-6, 1)}).gap_nats == 0.0


@pytest.mark.parametrize("rank", [0, -1, None])
def test_a_rank_that_is_none_is_an_error(rank: Any) -> None:
    with pytest.raises(ArmError, match=r"the (server|answer)"):
        one({"12": entry(-1, rank)})


def test_another_tokenisation_of_the_prompt_is_an_error() -> None:
    assert one({"12": entry(-1, 1)}, prompt_token_ids=[10, 12]).token_id == 12
    with pytest.raises(ArmError, match="read another prompt"):
        one({"12": entry(-1, 1)}, prompt_token_ids=[10, 1, 12])


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"choices": []}', b'{"choices": [3]}', b'{"choices": null}'])
def test_what_is_no_completion_is_an_error(content: bytes) -> None:
    transport = httpx.MockTransport(lambda _request: httpx.Response(200, content=content))
    with (
        httpx.Client(base_url="http://oracle", transport=transport) as oracle,
        pytest.raises(ArmError, match="no completion"),
    ):
        teacher_forced(oracle, "m", [10], [12])


def watched(choice: dict[str, Any], status: int = 200, sent: list[Any] | None = None) -> Any:
    def answer(request: httpx.Request) -> httpx.Response:
        if sent is not None:
            sent.append(json.loads(request.content))
        return httpx.Response(status, json={"choices": [choice]})

    with httpx.Client(base_url="http://server", transport=httpx.MockTransport(answer)) as server:
        return decoded(server, "m", [10], 2)


def tops(*rows: dict[str, float]) -> dict[str, Any]:
    return {"top_logprobs": [{f"token_id:{name}": value for name, value in row.items()} for row in rows]}


def test_generated_tokens_come_with_the_log_probs_of_their_steps() -> None:
    sent: list[Any] = []
    first, second = watched(
        {"token_ids": [12, 5], "logprobs": tops({"12": -0.5, "3": -0.5}, {"4": -0.25, "5": -1.0})}, sent=sent
    )
    assert (sent[0]["max_tokens"], sent[0]["temperature"], sent[0]["ignore_eos"]) == (2, 0, True)
    assert (first.token_id, first.top_ids, first.gap_nats, first.lead_nats) == (12, (3, 12), 0.0, 0.0)
    assert (second.rank, second.gap_nats, second.lead_nats) == (2, 0.75, 0.75)


@pytest.mark.parametrize(
    "choice",
    [
        {"token_ids": [12, 5]},
        {"logprobs": tops({"12": -0.5})},
        {"token_ids": [12, 5], "logprobs": tops({"12": -0.5})},
        {"token_ids": [12], "logprobs": tops({"5": -0.5})},
        {"token_ids": [12], "logprobs": {"top_logprobs": [None]}},
        {"token_ids": [12], "logprobs": {"top_logprobs": [{"word": -0.5}]}},
    ],
)
def test_generated_tokens_without_their_log_probs_are_an_error(choice: dict[str, Any]) -> None:
    with pytest.raises(ArmError, match="the server"):
        watched(choice)


def test_a_refusal_of_logprobs_is_passed_on() -> None:
    with pytest.raises(ArmError, match="answered 400 to logprobs"):
        watched({}, status=400)
