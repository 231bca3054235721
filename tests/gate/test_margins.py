"""Margins: found on both arms' rows, asked on the right prefix, and never invented."""

from __future__ import annotations

import dataclasses
from typing import Any

import httpx
import pytest

from gate import margins
from gate import recipe as recipes
from gate.arm.fake import FakeServer
from gate.arm.fake_script import preset
from gate.observe import control
from gate.observe.rows import Arm, RequestRow
from gate.observe.rundata import RunData
from gate.plan import ArmPlan, Vocabulary, leg_prompts, make_plan
from gate.report.model import Divergence

OUTPUT = 4


def made_run() -> RunData:
    def arm(name: Arm) -> ArmPlan:
        return ArmPlan(
            arm=name, kind="url", argv=None, env={}, url="http://x", model="", checkpoint="m", checkpoint_digest=None
        )

    recipe = recipes.parse(
        {
            "schema_version": 1,
            "name": "small",
            "checkpoint": {"path": "m"},
            "workload": {"prompt_tokens": 8, "output_tokens": OUTPUT},
            "protocol": {"concurrency": [1, 2], "repetitions": 2},
        },
        "t",
    )
    plan = make_plan(
        recipe,
        coin="oracle",
        seed=0,
        candidate=arm("candidate"),
        oracle=arm("oracle"),
        vocabulary=Vocabulary(size=500),
    )
    rows = [
        RequestRow(
            leg_id=leg.leg_id,
            arm=leg.arm,
            concurrency=leg.concurrency,
            repetition=leg.repetition,
            index=prompt.index,
            prompt_sha256=prompt.sha256,
            expected_prompt_tokens=8,
            expected_output_tokens=OUTPUT,
            sent_ns=0,
            token_ids=(1, 2, 3, 4),
        )
        for leg in plan.legs
        for prompt in leg_prompts(plan, leg, "timed")
    ]
    return RunData(plan=plan, run_id="r", host="h", started_at="x", requests=tuple(rows))


def changed(run: RunData, arm: Arm, concurrency: int, repetition: int, index: int, **fields: Any) -> RunData:
    at = (arm, concurrency, repetition, index)
    rows = tuple(
        row.model_copy(update=fields) if (row.arm, row.concurrency, row.repetition, row.index) == at else row
        for row in run.requests
    )
    return dataclasses.replace(run, requests=rows)


def test_equal_tokens_need_no_question() -> None:
    assert margins.splits(made_run()) == ()


def test_one_question_for_the_first_difference_of_a_pair() -> None:
    run = changed(made_run(), "candidate", 2, 1, 3, token_ids=(1, 9, 8, 7))
    ((split, oracle),) = margins.splits(run)
    assert (split.concurrency, split.repetition, split.index, split.position) == (2, 1, 3, 1)
    assert (split.candidate_id, split.oracle_id, oracle.arm) == (9, 2, "oracle")


@pytest.mark.parametrize("fields", [{"token_ids": None}, {"token_ids": (1, 9)}, {"prompt_sha256": "other"}])
def test_what_cannot_be_compared_is_not_asked(fields: dict[str, Any]) -> None:
    assert margins.splits(changed(made_run(), "candidate", 1, 0, 0, **fields)) == ()


def test_question_is_the_prompt_and_the_common_output() -> None:
    run = changed(made_run(), "candidate", 1, 1, 0, token_ids=(1, 2, 9, 4))
    with FakeServer(preset("good")) as fake:
        margins.ask(run, margins.splits(run), fake.url, "fake")
    leg = next(leg for leg in run.plan.legs if (leg.concurrency, leg.repetition) == (1, 1))
    (body,) = fake.requests
    assert body["prompt"] == [*leg_prompts(run.plan, leg, "timed")[0].token_ids, 1, 2]
    assert (body["max_tokens"], body["temperature"], body["logprobs"]) == (1, 0, 20)


SPLIT = Divergence(concurrency=1, repetition=0, index=0, position=2, candidate_id=9, oracle_id=3, margin_nats=None)


@pytest.mark.parametrize(
    ("top", "margin", "outside"),
    [
        ({3: -0.5, 9: -0.75}, 0.25, False),
        ({3: -0.5, 9: -0.5}, 0.0, False),
        ({3: -0.75, 9: -0.5}, -0.25, False),
        ({3: -0.5, 4: -0.75}, None, True),
        ({4: -0.5, 9: -0.75}, None, False),
        (None, None, False),
    ],
)
def test_margin_is_the_difference_of_two_answers_or_none(
    top: dict[int, float] | None, margin: float | None, outside: bool
) -> None:
    row = margins.judge(SPLIT, top)
    assert (row.margin_nats, row.outside_top) == (margin, outside)


@pytest.mark.parametrize(
    "body",
    [
        b"not json",
        b"[]",
        b'{"error": {"message": "no"}}',
        b'{"choices": []}',
        b'{"choices": [{"logprobs": null}]}',
        b'{"choices": [{"logprobs": {"top_logprobs": [null]}}]}',
        b'{"choices": [{"logprobs": {"top_logprobs": [{"word": -1.0}]}}]}',
        b'{"choices": [{"logprobs": {"top_logprobs": [{"token_id:1": null}]}}]}',
    ],
)
def test_bad_answers_are_no_answer(body: bytes) -> None:
    transport = httpx.MockTransport(lambda _request: httpx.Response(200, content=body))
    with httpx.Client(transport=transport, base_url="http://x") as client:
        assert margins.top(client, "m", (1, 2, 3)) is None


def test_good_answer_is_read_by_token_id() -> None:
    body = b'{"choices": [{"logprobs": {"top_logprobs": [{"token_id:1": -0.5, "token_id:20": -1}]}}]}'
    transport = httpx.MockTransport(lambda _request: httpx.Response(200, content=body))
    with httpx.Client(transport=transport, base_url="http://x") as client:
        assert margins.top(client, "m", (1, 2, 3)) == {1: -0.5, 20: -1.0}


def test_absent_oracle_is_no_answer() -> None:
    with control.client("http://127.0.0.1:9", 1) as client:
        assert margins.top(client, "fake", (1, 2, 3)) is None
