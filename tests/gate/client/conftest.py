from __future__ import annotations

from collections.abc import Callable

import pytest

from gate.arm.fake import FakeServer
from gate.client.drive import LegRecording, LoadSpec, run_leg
from gate.client.openai import to_rows
from gate.observe.rows import RequestRow
from gate.plan import PlannedLeg
from gate.workload import make_prompts

Load = Callable[..., tuple[LegRecording, tuple[RequestRow, ...]]]


@pytest.fixture
def load() -> Load:
    """Drive a fake server: 6 prompts of 20 ids, 8 tokens each, at concurrency 2 unless told otherwise."""

    def run(server: FakeServer, count: int = 6, **fields: object) -> tuple[LegRecording, tuple[RequestRow, ...]]:
        prompts = make_prompts(count=count, length=20, vocab_size=1000, seed=1, max_common_prefix=4)
        settings = {"output_tokens": 8, "concurrency": 2, "timeout_s": 20.0} | fields
        spec = LoadSpec(server.url, "fake", prompts, **settings)  # type: ignore[arg-type]
        recording = run_leg(spec)
        leg = PlannedLeg(
            leg_id="000-oracle-c2-r0",
            order=0,
            arm="oracle",
            concurrency=spec.concurrency,
            repetition=0,
            requests=count,
            prompts_sha256="",
            warmup_sha256="",
        )
        return recording, to_rows(recording, spec, leg)

    return run
