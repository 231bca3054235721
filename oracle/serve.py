"""The oracle's command line and environment, as the pin wants them; a foreground server that leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import time
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

SET_BY_GATE = ("--host", "--port", "--model", "--max-model-len", "--max-num-seqs", "--kv-cache-dtype")
"""From the recipe, for both arms alike. vLLM takes the last of two equal options, so a second one would win."""

MIN_ABBREVIATION = 4
"""Shorter beginnings of an option are ambiguous to vLLM itself."""

STOP_TIMEOUT_S = 60.0
"""vLLM waits for its engine core when interrupted; longer than this and the group is killed."""

CHILDREN_GRACE_S = 10.0
"""Its children may outlive the API server by some seconds: they release shared memory and the GPU."""


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
    installed: bool = True,
) -> tuple[list[str], dict[str, str]]:
    """Command line and whole environment of the pinned server.

    extra: the recipe's oracle.args; they replace the pin's defaults and may not contradict what it requires.
    installed: False shows the command line where the oracle is not.
    Errors: OracleError (not installed), UsageError (a forbidden or contradicting flag).
    """
    pin = load(platform)
    place = environment.require(pin.platform, root) if installed else environment.expected(pin.platform, root)
    _refuse(pin, extra)
    command = [place.python, "-m", "vllm.entrypoints.cli.main", "serve", model]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    command += ["--max-model-len", str(max_model_len), "--max-num-seqs", str(max_num_seqs)]
    command += ["--kv-cache-dtype", kv_cache_dtype]
    for flag in pin.serve.required:
        command += flag
    for flag in pin.serve.default:
        if flag[0] not in _options(extra):
            command += flag
    command += extra
    if found := deviations(platform, command):
        raise UsageError(
            f"the oracle's command line {found[0]}", expected="what oracle/pin.toml says", hint="see its head"
        )
    env = {name: os.environ[name] for name in INHERITED if name in os.environ} | pin.serve.env
    if place.pythonpath is not None:
        env["PYTHONPATH"] = place.pythonpath
    return command, env


def deviations(platform: str, command: Sequence[str]) -> tuple[str, ...]:
    """What a vLLM command line lacks of the pin's required flags, or has of its forbidden ones; one sentence each.

    vLLM takes `_` for `-` in an option, and argparse any unambiguous beginning of one: both spellings count.
    """
    serve, words = load(platform).serve, [_spelling(word) for word in command]
    joined = "\0" + "\0".join(words) + "\0"
    missing = [f"lacks {' '.join(flag)}" for flag in serve.required if "\0" + "\0".join(flag) + "\0" not in joined]
    forbidden = [f"has {word}" for word in words if any(_means(word, option) for option in serve.forbidden)]
    return (*missing, *forbidden)


def _spelling(word: str) -> str:
    option, equals, value = word.partition("=")
    return option.replace("_", "-") + equals + value if word.startswith("--") else word


def _means(word: str, option: str) -> bool:
    name = word.partition("=")[0]
    if option.startswith("--"):
        return len(name) > MIN_ABBREVIATION and option.startswith(name)
    return word.startswith(option) and not word.startswith("--")


def negated(option: str) -> str:
    """How vLLM spells the opposite of a switch."""
    return "--" + option.removeprefix("--no-") if option.startswith("--no-") else "--no-" + option.removeprefix("--")


def _options(arguments: Sequence[str]) -> set[str]:
    return {_spelling(word).partition("=")[0] for word in arguments if word.startswith("--")}


def _refuse(pin: Pin, extra: Sequence[str]) -> None:
    fixed = [flag[0] for flag in pin.serve.required] + list(SET_BY_GATE)
    for option in sorted(_options(extra)):
        if any(_means(option, name) or _means(option, negated(name)) for name in fixed):
            raise UsageError(f"oracle.args has {option}, which the gate sets itself", hint="remove it")


def run_foreground(command: Sequence[str], env: dict[str, str], grace_s: float = CHILDREN_GRACE_S) -> int:
    """Run the server in a process group of its own until it ends or Ctrl-C; returns its exit status.

    vLLM's engine core and workers are children that outlive a killed parent, so the whole group is interrupted, waited
    for, and what is left of it grace_s after the server is killed.
    """
    told: list[int] = []  # held back until the server is known, or nobody would stop it
    previous = {n: signal.signal(n, lambda n, _: told.append(n)) for n in (signal.SIGINT, signal.SIGTERM)}
    server: subprocess.Popen[bytes] | None = None
    try:
        server = subprocess.Popen(command, env=env, start_new_session=True)
        signal.signal(signal.SIGINT, previous[signal.SIGINT])
        signal.signal(signal.SIGTERM, _as_interrupt)
        if told:
            raise KeyboardInterrupt
        return server.wait()
    except KeyboardInterrupt:
        if server is None:
            raise
        return stop_group(server)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        if server is not None:
            _end_group(server.pid, grace_s)


def stop_group(server: subprocess.Popen[bytes], timeout_s: float = STOP_TIMEOUT_S) -> int:
    """SIGINT to the server's process group; SIGKILL to what is left after timeout_s. Returns the exit status."""
    _signal_group(server.pid, signal.SIGINT)
    try:
        return server.wait(timeout_s)
    except subprocess.TimeoutExpired:
        _signal_group(server.pid, signal.SIGKILL)
        return server.wait()


def _end_group(group: int, grace_s: float) -> None:
    """Let the children of an ended server end by themselves for grace_s, then kill what is left."""
    deadline = time.monotonic() + grace_s
    while _signal_group(group, None):
        if time.monotonic() > deadline:
            _signal_group(group, signal.SIGKILL)
            return
        time.sleep(0.05)


def _signal_group(group: int, number: signal.Signals | None) -> bool:
    """Send a signal (None: none) to a process group; False when it has no members."""
    try:
        os.killpg(group, number or 0)
    except ProcessLookupError:
        return False
    return True


def _as_interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt
