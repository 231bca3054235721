"""Recorded runs, recorded and composed step tables, and windows whose difference they are."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import synthetic_configs
import synthetic_weights

from gate.observe.rows import Arm
from gate.profile import store
from gate.profile.activity import Trace
from gate.profile.census import Module, modules
from gate.profile.conclude import derive
from gate.profile.difference import step_table
from gate.profile.rows import StepKernel, StepTable, TracedKernel, Wall, Window

FIXTURES = Path(__file__).parent / "fixtures"
RESULTS = Path(__file__).parents[3] / "results"
RUN_27B = RESULTS / "h200-x2/20261130T092924Z-qwen3.6-27b-nvfp4-synthetic-profile-af7a819e"
"""Both arms at batch 1, with a control; docs/profile.md's example."""
RUN_35B = RESULTS / "h200/20261130T063951Z-qwen3.6-35b-a3b-nvfp4-synthetic-profile-4e8402b5"
"""The first profile of a CUDA host: both arms at batch 1, no control."""
TABLES_35B: dict[Arm, str] = {"candidate": "engine-6a7f22a-h200-35b-b1", "oracle": "vllm-0.25.0-h200-35b-b1-20261130"}
"""Its two steps as fixtures."""
SHORT, LONG = 8, 136
CONTEXT = 1024 + (SHORT + LONG) // 2


@cache
def fixture(name: str) -> dict[str, Any]:
    made: dict[str, Any] = json.loads((FIXTURES / f"{name}.json").read_text())
    return made


@cache
def census(shape: str, batch: int) -> tuple[Module, ...]:
    """Of the full-size synthetic checkpoint that the recorded runs served: its headers, without a byte of weights."""
    recipe = synthetic_weights.Recipe(
        synthetic_weights.SHAPES[shape], "modelopt", 0, distinct=False, w4a4=False, vision=False, mtp=False
    )
    tensors = {e.name: (e.dtype, tuple(e.shape)) for e in synthetic_weights.tensors(recipe)}
    config = {"text_config": synthetic_configs.text_config(recipe)}
    return tuple(modules(config, tensors, batch=batch, context=CONTEXT, kv_bytes=1))


def unshaped(shape: str, batch: int) -> tuple[Module, ...]:
    """As the recorded runs have it, which are from before modules had rows."""
    return tuple(module.model_copy(update={"rows": None}) for module in census(shape, batch))


def windows(rows: list[Any], *, batch: int = 1, arm: Arm = "oracle", **changes: Any) -> tuple[Window, Window]:
    """(short, long): `output_tokens` steps' worth of the rows in each, so that their difference is 128 steps' worth."""
    made = []
    for tokens in (SHORT, LONG):
        kernels = tuple(
            TracedKernel(name=name, grid="", block="", launches=round(n * tokens), us=us * tokens)
            for us, n, name in rows
        )
        made.append(window(kernels, tokens, batch=batch, arm=arm, **changes))
    return made[0], made[1]


def window(
    kernels: tuple[TracedKernel, ...], tokens: int, *, batch: int = 1, arm: Arm = "oracle", **changes: Any
) -> Window:
    good = {
        "arm": arm,
        "backend": "cupti",
        "output_tokens": tokens,
        "concurrency": batch,
        "rounds": 1,
        "requests": batch,
        "completed": batch,
        "prompt_tokens": 1024,
        "warmup_ended_ns": 1,
        "start_ns": 2,
        "counted_tokens": batch * (1024 + tokens),
        "level": "node",
        "busy_us": sum(k.us for k in kernels),
        "device": "NVIDIA H200",
        "tool": "torch.profiler",
        "kernels": kernels,
    }
    return Window.model_validate(good | changes)


def own_us(kernels: Iterable[StepKernel], *parts: str) -> float:
    """Of the kernels whose name holds one of the parts; of all of them where none is given."""
    return sum(k.own_us or 0.0 for k in kernels if not parts or any(part in k.name for part in parts))


def floor(run: Path, family: str, inside: tuple[str, ...]) -> tuple[float, float, float]:
    """(own µs, MB read, µs of these at the roof) of the candidate's family.

    inside: modules that it reads without a launch of their own.
    """
    data = store.read(run)
    candidate = derive(data).candidate
    assert candidate is not None
    assert candidate.roof_bytes_per_s is not None
    kernels = [k for k in candidate.kernels if k.family == family]
    sizes = {module.name: module.nbytes for module in data.census}
    nbytes = sum(k.nbytes or 0 for k in kernels) + sum(sizes[name] for name in inside)
    return own_us(kernels), nbytes / 1e6, nbytes / candidate.roof_bytes_per_s * 1e6


def trace_of(kernels: tuple[TracedKernel, ...]) -> Trace:
    return Trace(kernels, "node", sum(k.us for k in kernels), "torch.profiler", "NVIDIA H200")


def recorded(name: str, **changes: Any) -> StepTable:
    """The step of a recorded table, made through the two-length difference; with wall and own times if it has any."""
    data = fixture(name)
    made = windows(data["rows"], batch=data["batch"], **changes)
    if own_us := data.get("own_us"):
        made = tuple(_with_own(one, own_us) for one in made)  # type: ignore[assignment]
    return step_table("vllm", *made, wall(data["wall_us"]) if "wall_us" in data else None, None)


def _with_own(one: Window, own_us: list[float]) -> Window:
    kernels = tuple(
        k.model_copy(update={"own_us": own * one.output_tokens}) for k, own in zip(one.kernels, own_us, strict=True)
    )
    return one.model_copy(update={"kernels": kernels, "busy_us": sum(own_us) * one.output_tokens})


def wall(step_us: float, fixed_us: float = 100_000.0) -> Wall:
    """Three rounds of each length of a server whose step takes step_us."""
    return Wall(short_us=(fixed_us + SHORT * step_us,) * 3, long_us=(fixed_us + LONG * step_us,) * 3)
