"""2 Command lines of a profile: what nsys is told, and how a server is started so that it can be traced. Pure.

nsys is used in its interactive form: `launch` starts the server without collecting, `start` and `stop` open and close a
window around the requests. Start-up, graph capture and warm-up are then in no trace, no server has to cooperate, and
both arms are traced in the very same way. A capture range through cudaProfilerStart was rejected as the default: it
needs a profiler route in the server, and a number for each window in the report's name.
"""

from __future__ import annotations

import json
from pathlib import Path

from gate.errors import UsageError
from gate.plan import ArmPlan
from gate.profile.rows import Backend

ENGINE_PROFILE_DIR = "ENGINE_PROFILE_DIR"
"""The engine's switch: with it /start_profile and /stop_profile exist and write their traces there."""
ENGINE_NVTX = "ENGINE_NVTX"
"""The engine's other switch: NVTX ranges around prefill, decode and groups of layers."""

START_ROUTE, STOP_ROUTE = "/start_profile", "/stop_profile"
"""The engine's and vLLM's alike."""


def launch(nsys: str, session: str, argv: tuple[str, ...]) -> tuple[str, ...]:
    """The server under nsys; nothing is collected yet. Sampling switches belong to `start`, the trace ones here."""
    options = ("--trace=cuda,nvtx", "--cuda-graph-trace=node", "--trace-fork-before-exec=true")
    return (nsys, "launch", f"--session-new={session}", *options, *argv)


def start(nsys: str, session: str, report: Path) -> tuple[str, ...]:
    """Open a window; report: the file without its .nsys-rep."""
    options = ("--sample=none", "--cpuctxsw=none", "--force-overwrite=true")
    return (nsys, "start", f"--session={session}", *options, f"--output={report}")


def stop(nsys: str, session: str) -> tuple[str, ...]:
    """Close the window; returns when the report is on disk."""
    return (nsys, "stop", f"--session={session}")


def export(nsys: str, report: Path) -> tuple[str, ...]:
    """report.nsys-rep -> report.sqlite, every table written."""
    options = ("--type=sqlite", "--lazy=false", "--force-overwrite=true")
    return (nsys, "export", *options, f"--output={report}.sqlite", f"{report}.nsys-rep")


def shutdown(nsys: str, session: str) -> tuple[str, ...]:
    """End the session and ask the server in it to go: nsys may have moved it out of our process group."""
    return (nsys, "shutdown", f"--session={session}", "--kill=sigterm")


def version(nsys: str) -> tuple[str, ...]:
    return (nsys, "--version")


def traced(plan: ArmPlan, backend: Backend, *, nsys: str, session: str, folder: Path) -> ArmPlan:
    """The arm's plan with what its backend needs; its own arguments and allow-listed environment stay as they are.

    folder: absolute, where an in-process profiler writes.
    Raises UsageError for an attached server: what already runs cannot be traced from outside.
    """
    if plan.argv is None:
        raise UsageError(
            f"the {plan.arm} is attached at {plan.url}",
            expected="a server that gate profile starts",
            hint="name a kind",
        )
    if backend == "nsys":
        env = plan.env | ({ENGINE_NVTX: "1"} if plan.kind == "engine" else {})
        return plan.model_copy(update={"argv": launch(nsys, session, plan.argv), "env": env})
    if plan.kind == "vllm":
        return plan.model_copy(update={"argv": (*plan.argv, "--profiler-config", vllm_profiler(folder))})
    return plan.model_copy(update={"env": plan.env | {ENGINE_PROFILE_DIR: str(folder)}})


def vllm_profiler(folder: Path) -> str:
    """--profiler-config of vLLM 0.13 and later, which replaced VLLM_TORCH_PROFILER_DIR; keys as in 0.25.0.

    Stacks, a table of CUDA times and gzip are on by default, and all of them make the answer to /stop_profile late. So
    is a second profiler in the front end, which sees no GPU, and starts and stops on whatever thread is free.
    """
    return json.dumps(
        {
            "profiler": "torch",
            "torch_profiler_dir": str(folder),
            "torch_profiler_with_stack": False,
            "torch_profiler_use_gzip": False,
            "torch_profiler_dump_cuda_time_total": False,
            "ignore_frontend": True,
        }
    )
