"""The oracle precondition: looked at when an arm is the pinned vLLM, and never otherwise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gate.errors import OracleError
from gate.plan import Plan
from gate.preflight import oracle

AS_PINNED = (
    "vllm",
    "serve",
    "--language-model-only",
    "--no-enable-prefix-caching",
    "--enforce-eager",
    "--dtype",
    "bfloat16",
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    platforms: list[str] = []
    monkeypatch.setattr(oracle, "verify_installed", platforms.append)
    return platforms


def test_the_installation_is_verified(plan: Callable[..., Plan], asked: list[str], tmp_path: Path) -> None:
    assert oracle.check(plan(oracle={"argv": AS_PINNED}), tmp_path) == ()
    assert asked == ["cpu"]


@pytest.mark.parametrize("arm", ["candidate", "oracle"])
def test_a_weaker_command_line_is_refused_on_both_arms(
    arm: str, plan: Callable[..., Plan], asked: list[str], tmp_path: Path
) -> None:
    arms = {"candidate": {"kind": "vllm", "argv": AS_PINNED}, "oracle": {"argv": AS_PINNED}}
    arms[arm] = {"kind": "vllm", "argv": (*AS_PINNED, "--enable-prefix-caching")}
    with pytest.raises(OracleError, match=f"the {arm}'s vLLM command line has --enable-prefix-caching"):
        oracle.check(plan(**arms), tmp_path)
    assert asked == []


@pytest.mark.parametrize("attached", [{"kind": "url", "argv": None}, {"kind": "command", "argv": ("llama-server",)}])
def test_another_opponent_needs_no_pinned_vllm(
    attached: dict[str, object], plan: Callable[..., Plan], asked: list[str], tmp_path: Path
) -> None:
    assert oracle.check(plan(oracle=attached), tmp_path) == ()
    assert asked == []
