"""Command lines of a profile, word for word."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gate.errors import UsageError
from gate.plan import ArmPlan
from gate.profile import commands

REPORT = Path("/r/traces/oracle-measured/oracle-measured-136")


def plan(kind: str, argv: tuple[str, ...] | None = ("server", "--port", "18101")) -> ArmPlan:
    return ArmPlan.model_validate(
        {
            "arm": "oracle",
            "kind": kind,
            "argv": argv,
            "env": {"PATH": "/bin"},
            "url": "http://127.0.0.1:18101",
            "model": "m",
            "checkpoint": "c",
            "checkpoint_digest": None,
        }
    )


def traced(kind: str, backend: str) -> ArmPlan:
    return commands.traced(plan(kind), backend, nsys="/usr/bin/nsys", session="s1", folder=Path("/r/t"))  # type: ignore[arg-type]


def test_nsys_traces_graphs_by_node_and_opens_windows_from_outside() -> None:
    assert commands.launch("nsys", "s1", ("vllm", "serve")) == (
        "nsys",
        "launch",
        "--session-new=s1",
        "--trace=cuda,nvtx",
        "--cuda-graph-trace=node",
        "--trace-fork-before-exec=true",
        "vllm",
        "serve",
    )
    assert commands.start("nsys", "s1", REPORT) == (
        "nsys",
        "start",
        "--session=s1",
        "--sample=none",
        "--cpuctxsw=none",
        "--force-overwrite=true",
        f"--output={REPORT}",
    )
    assert commands.stop("nsys", "s1") == ("nsys", "stop", "--session=s1")
    assert commands.export("nsys", REPORT) == (
        "nsys",
        "export",
        "--type=sqlite",
        "--lazy=false",
        "--force-overwrite=true",
        f"--output={REPORT}.sqlite",
        f"{REPORT}.nsys-rep",
    )
    assert commands.shutdown("nsys", "s1") == ("nsys", "shutdown", "--session=s1", "--kill=sigterm")


@pytest.mark.parametrize(("kind", "added"), [("vllm", {}), ("command", {}), ("engine", {commands.ENGINE_NVTX: "1"})])
def test_under_nsys_a_server_keeps_its_arguments_and_environment(kind: str, added: dict[str, str]) -> None:
    made = traced(kind, "nsys")
    assert made.argv is not None
    assert made.argv[-3:] == ("server", "--port", "18101")
    assert made.argv[:3] == ("/usr/bin/nsys", "launch", "--session-new=s1")
    assert made.env == {"PATH": "/bin"} | added


def test_in_process_the_engine_gets_a_folder_and_vllm_its_own_option() -> None:
    ours = traced("engine", "cupti")
    assert ours.argv == ("server", "--port", "18101")
    assert ours.env == {"PATH": "/bin", commands.ENGINE_PROFILE_DIR: "/r/t"}
    theirs = traced("vllm", "cupti")
    assert theirs.env == {"PATH": "/bin"}
    assert theirs.argv is not None
    assert theirs.argv[-2] == "--profiler-config"
    config = json.loads(theirs.argv[-1])
    assert (config["profiler"], config["torch_profiler_dir"]) == ("torch", "/r/t")
    assert config["torch_profiler_with_stack"] is False
    assert config["ignore_frontend"] is True
    assert set(config) <= PROFILER_CONFIG_0_25_0  # pydantic refuses any other key, and the server does not start


PROFILER_CONFIG_0_25_0 = {
    *("profiler", "torch_profiler_dir", "torch_profiler_with_stack", "torch_profiler_with_flops"),
    *("torch_profiler_use_gzip", "torch_profiler_dump_cuda_time_total", "torch_profiler_record_shapes"),
    *("torch_profiler_with_memory", "ignore_frontend", "delay_iterations", "max_iterations", "warmup_iterations"),
    *("active_iterations", "wait_iterations"),
}
"""Fields of vllm/config/profiler.py at that version."""


def test_an_attached_server_cannot_be_traced() -> None:
    with pytest.raises(UsageError, match=r"the oracle is attached at http://127\.0\.0\.1:18101"):
        commands.traced(plan("url", None), "nsys", nsys="nsys", session="s", folder=Path("/r"))
