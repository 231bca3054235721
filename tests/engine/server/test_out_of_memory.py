"""Out of memory as a client meets it: its own error in the server's scheme, and a server that serves the next."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest

from engine.batch import Batch
from engine.loop import EngineLoop
from tests.engine.exhausting import Exhausted, loop_over
from tests.engine.server import fakes
from tests.engine.server.conftest import Live, Start

DOOMED = 7
"""A prompt that begins with it never fits."""
OTHER = [1, 2, 3]


def fails(batch: Batch, where: str) -> bool:
    return where == "submit" and any(s.prompt_ids[0] == DOOMED for s in batch.segments)


@pytest.fixture
def loop() -> Iterator[EngineLoop]:
    made = loop_over(Exhausted(fails))  # type: ignore[arg-type]
    made.start()
    yield made
    made.stop(drain=False)


@pytest.fixture
def live(start: Start, loop: EngineLoop) -> Live:
    return start(loop, info=fakes.model_info(vocab_size=13))


def complete(live: Live, prompt: list[int], **more: object) -> httpx.Response:
    return live.post("/v1/completions", prompt=prompt, max_tokens=5, return_token_ids=True, ignore_eos=True, **more)


def check(error: dict[str, object]) -> None:
    assert (error["type"], error["code"], error["param"]) == ("server_error", "engine_error", None)
    message = str(error["message"])
    assert message.startswith("a step with one token of this request alone ran out of memory, twice (OutOfMemoryError:")
    assert "expected to have room for it; ask for less" in message
    assert "\n" not in message


def test_a_request_that_cannot_run_is_a_500_and_the_next_is_served(live: Live) -> None:
    before = complete(live, OTHER).json()["choices"][0]["token_ids"]
    answer = complete(live, [DOOMED, 1])
    assert answer.status_code == 500
    check(answer.json()["error"])
    assert live.get("/health").status_code == 200
    assert complete(live, OTHER).json()["choices"][0]["token_ids"] == before
    metrics = live.get("/metrics").text
    assert 'engine:request_success_total{engine="0",finished_reason="error",model_name="fake"} 1.0' in metrics
    sent_back = next(line for line in metrics.splitlines() if line.startswith("engine:num_preemptions_total{"))
    assert float(sent_back.split()[-1]) >= 2
    steps = next(line for line in metrics.splitlines() if line.startswith("engine:steps_out_of_memory_total{"))
    assert float(steps.split()[-1]) >= 2


def test_a_stream_ends_with_an_error_event(live: Live) -> None:
    answer = complete(live, [DOOMED, 1], stream=True)
    assert answer.status_code == 200
    told, done = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    check(json.loads(told)["error"])
    assert done == "[DONE]"
    assert live.get("/health").status_code == 200
