"""What every test gets: a clean environment, and visible skips where a machine lacks a GPU or the pinned oracle."""

from __future__ import annotations

import ctypes
import fcntl
import gc
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent
ORACLE = ROOT / ".oracle" / "cpu"

FOREIGN = (
    "VLLM_",
    "OPENAI_",
    "ENGINE_",
    "GATE_",
    "HF_",
    "CUDA_VISIBLE_DEVICES",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "http_proxy",
    "https_proxy",
    "ALL_PROXY",
    "all_proxy",
    "NO_COLOR",
    "FORCE_COLOR",
    "COLUMNS",
)
"""Variables that would make a result depend on the developer's shell."""

# How long an example takes says how busy the machine is: Hypothesis's limit of 200 ms fails a test whenever its worker
# loses its core, or imports something heavy in the first example. The examples are the same in every run, so that what
# is green stays green; `pytest --hypothesis-profile explore` tries new ones.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", settings.get_profile("explore"), derandomize=True)
settings.load_profile("same")

# A shell starts background jobs with SIGINT ignored, and children inherit that: tests that interrupt something would
# wait for ever under `make test &`.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the same under `nohup make test`


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    # A handler that another test left behind would swallow this one's Ctrl-C.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in list(os.environ):
        if name.startswith(FOREIGN) and name != "CUDA_VISIBLE_DEVICES":
            monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def _has_cuda() -> bool:
    """Asks the driver, so that a run without GPU tests never imports torch for it."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int(0)
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0


LONGEST = (
    "tests/engine/test_oracle_tokens.py",
    "tests/gate/survival/",
    "tests/tools/test_mutants.py",
    "tests/oracle/test_real.py",
    "tests/gate/calibration/test_calibrate.py",
    "tests/gate/test_cli.py",
    "tests/oracle/test_install.py",
)
"""Files that take a worker a minute: they begin first, or one worker would be at them when no other has work left."""


def _rank(item: pytest.Item) -> int:
    return next((rank for rank, path in enumerate(LONGEST) if item.nodeid.startswith(path)), len(LONGEST))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_rank)
    lacking = {}
    if not _has_cuda():
        lacking["gpu"] = "needs a CUDA device; this machine has none"
    if not any(ORACLE.glob("*stamp*")):
        lacking["oracle"] = f"needs the pinned CPU oracle in {ORACLE.relative_to(ROOT)}; run `gate oracle install`"
    for item in items:
        for marker, reason in lacking.items():
            if item.get_closest_marker(marker) is not None:
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish() -> None:
    """What the imports of all test files made lives as long as this process. A leg of the gate begins with a full
    collection: it would look at each of those objects again every time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny dense model in nvidia's layout (W4A16 MLP and lm_head, FP8 towers), made once per run."""
    return _make(tmp_path_factory, "modelopt")


@pytest.fixture(scope="session")
def tiny_bf16_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model in BF16. In float32 its tokens do not depend on the batch; FP8 activations would amplify any
    difference in the last bit to a whole FP8 step."""
    return _make(tmp_path_factory, "bf16")


def _make(tmp_path_factory: pytest.TempPathFactory, layout: str) -> Path:
    """By the first worker that wants it, for all workers of the run: it takes seconds, and no test changes it."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = base / f"tiny-{layout}"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            tool = [sys.executable, str(ROOT / "tools" / "make_checkpoint.py")]
            command = [*tool, "--shape", "tiny", "--layout", layout, "--seed", "1", str(folder)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
    return folder
