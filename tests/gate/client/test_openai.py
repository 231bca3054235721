from __future__ import annotations

import json

import pytest

from gate.client.drive import LegRecording, LoadSpec, RawResponse
from gate.client.openai import body, to_rows
from gate.observe.rows import RequestRow
from gate.plan import PlannedLeg
from gate.workload import Prompt

LEG = PlannedLeg(
    leg_id="000-oracle-c2-r0",
    order=0,
    arm="oracle",
    concurrency=2,
    repetition=0,
    requests=1,
    prompts_sha256="",
    warmup_sha256="",
)
PROMPT = Prompt(0, (11, 12, 13), "abc")
GOOD = (
    b'data: {"choices":[{"index":0,"text":"x","token_ids":[4],"prompt_token_ids":[11,12,13],"finish_reason":null}]}\n\n'
    b'data: {"choices":[{"index":0,"text":"y","token_ids":[5],"finish_reason":"length"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\ndata: [DONE]\n\n'
)


def row(
    data: bytes, status: int | None = 200, error: str | None = None, content_type: str | None = "text/event-stream"
) -> RequestRow:
    response = RawResponse(0, 5, 10, status, ((20, data),) if data else (), 30, error, content_type)
    recording = LegRecording(10, 30, (response,), 0.1, None, 1)
    (made,) = to_rows(recording, LoadSpec("http://h:1", "m", (PROMPT,), 2, 2), LEG)
    return made


def test_good_request() -> None:
    made = row(GOOD)
    assert made == RequestRow(
        leg_id=LEG.leg_id,
        arm="oracle",
        concurrency=2,
        repetition=0,
        index=0,
        prompt_sha256="abc",
        expected_prompt_tokens=3,
        expected_output_tokens=2,
        scheduled_ns=5,
        sent_ns=10,
        first_token_ns=20,
        last_token_ns=20,
        end_ns=30,
        token_times_ns=(20, 20),
        tokens_per_event=(1, 1),
        prompt_tokens=3,
        completion_tokens=2,
        token_ids=(4, 5),
        finish_reason="length",
        http_status=200,
        saw_done=True,
    )


def test_prompt_length_is_the_servers_word() -> None:  # [11]
    made = row(GOOD.replace(b'"prompt_tokens":3', b'"prompt_tokens":1027'))
    assert (made.prompt_tokens, made.expected_prompt_tokens) == (1027, 3)


@pytest.mark.parametrize(
    ("made", "error"),
    [
        (row(b"", None, "cannot connect to http://h:1: refused"), "cannot connect to http://h:1: refused"),
        (row(GOOD[:130], 200, "connection closed"), "connection closed after 1 token event"),
        (row(b'{"error":{"message":"no  room\\nleft"}}', 503), "HTTP 503: no room left"),
        (row(b'{"detail":"Not Found"}', 404), "HTTP 404: Not Found"),
        (row(b"<html>Bad   Gateway</html>", 502), "HTTP 502: <html>Bad Gateway</html>"),
        (row(b"", 429), "HTTP 429: empty body"),
        (
            row(b'{"id":1}', content_type="application/json"),
            'answer is application/json, not an event stream: {"id":1}',
        ),
        (row(b"", content_type=None), "answer is of no type, not an event stream: empty body"),
        (row(b"\x00garbage"), "the body holds no server-sent event"),
        (
            row(GOOD.replace(b"[11,12,13]", b"[11,12,14]")),
            "server read another prompt: 3 ids, 3 were sent, contents differ",
        ),
    ],
)
def test_failure_names_its_first_cause(made: RequestRow, error: str) -> None:
    assert made.error == error


def test_failed_request_keeps_what_came() -> None:
    made = row(GOOD[:130], 200, "connection closed")
    assert (made.token_ids, made.first_token_ns, made.completion_tokens, made.saw_done) == ((4,), 20, None, False)


def test_nothing_measured_is_none() -> None:
    made = row(b"", 500)
    assert made.first_token_ns is made.last_token_ns is made.prompt_tokens is made.token_ids is None
    assert made.token_times_ns == ()


def test_body_is_the_same_request_for_any_arm() -> None:
    assert json.loads(body("m", (1, 2), 7)) == {
        "model": "m",
        "prompt": [1, 2],
        "max_tokens": 7,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }
