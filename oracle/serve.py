"""The oracle's command line and environment, as the pin wants them; a foreground server that leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from gate.errors import UsageError
from oracle import environment
from oracle.pins import Pin, load

INHERITED = (
    "PATH",
    "HOME",
    "USER",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "TZ",
    "XDG_CACHE_HOME",
    "HF_HOME",
    "HF_HUB_CACHE",
    "LD_LIBRARY_PATH",
    "CUDA_HOME",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "OPENBLAS_CORETYPE",
    "OPENBLAS_L2_SIZE",
)
"""Taken over from the caller where present: where things are, not how they are computed. OPENBLAS_* are set on machines
whose processor makes older OpenBLAS builds wrong."""

STOP_TIMEOUT_S = 60.0
"""vLLM waits for its engine core when interrupted; longer than this and the group is killed."""


def argv(
    platform: str,
    model: str,
    port: int,
    max_model_len: int,
    max_num_seqs: int,
    kv_cache_dtype: str = "auto",
    extra: Sequence[str] = (),
    *,
    root: Path | None = None,
) -> tuple[list[str], dict[str, str]]:
    """Command line and whole environment of the pinned server.

    extra: the recipe's oracle.args; they replace the pin's defaults and may not contradict what it requires.
    Errors: OracleError (not installed), UsageError (a forbidden or contradicting flag).
    """
    pin = load(platform)
    installed = environment.require(pin.platform, root)
    _refuse_forbidden(pin, extra)
    command = [installed.python, "-m", "vllm.entrypoints.cli.main", "serve", model]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    command += ["--max-model-len", str(max_model_len), "--max-num-seqs", str(max_num_seqs)]
    command += ["--kv-cache-dtype", kv_cache_dtype]
    for flag in pin.serve.required:
        command += flag
    for flag in pin.serve.default:
        if flag[0] not in _options(extra):
            command += flag
    command += extra
    env = {name: os.environ[name] for name in INHERITED if name in os.environ} | pin.serve.env
    if installed.pythonpath is not None:
        env["PYTHONPATH"] = installed.pythonpath
    return command, env


def _options(arguments: Sequence[str]) -> set[str]:
    return {argument.partition("=")[0] for argument in arguments if argument.startswith("--")}


def _refuse_forbidden(pin: Pin, extra: Sequence[str]) -> None:
    fixed = {flag[0] for flag in pin.serve.required}
    for option in sorted(_options(extra)):
        if option in pin.serve.forbidden:
            raise UsageError(f"oracle.args has {option}, which oracle/pin.toml forbids", hint="remove it")
        if option in fixed:
            raise UsageError(f"oracle.args has {option}, which oracle/pin.toml already sets", hint="remove it")


def run_foreground(command: Sequence[str], env: dict[str, str]) -> int:
    """Run the server in a process group of its own until it ends or Ctrl-C; returns its exit status.

    vLLM's engine core and workers are children that outlive a killed parent, so the whole group is interrupted, waited
    for, and killed if something of it is left.
    """
    with subprocess.Popen(command, env=env, start_new_session=True) as server:
        previous = signal.signal(signal.SIGTERM, _as_interrupt)
        try:
            return server.wait()
        except KeyboardInterrupt:
            return stop_group(server)
        finally:
            signal.signal(signal.SIGTERM, previous)
            _kill_rest(server.pid)


def stop_group(server: subprocess.Popen[bytes], timeout_s: float = STOP_TIMEOUT_S) -> int:
    """SIGINT to the server's process group; SIGKILL to what is left of it after timeout_s. Returns the exit status."""
    _signal_group(server.pid, signal.SIGINT)
    try:
        return server.wait(timeout_s)
    except subprocess.TimeoutExpired:
        _kill_rest(server.pid)
        return server.wait()


def _kill_rest(group: int) -> None:
    _signal_group(group, signal.SIGKILL)


def _signal_group(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return


def _as_interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt
