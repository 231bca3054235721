"""The GPU preconditions: idle, cool, with room. What NVML does not tell is never taken for good."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from gate.errors import PreconditionError
from gate.observe import gpu
from gate.observe.rows import ARMS
from gate.plan import Plan
from gate.preflight import clocks, gpu_idle, memory

Put = Callable[..., None]
ON_GPU = {"gpu": True}
GIB = 2**30
UNSUPPORTED = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


@pytest.fixture
def plan(plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Plan]:
    """Its servers get card 0, and the shell shows another."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")

    def make(*over: Any) -> Plan:
        made = plan(*over)
        env = {"CUDA_VISIBLE_DEVICES": "0"}
        return made.model_copy(update={arm: made.arm(arm).model_copy(update={"env": env}) for arm in ARMS})

    return make


@pytest.mark.parametrize("check", [gpu_idle.check, clocks.check])
def test_a_run_without_a_gpu_asks_nothing(check: Any, plan: Callable[..., Plan], tmp_path: Path, cards: Put) -> None:
    cards({"uuid": "GPU-a", "processes": UNSUPPORTED, "mask": UNSUPPORTED})
    assert check(plan(), tmp_path) == ()


def test_an_idle_card_passes_whatever_its_neighbour_does(plan: Callable[..., Plan], tmp_path: Path, cards: Put) -> None:
    cards({"uuid": "GPU-a"}, {"uuid": "GPU-b", "processes": [SimpleNamespace(pid=1)], "used": 9 * GIB})
    assert gpu_idle.check(plan(ON_GPU), tmp_path) == ()


@pytest.mark.parametrize(
    ("card", "message"),
    [
        ({"processes": [SimpleNamespace(pid=os.getpid())]}, r"is busy: pid \d+ \(.+\); expected no compute"),
        ({"processes": [SimpleNamespace(pid=2**22 + 1)]}, r"is busy: pid 4194305; expected"),
        ({"used": 2 * GIB + 1}, r"has 2\.00 GiB in use by a process that NVML does not list; expected at most 2\.00"),
        ({"processes": UNSUPPORTED}, "NVML does not tell what runs on GPU GPU-a"),
        ({"used": UNSUPPORTED}, "NVML does not tell what runs on GPU GPU-a"),
    ],
)
def test_a_card_that_is_not_known_to_be_idle_stops_the_run(
    card: dict[str, Any], message: str, plan: Callable[..., Plan], tmp_path: Path, cards: Put
) -> None:
    cards({"uuid": "GPU-a"} | card)
    with pytest.raises(PreconditionError, match=message):
        gpu_idle.check(plan(ON_GPU), tmp_path)


def test_exactly_the_limit_is_idle(plan: Callable[..., Plan], tmp_path: Path, cards: Put) -> None:
    cards({"uuid": "GPU-a", "used": gpu_idle.IDLE_BYTES})
    assert gpu_idle.check(plan(ON_GPU), tmp_path) == ()


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (0, ()),
        (pynvml.nvmlClocksEventReasonGpuIdle, ()),
        (pynvml.nvmlClocksEventReasonSwPowerCap, ()),
        (pynvml.nvmlClocksEventReasonApplicationsClocksSetting, ()),
        (pynvml.nvmlClocksThrottleReasonHwThermalSlowdown, ("hardware thermal slowdown",)),
        (
            pynvml.nvmlClocksEventReasonSwThermalSlowdown | pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown,
            ("software thermal slowdown", "power brake"),
        ),
    ],
)
def test_only_heat_and_power_faults_hold_a_card_back(mask: int, words: tuple[str, ...]) -> None:
    assert gpu.held_back(mask) == words


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (pynvml.nvmlClocksThrottleReasonHwSlowdown, "GPU GPU-a is held back: hardware slowdown"),
        (UNSUPPORTED, "GPU GPU-a does not tell whether its clocks are held back"),
    ],
)
def test_a_card_held_back_is_a_finding(
    mask: Any, message: str, plan: Callable[..., Plan], tmp_path: Path, cards: Put
) -> None:
    cards({"uuid": "GPU-a", "mask": mask}, {"uuid": "GPU-b", "mask": pynvml.nvmlClocksThrottleReasonHwSlowdown})
    assert [finding.message for finding in clocks.check(plan(ON_GPU), tmp_path)] == [message]


def test_a_card_without_room_for_both_weights_is_refused(
    plan: Callable[..., Plan], checkpoint: Path, tmp_path: Path, cards: Put
) -> None:
    each = sum(path.stat().st_size for path in checkpoint.glob("*.safetensors"))
    cards({"uuid": "GPU-a", "free": 2 * each})
    assert memory.check(plan(ON_GPU), tmp_path) == ()
    cards({"uuid": "GPU-a", "free": 2 * each - 1})
    with pytest.raises(PreconditionError, match="for the weights alone; set residency"):
        memory.check(plan(ON_GPU), tmp_path)
    alternate = ON_GPU | {"protocol": {"residency": "alternate"}}
    assert memory.check(plan(alternate), tmp_path) == ()
