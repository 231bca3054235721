"""What the recipe weakens, or the command line leaves out of it, keeps a grid from binding; its own limits do not."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gate.judge import judge
from gate.recipe import Recipe


def told(run: Any) -> list[str]:
    """Without the noise prior, which nothing here is about."""
    return [reason for reason in judge(run).not_binding_because if not reason.startswith("the noise prior")]


def declaring(run: Any, declared: Recipe) -> Any:
    return dataclasses.replace(run, plan=run.plan.model_copy(update={"declared": declared}))


@pytest.mark.parametrize(
    ("protocol", "said"),
    [
        ({}, []),
        ({"repetitions": 3}, []),
        ({"repetitions": 4}, ["3 repetitions, the recipe declares 4"]),
        ({"residency": "alternate"}, ["residency both, the recipe declares alternate"]),
        ({"concurrency": (1, 2)}, []),
        ({"concurrency": (1,)}, []),
        ({"concurrency": (1, 2, 4, 8)}, ["declared concurrencies not measured: 4, 8"]),
    ],
)
def test_what_the_command_line_left_out_is_named(build: Any, protocol: dict[str, Any], said: list[str]) -> None:
    assert told(declaring(build.run(), build.recipe(protocol=protocol))) == said


@pytest.mark.parametrize(
    ("table", "key", "value", "said"),
    [
        ("protocol", "repetitions", 2, "2 repetitions, fewer than 3"),
        ("protocol", "repetitions", 1, "1 repetition, fewer than 3"),
        ("protocol", "floor", 0.9, "floor 0.9, below 1"),
        ("protocol", "band", 0.5, "band 50 %, above 1 %"),
        ("protocol", "max_spread", 0.2, "max_spread 20 %, above 5 %"),
        ("protocol", "near_tie_nats", 2.0, "near_tie_nats 2, above 0.25"),
        (
            *("protocol", "primary", ("output_throughput",)),
            "axes that do not decide here: tpot_median_ms, ttft_median_ms",
        ),
        ("workload", "warmup_per_stream", 0, "no warm-up: the first requests of each leg are cold"),
        (
            *("workload", "requests_per_stream", 1),
            "1 request a stream, fewer than 2: nearly all of it is ramp",
        ),
        ("workload", "max_common_prefix", 12, "prompts may share 12 tokens, more than 8"),
        (
            *("oracle", "args", ("--block-size", "8")),
            "the oracle runs with settings of the recipe's own: --block-size 8",
        ),
        (
            *("oracle", "env", {"OMP_NUM_THREADS": "1"}),
            "the oracle runs with settings of the recipe's own: OMP_NUM_THREADS=1",
        ),
    ],
)
def test_a_weakened_protocol_is_named(build: Any, table: str, key: str, value: object, said: str) -> None:
    assert told(build.run(**{table: {key: value}})) == [said]


@pytest.mark.parametrize(
    ("table", "key", "value"),
    [
        ("protocol", "floor", 1.01),
        ("protocol", "band", 0.005),
        ("protocol", "max_spread", 0.01),
        ("protocol", "near_tie_nats", 0.1),
        ("protocol", "primary", ("output_throughput", "tpot_median_ms", "ttft_median_ms", "e2el_median_ms")),
        ("workload", "warmup_per_stream", 2),
        ("workload", "requests_per_stream", 3),
        ("workload", "max_common_prefix", 4),
    ],
)
def test_a_stricter_one_binds(build: Any, table: str, key: str, value: object) -> None:
    assert told(build.run(**{table: {key: value}})) == []


@pytest.mark.parametrize("finished", [True, False])
def test_a_run_that_was_cut_short_is_named(build: Any, finished: bool) -> None:
    run = build.run()
    last = build.without_legs(run, run.plan.legs[-1].leg_id)
    cut = dataclasses.replace(last, finished_at=run.finished_at if finished else None)
    assert told(cut) == ["1 of 12 legs missing: the run was interrupted"]
    because = dataclasses.replace(cut, ended="the candidate died")
    assert told(because) == ["1 of 12 legs missing: the candidate died"]


def test_one_that_was_cut_off_after_its_last_leg_is_not_said_to_miss_any(build: Any) -> None:
    cut = dataclasses.replace(build.run(), finished_at=None)
    before = "every planned leg is there, but the run was cut off before it was complete: "
    assert told(cut) == [f"{before}the run was interrupted"]
    assert told(dataclasses.replace(cut, ended="the oracle left memory")) == [f"{before}the oracle left memory"]


def test_a_marker_without_a_seal_is_named(build: Any) -> None:
    assert told(dataclasses.replace(build.run(), unsealed=True)) == [
        "complete.json has no seal of its own, so that records and marker may have been made anew: measure again"
    ]


def test_a_host_without_a_gpu_is_named(build: Any) -> None:
    assert told(build.run(gpu=False)) == ["no GPU: the host's processor is the device, and no GPU lock could be taken"]
