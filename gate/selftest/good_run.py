"""0 A good run made of plain arithmetic, and ways to break it.

Every request of the good run takes exactly ttft + (n − 1) × tpot milliseconds, streams are back to back, and both
arms differ only by what the test says.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any, Literal

from gate.errors import UsageError
from gate.observe.rows import ARMS, Arm, Finding, Identity, LegRow, MarginRow, Pins, RequestRow
from gate.observe.rundata import RunData
from gate.plan import ArmPlan, OraclePin, Plan, PlannedLeg
from gate.recipe import Recipe
from gate.report.model import ClientCost
from gate.selftest import good_telemetry
from gate.selftest.good_telemetry import with_telemetry

MS = 1_000_000
GAP_NS = 1000
"""Between a stream's end and the next send."""


PACKAGES = {"vllm": "1.0", "flashinfer-python": "0.6"}
EXTRA: dict[Arm, dict[str, str]] = {
    "candidate": {
        "engine": "gate-and-engine",
        "manifest": json.dumps(
            {
                "source_sha256": "s1",
                "device": "cuda:0",
                "quantization": "modelopt",
                "reference_ops": [],
                "dequantised_copy_bytes": 0,
            }
        ),
        "config.max_num_seqs": "32",
        "config.dtype": "bfloat16",
        "config.speculative_config": "null",
        "config.tensor_parallel_size": "1",
        "config.pipeline_parallel_size": "1",
        "config.data_parallel_size": "1",
        "config.mamba_ssm_cache_dtype": "float32",
        "config.sampling_defaults": "{}",
        "config.scheduling_policy": "fcfs",
        "config.enable_chunked_prefill": "true",
        "config.max_num_batched_tokens": "2048",
    },
    "oracle": {
        "config.mamba_ssm_cache_dtype": "float32",
        "log.max_num_seqs": "32",
        "log.dtype": "torch.bfloat16",
        "log.quantization": "modelopt_mixed",
        "log.speculative_config": "None",
        "log.tensor_parallel_size": "1",
        "log.pipeline_parallel_size": "1",
        "log.data_parallel_size": "1",
        "log.sampling_defaults": "{}",
        "log.scheduling_policy": "fcfs",
        "log.enable_chunked_prefill": "True",
        "log.max_num_batched_tokens": "2048",
        "log.enforce_eager": "False",
        "log.cudagraph_mode": "FULL_AND_PIECEWISE",
        "log.compilation_mode": "VLLM_COMPILE",
        "log.profiler": "none",
    },
}
"""What servers with equal settings say, each in its own spelling."""


def pins(when: Literal["start", "end"]) -> Pins:
    return Pins(when=when, checkpoints=dict.fromkeys(ARMS, "d1"), oracle=PACKAGES)


def recipe(**over: Any) -> Recipe:
    tables: dict[str, Any] = {
        "schema_version": 1,
        "name": "made-up",
        "gpu": True,
        "max_model_len": 64,
        "checkpoint": {"path": "checkpoints/made-up", "digest": "d1"},
        "workload": {"prompt_tokens": 16, "output_tokens": 8, "requests_per_stream": 2},
        "protocol": {"concurrency": (1, 2), "repetitions": 3},
    }
    for key, value in over.items():
        tables[key] = tables.get(key, {}) | value if isinstance(value, dict) else value
    return Recipe.model_validate(tables)


def prompt_sha256(concurrency: int, repetition: int, index: int) -> str:
    return hashlib.sha256(f"{concurrency}/{repetition}/{index}".encode()).hexdigest()


def set_sha256(concurrency: int, repetition: int, count: int) -> str:
    """As workload.prompts_digest makes it."""
    digests = [bytes.fromhex(prompt_sha256(concurrency, repetition, index)) for index in range(count)]
    return hashlib.sha256(b"".join(digests)).hexdigest()


def order(coin: Arm, repetition: int) -> tuple[Arm, Arm]:
    """ABBA AB …: the coin's arm first in even repetitions."""
    first, second = (coin, next(arm for arm in ARMS if arm != coin))
    return (first, second) if repetition % 2 == 0 else (second, first)


def make_plan(made: Recipe, coin: Arm = "candidate") -> Plan:
    legs: list[PlannedLeg] = []
    for repetition in range(made.protocol.repetitions):
        for concurrency in made.protocol.concurrency:
            for arm in order(coin, repetition):
                requests = made.workload.requests(concurrency)
                legs.append(
                    PlannedLeg(
                        leg_id=f"{len(legs):03d}-{arm}-c{concurrency}-r{repetition}",
                        order=len(legs),
                        arm=arm,
                        concurrency=concurrency,
                        repetition=repetition,
                        requests=requests,
                        prompts_sha256=set_sha256(concurrency, repetition, requests),
                        warmup_sha256=f"w{concurrency}{repetition}",
                    )
                )
    arms = {
        arm: ArmPlan(
            arm=arm,
            kind="engine" if arm == "candidate" else "vllm",
            argv=(f"serve-{arm}", "--port", "8000"),
            env={"PATH": "/usr/bin"},
            url=f"http://127.0.0.1:{8000 + k}",
            model="made-up",
            checkpoint="checkpoints/made-up",
            checkpoint_digest="d1",
            source_sha256="s1" if arm == "candidate" else None,
        )
        for k, arm in enumerate(ARMS)
    }
    return Plan(
        plan_id="plan-1",
        recipe=made,
        coin=coin,
        seed=0,
        candidate=arms["candidate"],
        oracle=arms["oracle"],
        legs=tuple(legs),
        pin=OraclePin(platform="cuda", runtime_version="1.0", distributions=PACKAGES, digest="p1"),
    )


def make_requests(planned: PlannedLeg, made: Recipe, start_ns: int, ttft_ms: float, tpot_ms: float) -> list[RequestRow]:
    n, streams = made.workload.output_tokens, planned.concurrency
    rows = []
    for index in range(planned.requests):
        length = int((ttft_ms + (n - 1) * tpot_ms) * MS)
        sent = start_ns + (index // streams) * (length + GAP_NS)
        stamps = tuple(sent + int((ttft_ms + k * tpot_ms) * MS) for k in range(n))
        rows.append(
            RequestRow(
                leg_id=planned.leg_id,
                arm=planned.arm,
                concurrency=planned.concurrency,
                repetition=planned.repetition,
                index=index,
                prompt_sha256=prompt_sha256(planned.concurrency, planned.repetition, index),
                expected_prompt_tokens=made.workload.prompt_tokens,
                expected_output_tokens=n,
                sent_ns=sent,
                first_token_ns=stamps[0],
                last_token_ns=stamps[-1],
                end_ns=stamps[-1],
                token_times_ns=stamps,
                tokens_per_event=(1,) * n,
                prompt_tokens=made.workload.prompt_tokens,
                completion_tokens=n,
                token_ids=tuple(100 * planned.concurrency + 10 * index + k for k in range(n)),
                finish_reason="length",
                http_status=200,
                saw_done=True,
            )
        )
    return rows


def make_leg(planned: PlannedLeg, requests: Sequence[RequestRow]) -> LegRow:
    return LegRow(
        leg_id=planned.leg_id,
        order=planned.order,
        arm=planned.arm,
        concurrency=planned.concurrency,
        repetition=planned.repetition,
        started_at="2026-01-01T00:00:00Z",
        start_ns=min(r.sent_ns for r in requests),
        end_ns=max(r.end_ns or 0 for r in requests),
        requests=len(requests),
        failed=0,
        server_pid=1,
        server_start_id=f"{planned.arm}-1",
        server_start_id_after=f"{planned.arm}-1",
        identity_before=f"{planned.arm}-id",
        identity_after=f"{planned.arm}-id",
        lock_held=True,
        client_cpu_s=0.001,
        client_events=100,
        client_loop_lag_p99_ms=0.1,
        host_load_foreign_cpu_s=0.0,
        prefix_cache_hit_tokens=0,
        preemptions=0,
    )


def identities(made: Recipe) -> tuple[Identity, ...]:
    return tuple(
        Identity(
            arm=arm,
            version="0.1" if arm == "candidate" else "1.0",
            model="made-up",
            max_model_len=made.max_model_len,
            prefix_caching=False,
            kv_cache_dtype="bfloat16",
            extra=EXTRA[arm],
            digest=f"{arm}-id",
        )
        for arm in ARMS
    )


class Build:
    """Good runs and broken ones."""

    recipe = staticmethod(recipe)
    alter_telemetry = staticmethod(good_telemetry.alter)

    @staticmethod
    def run(
        speed: Callable[[PlannedLeg], float] = lambda _leg: 1.0,
        *,
        ttft_ms: float = 50.0,
        tpot_ms: float = 10.0,
        coin: Arm = "candidate",
        **tables: Any,
    ) -> RunData:
        """`speed` slows or speeds a leg: its times are divided by it."""
        made = recipe(**tables)
        plan = make_plan(made, coin)
        legs: list[LegRow] = []
        requests: list[RequestRow] = []
        clock = 1_000 * MS
        for planned in plan.legs:
            rows = make_requests(planned, made, clock, ttft_ms / speed(planned), tpot_ms / speed(planned))
            legs.append(make_leg(planned, rows))
            requests += rows
            clock = legs[-1].end_ns + 100 * MS
        made_run = RunData(
            plan=plan,
            run_id="run-1",
            host="box",
            started_at="2026-01-01T00:00:00Z",
            finished_at="2026-01-01T00:10:00Z",
            legs=tuple(legs),
            requests=tuple(requests),
            identities=identities(made),
            client=ClientCost(cpu_us_per_event=40.0, skew_p50_ms=0.2, skew_p90_ms=0.5, streams=8, events=1000),
            machine={"cpu": "Made-up 9000"},
            pins=(pins("start"), pins("end")),
        )
        return with_telemetry(made_run)

    @staticmethod
    def leg_id(run: RunData, arm: Arm = "candidate", concurrency: int = 2, repetition: int = 1) -> str:
        return next(
            leg.leg_id
            for leg in run.plan.legs
            if (leg.arm, leg.concurrency, leg.repetition) == (arm, concurrency, repetition)
        )

    @staticmethod
    def alter_leg(run: RunData, leg_id: str, **changes: Any) -> RunData:
        legs = tuple(leg.model_copy(update=changes) if leg.leg_id == leg_id else leg for leg in run.legs)
        if legs == run.legs:
            raise UsageError(f"{leg_id} is as good after {changes} as before", expected="a fault")
        return dataclasses.replace(run, legs=legs)

    @staticmethod
    def alter_request(run: RunData, leg_id: str, index: int, /, **changes: Any) -> RunData:
        requests = tuple(
            r.model_copy(update=changes) if (r.leg_id, r.index) == (leg_id, index) else r for r in run.requests
        )
        if requests == run.requests:
            raise UsageError(f"request {index} of {leg_id} is as good after {changes} as before", expected="a fault")
        return dataclasses.replace(run, requests=requests)

    @staticmethod
    def alter_identity(run: RunData, arm: Arm, **changes: Any) -> RunData:
        changed = tuple(i.model_copy(update=changes) if i.arm == arm else i for i in run.identities)
        return dataclasses.replace(run, identities=changed)

    @staticmethod
    def without_legs(run: RunData, *leg_ids: str) -> RunData:
        return dataclasses.replace(
            run,
            legs=tuple(leg for leg in run.legs if leg.leg_id not in leg_ids),
            requests=tuple(r for r in run.requests if r.leg_id not in leg_ids),
        )

    @staticmethod
    def reorder(run: RunData, letters: str, concurrency: int = 2) -> RunData:
        """Give the concurrency's legs the order of `letters` (A: candidate), keeping each arm's own sequence."""
        arms: dict[str, Arm] = {"A": "candidate", "B": "oracle"}
        own = {a: [leg for leg in run.legs if (leg.arm, leg.concurrency) == (a, concurrency)] for a in ARMS}
        orders = sorted(leg.order for legs in own.values() for leg in legs)
        moved = {own[arms[letter]].pop(0).leg_id: order for letter, order in zip(letters, orders, strict=True)}
        legs = tuple(leg.model_copy(update={"order": moved.get(leg.leg_id, leg.order)}) for leg in run.legs)
        return dataclasses.replace(run, legs=legs)

    @staticmethod
    def margin(**fields: Any) -> MarginRow:
        return MarginRow.model_validate(fields)

    @staticmethod
    def finding(**fields: Any) -> Finding:
        return Finding.model_validate({"code": "made-up", "message": "m", "hint": "h"} | fields)
