"""Recipes: every mistake is one line that names the key, the table and what was meant."""

from __future__ import annotations

import copy
import itertools
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gate import recipe as recipes
from gate.errors import UsageError
from gate.listing import recipe_toml
from gate.recipe import Workload

GOOD: dict[str, Any] = {
    "schema_version": 1,
    "name": "small",
    "gpu": False,
    "checkpoint": {"path": "checkpoints/small"},
    "workload": {"prompt_tokens": 16, "output_tokens": 8},
    "protocol": {"concurrency": [1, 2], "repetitions": 2},
    "oracle": {"platform": "cpu"},
}


def with_key(table: str, key: str, value: Any) -> dict[str, Any]:
    data = copy.deepcopy(GOOD)
    (data if not table else data.setdefault(table, {}))[key] = value
    return data


def test_good_recipe_is_frozen_and_complete() -> None:
    recipe = recipes.parse(GOOD, "small.toml")
    assert recipe.protocol.concurrency == (1, 2)
    assert recipe.workload.requests_per_stream == 2
    with pytest.raises(Exception, match="frozen"):
        recipe.name = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("table", "key", "value", "said"),
    [
        ("", "checkpont", {}, "unknown key 'checkpont' at the top; did you mean 'checkpoint'?"),
        ("workload", "promt_tokens", 5, "unknown key 'promt_tokens' in [workload]; did you mean 'prompt_tokens'?"),
        ("protocol", "zzz", 5, "unknown key 'zzz' in [protocol]; known: concurrency"),
        ("workload", "prompt_tokens", "16", "prompt_tokens = '16' in [workload]: input should be a valid integer"),
        ("workload", "min_requests_per_leg", -1, "min_requests_per_leg = -1 in [workload]: input should be"),
        ("workload", "output_tokens", 0, "output_tokens = 0 in [workload]: input should be greater than or equal to 1"),
        ("workload", "arrival", "poisson", "rate_per_stream None do not go together"),
        ("workload", "start", "apart", "start = 'apart' in [workload]: input should be 'together' or 'staggered'"),
        ("protocol", "concurrency", [2, 2], "concurrency [2, 2] must be distinct numbers from 1 up"),
        ("protocol", "concurrency", [64], "concurrency 64 is above max_num_seqs 32"),
        ("checkpoint", "hub", "org/model", "needs either path or hub"),
        ("", "max_model_len", 20, "prompt_tokens + output_tokens is 24, max_model_len only 20"),
        ("", "name", "../up", "name = '../up' at the top"),
    ],
)
def test_mistake_is_named_in_one_line(table: str, key: str, value: Any, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        recipes.parse(with_key(table, key, value), "small.toml")
    message = str(caught.value)
    assert said in message
    assert "\n" not in message
    assert message.startswith("small.toml: ")
    assert caught.value.exit_code == 64


@pytest.mark.parametrize("revision", ["main", "0893E1606FF3D5F97A441F405D5FC541A6BDF404", "0893e16", "g" * 40])
def test_revision_is_forty_hex_digits(revision: str) -> None:
    data = copy.deepcopy(GOOD) | {"checkpoint": {"hub": "org/model", "revision": revision}}
    with pytest.raises(UsageError, match=r"revision = .* in \[checkpoint\]"):
        recipes.parse(data, "x")


def test_hub_without_revision_is_refused() -> None:
    with pytest.raises(UsageError, match="hub needs revision"):
        recipes.parse(copy.deepcopy(GOOD) | {"checkpoint": {"hub": "org/model"}}, "x")


def write(folder: Path, name: str, text: str) -> None:
    (folder / f"{name}.toml").write_text(text, encoding="utf-8")


HUB = """schema_version = 1
name = "hub"
[checkpoint]
hub = "org/Model-27B"
revision = "0893e1606ff3d5f97a441f405d5fc541a6bdf404"
"""


def test_model_finds_its_recipe_and_a_near_miss_is_suggested(tmp_path: Path) -> None:
    write(tmp_path, "hub", HUB)
    assert recipes.find("org/Model-27B", tmp_path).name == "hub"
    with pytest.raises(UsageError, match="did you mean 'org/Model-27B'"):
        recipes.find("org/Model-27", tmp_path)


def test_unknown_name_suggests_the_nearest(tmp_path: Path) -> None:
    write(tmp_path, "tiny", HUB)
    with pytest.raises(UsageError, match=r"no recipe 'tinny'; expected one of tiny; did you mean 'tiny'"):
        recipes.load("tinny", tmp_path)


def test_broken_toml_names_file_and_line(tmp_path: Path) -> None:
    write(tmp_path, "bad", "a = = 1")
    with pytest.raises(UsageError, match=r"bad.toml is not TOML: .*line 1"):
        recipes.load(str(tmp_path / "bad.toml"))


def test_command_line_overrides_and_drops_arguments_of_another_candidate() -> None:
    recipe = recipes.parse(with_key("candidate", "args", ["--block-tokens", "16"]), "x")
    same = recipes.override(recipe, concurrency=(4,), candidate="engine")
    assert (same.protocol.concurrency, same.candidate.args) == ((4,), ("--block-tokens", "16"))
    other = recipes.override(recipe, candidate="vllm", repetitions=5)
    assert (other.candidate.kind, other.candidate.args, other.protocol.repetitions) == ("vllm", (), 5)
    with pytest.raises(UsageError, match="command line: "):
        recipes.override(recipe, concurrency=(0,))


@pytest.mark.parametrize("name", recipes.names())
def test_every_recipe_of_the_project_loads_under_its_own_name(name: str) -> None:
    assert recipes.load(name).name == name


@pytest.mark.parametrize("name", recipes.names())
def test_a_shown_recipe_can_be_saved_and_read_back(name: str) -> None:
    recipe = recipes.load(name)
    assert recipes.parse(tomllib.loads(recipe_toml(recipe)), "shown") == recipe


@given(st.text(max_size=20), st.dictionaries(st.from_regex(r"[A-Z_]{1,5}", fullmatch=True), st.text(max_size=9)))
@settings(max_examples=50)
def test_any_text_survives_being_shown(description: str, env: dict[str, str]) -> None:
    env = {key: value.replace("\0", "") for key, value in env.items()}
    recipe = recipes.load("tiny").model_copy(
        update={"description": description, "oracle": recipes.OracleTable(args=("a b", '"'), env=env)}
    )
    assert recipes.parse(tomllib.loads(recipe_toml(recipe)), "shown") == recipe


def test_only_a_file_is_to_be_checked_again(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text("schema_version = 1\nname = 3\n")
    with pytest.raises(UsageError) as refused:
        recipes.load(str(path))
    assert refused.value.hint == f"gate recipe check {path} tries again"
    with pytest.raises(UsageError) as refused:
        recipes.override(recipes.load("tiny"), concurrency=(0,))
    assert "recipe check" not in str(refused.value)


@given(st.integers(1, 64), st.integers(1, 3), st.integers(1, 300))
def test_a_staggered_start_spreads_the_last_warm_up_evenly_and_asks_for_as_many_tokens(
    concurrency: int, per_stream: int, tokens: int
) -> None:
    workload = Workload(output_tokens=tokens, warmup_per_stream=per_stream, start="staggered")
    lengths = workload.warmup_output_tokens(concurrency)
    assert len(lengths) == concurrency * per_stream
    assert set(lengths[:-concurrency]) <= {tokens}
    last = lengths[-concurrency:]
    assert all(max(1, tokens // 2) <= one <= (3 * tokens + 1) // 2 for one in last)
    if tokens >= concurrency:
        assert last[-1] - last[0] < tokens  # nobody is through with a timed request before all have begun
    steps = [b - a for a, b in itertools.pairwise(last)]
    assert all(step in (tokens // concurrency, tokens // concurrency + 1) for step in steps)
    assert abs(sum(last) - tokens * concurrency) <= concurrency


@given(st.integers(1, 64), st.integers(0, 3), st.integers(1, 300))
def test_together_all_warm_up_requests_are_alike(concurrency: int, per_stream: int, tokens: int) -> None:
    lengths = Workload(output_tokens=tokens, warmup_per_stream=per_stream).warmup_output_tokens(concurrency)
    assert lengths == (tokens,) * (concurrency * per_stream)


@pytest.mark.parametrize(
    "others", [{"arrival": "constant", "rate_per_stream": 1.0}, {"warmup_per_stream": 0}], ids=["open", "no-warm-up"]
)
def test_a_staggered_start_needs_a_closed_loop_and_a_warm_up(others: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="start 'staggered' needs arrival 'closed' and warmup_per_stream of 1 or more"):
        Workload(start="staggered", **others)


def test_a_staggered_start_must_fit_its_longest_warm_up() -> None:
    """16 + 8 tokens fit 25; the second of two streams warms up with 8 × 5 / 4 = 10."""
    tight = with_key("", "max_model_len", 25)
    tight["workload"] |= {"prompt_tokens": 16, "output_tokens": 8}
    tight["protocol"] = {"concurrency": [1, 2]}
    assert recipes.parse(tight, "t").workload.start == "together"
    tight["workload"] |= {"start": "staggered"}
    with pytest.raises(UsageError, match=r"warm-up requests of 16 \+ 10 tokens, max_model_len is only 25"):
        recipes.parse(tight, "t")


def staggered(concurrency: list[int], output_tokens: int, **workload: int) -> recipes.Recipe:
    data = with_key("", "max_num_seqs", 64)
    data["workload"] |= {"start": "staggered", "output_tokens": output_tokens} | workload
    data["protocol"] = {"concurrency": concurrency}
    return recipes.parse(data, "t")


def test_a_staggered_start_needs_a_second_request_of_every_stream() -> None:
    """With one, the first stream may be through before the last begins: never all at once, and each such leg VOID."""
    with pytest.raises(UsageError, match="with one request a stream at concurrency 8: not all streams"):
        staggered([1, 2, 8], 128, requests_per_stream=1, min_requests_per_leg=8)
    staggered([1, 2, 8], 128, requests_per_stream=1, min_requests_per_leg=16)
    staggered([1], 128, requests_per_stream=1)


def test_a_staggered_start_leaves_steps_of_decoding_between_two_prompts() -> None:
    with pytest.raises(UsageError, match="at concurrency 32 with output_tokens 127, expected 128 or more"):
        staggered([1, 32], 127)
    staggered([1, 32], 128)
