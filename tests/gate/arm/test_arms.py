"""From a kind to a command line: engine, command, URL; what the server may inherit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gate import arm as arms
from gate import recipe as recipes
from gate.arm import oracle, url
from gate.arm.fake import FakeServer
from gate.arm.fake_script import preset
from gate.errors import ArmError, UsageError

RECIPE = recipes.parse(
    {"schema_version": 1, "name": "small", "gpu": False, "checkpoint": {"path": "m"}, "oracle": {"platform": "cpu"}},
    "t",
)


def seat(**changes: Any) -> arms.Seat:
    fields: dict[str, Any] = {
        "arm": "candidate",
        "port": 8123,
        "checkpoint": "/models/a b",
        "digest": None,
        "args": (),
        "inherited": {"PATH": "/bin"},
        "own_env": {},
    }
    return arms.Seat(**(fields | changes))


def test_engine_gets_every_setting_of_the_recipe() -> None:
    plan = arms.plan_arm("engine", seat(args=("--block-tokens", "16")), RECIPE)
    assert plan.argv is not None
    assert plan.argv[:6] == (sys.executable, "-P", "-m", "engine", "serve", "/models/a b")
    line = " ".join(plan.argv)
    for option in ("--port 8123", "--max-model-len 4096", "--max-num-seqs 32", "--device cpu", "--block-tokens 16"):
        assert option in line
    assert (plan.kind, plan.url, plan.model) == ("engine", "http://127.0.0.1:8123", "small")


@pytest.mark.parametrize(("held", "options"), [(None, ()), (4096, ("--kv-cache-memory-bytes", "4096"))])
def test_vllm_gets_the_kv_cache_that_the_recipe_allows(
    monkeypatch: pytest.MonkeyPatch, held: int | None, options: tuple[str, ...]
) -> None:
    asked: dict[str, Any] = {}

    def argv(**fields: Any) -> tuple[list[str], dict[str, str]]:
        asked.update(fields)
        return ["vllm"], {}

    monkeypatch.setattr(oracle.serve, "argv", argv)
    table = RECIPE.oracle.model_copy(update={"kv_cache_bytes": held})
    oracle.plan(seat(arm="oracle", args=("--more",)), RECIPE.model_copy(update={"oracle": table}))
    assert asked["extra"] == ("--served-model-name", "small", *options, "--more")


def test_command_is_split_before_it_is_filled_in() -> None:
    plan = arms.plan_arm("serve '{model}' --port={port} --x '{{}}' $HOME", seat(args=("-v",)), RECIPE)
    assert plan.argv == ("serve", "/models/a b", "--port=8123", "--x", "{}", "$HOME", "-v")
    assert plan.kind == "command"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("serve {prot}", r"unknown placeholder \{prot\} for the candidate; expected \{model\}"),
        ("serve {port.real} {port}", "unknown placeholder"),
        ("serve", r"has no \{port\}"),
        ("serve 'x", "cannot split"),
        ("serve {", "cannot split"),
        ("", "an empty command"),
    ],
)
def test_bad_command_is_a_usage_error(command: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        arms.plan_arm(command, seat(), RECIPE)


@pytest.mark.parametrize(("typed", "meant"), [("engin", "engine"), ("Engine", "engine"), ("vlm", "vllm")])
def test_a_kind_that_is_misspelt_is_told(typed: str, meant: str) -> None:
    said = rf"'{typed}' has no \{{port\}}; expected engine, vllm, COMMAND .* URL; did you mean {meant}\?$"
    with pytest.raises(UsageError, match=said):
        arms.plan_arm(typed, seat(), RECIPE)


@pytest.mark.parametrize("typed", ["serve", "./engin", "engin --fast", "none", "vllm.cpp"])
def test_what_is_like_no_kind_is_taken_for_a_command(typed: str) -> None:
    with pytest.raises(UsageError, match=r"or an http:// URL$"):
        arms.plan_arm(typed, seat(), RECIPE)


def test_a_program_on_the_path_of_the_arm_is_no_misspelling(tmp_path: Path) -> None:
    (tmp_path / "engin").touch(mode=0o755)
    with pytest.raises(UsageError, match=r"has no .*URL$"):
        arms.plan_arm("engin", seat(inherited={"PATH": str(tmp_path)}), RECIPE)


@given(st.text(max_size=40))
def test_any_text_is_a_plan_or_a_usage_error(text: str) -> None:
    try:
        plan = arms.plan_arm(f"x {text} {{port}}", seat(), RECIPE)
    except UsageError:
        return
    assert plan.argv is not None
    assert "8123" in plan.argv[-1]


def test_url_is_attached_and_nothing_started() -> None:
    plan = arms.plan_arm("http://10.0.0.1:9000/v1/", seat(), RECIPE)
    assert (plan.kind, plan.argv, plan.url) == ("url", None, "http://10.0.0.1:9000")


def test_recipe_wins_over_what_is_inherited() -> None:
    plan = arms.plan_arm("x {port}", seat(own_env={"PATH": "/opt", "A": "1"}), RECIPE)
    assert plan.env == {"PATH": "/opt", "A": "1"}


def test_only_listed_variables_are_inherited() -> None:
    environ = {"PATH": "/bin", "HF_TOKEN": "secret", "VLLM_ATTENTION_BACKEND": "X", "CUDA_VISIBLE_DEVICES": "1"}
    assert arms.allowed(environ) == {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "1"}


def test_attached_server_survives_stop_and_tells_when_it_started() -> None:
    with FakeServer(preset("instant")) as fake:
        server = url.attach(arms.plan_arm(fake.url, seat(), RECIPE), 1)
        assert server.start_id == f"attached@{fake.started_at:.3f}"
        server.stop()
        assert server.alive()
    assert not server.alive()


def test_absent_server_is_one_line() -> None:
    with pytest.raises(ArmError, match=r"no answer from http://127\.0\.0\.1:9; expected a ready server"):
        url.attach(arms.plan_arm("http://127.0.0.1:9", seat(), RECIPE), 0.1)


@pytest.mark.parametrize("url", ["http://", "http://[::1", "http://host:99999", "http://host:x", "http://h:1/?a=b"])
def test_a_url_that_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match=r"URL is .*; expected http://HOST:PORT"):
        arms.plan_arm(url, seat(), recipes.load("tiny"))


def test_a_password_in_a_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(UsageError, match="user name or password") as refused:
        arms.plan_arm("http://me:secret@host:1", seat(), recipes.load("tiny"))
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("command", ["x {port!z}", "x {port:999999999999}", "x {port!r}"])
def test_a_placeholder_has_no_format(command: str) -> None:
    with pytest.raises(UsageError, match="unknown placeholder"):
        arms.plan_arm(command, seat(), recipes.load("tiny"))
