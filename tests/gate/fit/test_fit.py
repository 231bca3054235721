"""`gate fit` from its command line: verdicts and exit codes, one unit a table, limits from a recipe, refusals."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gate import cli, interrupt
from gate import recipe as recipes
from gate.fit import flow
from gate.fit.record import BY_ESTIMATE, FITS, TOO_LARGE, FitReport, Used
from gate.fit.text import render
from tests.gate.headers.sparse import synthetic, write

Run = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic(tmp_path_factory.mktemp("tiny") / "tiny", "tiny", vision=True)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic(tmp_path_factory.mktemp("27b") / "27b", "27b", vision=True, mtp=True)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setattr(interrupt, "install", lambda: None)

    def run(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["gate", "fit", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        printed = capsys.readouterr()
        return int(end.value.code or 0), printed.out + printed.err

    return run


def llama(folder: Path, **change: Any) -> Path:
    """Attention alone, of an architecture that our engine does not run."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        **{"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2},
        **{"intermediate_size": 128, "vocab_size": 100, "max_position_embeddings": 8192, "head_dim": None},
    }
    return write(folder, {"config.json": config | change}, {"model.embed_tokens.weight": ("BF16", [100, 64])})


def asked(gate: Run, *arguments: object) -> dict[str, Any]:
    code, out = gate(*arguments, "--json")
    made: dict[str, Any] = json.loads(out)
    assert FitReport.model_validate(made).exit_code == code
    return made


def test_the_27b_on_24_gib(gate: Run, real: Path) -> None:
    code, out = gate(
        *("--model", real, "--gpu-memory", "24GiB", "--context", 32768), *("--max-num-batched-tokens", 2048)
    )
    assert code == FITS
    assert "in 24.00 GiB: context 32768, 1 sequence, KV cache fp8 (auto: config.json asks for fp8)" in out
    assert re.search(r"^weights +18\.7\d +18\.7\d$", out, re.MULTILINE)
    assert re.search(r"^KV cache +1\.00 +1\.00$", out, re.MULTILINE)
    assert re.search(r"^recurrent state +0\.14 +0\.19$", out, re.MULTILINE)
    assert re.search(r"^fits +yes +yes$", out, re.MULTILINE)
    assert "not loaded   mtp 0.79, vision 0.8" in out
    limits = "--max-model-len 32768 --max-num-seqs 1 --max-num-batched-tokens 2048 --kv-cache-dtype fp8"
    assert f"start with   {limits}\nengine       --num-blocks 2048; " in out
    assert re.search(r"^vllm         --kv-cache-memory-bytes \d+$", out, re.MULTILINE)


def test_the_table_is_in_the_questions_unit_alone(gate: Run, real: Path) -> None:
    _, in_gib = gate("--model", real, "--gpu-memory", "24GiB")
    _, in_gb = gate("--model", real, "--gpu-memory", "24GB")
    assert not re.search(r"\bGB\b", in_gib)
    assert not re.search(r"\bGiB\b", in_gb)
    assert "GB (10^9 bytes)" in in_gb
    assert re.search(r"^weights +20\.1\d", in_gb, re.MULTILINE)


def test_the_three_verdicts(gate: Run, real: Path) -> None:
    made = asked(gate, "--model", real, "--server", "engine")
    (one,) = made["servers"]
    exact = one["need"]["weights"] + one["need"]["kv"] + one["need"]["state"]
    total = exact + one["need"]["activations"] + one["need"]["scratch"] + one["need"]["overhead"]
    assert one["verdict"] is None
    for memory_bytes, code in ((total, FITS), (total - 10**6, BY_ESTIMATE), (exact - 10**6, TOO_LARGE)):
        memory = f"{-(-memory_bytes // 10**6)}MB"
        assert gate("--model", real, "--server", "engine", "--gpu-memory", memory)[0] == code, memory


def test_the_worst_server_decides_the_exit_code(gate: Run, real: Path) -> None:
    made = asked(gate, "--model", real, "--gpu-memory", "24.5GiB", "--max-num-seqs", 32, "--context", 700)
    assert [one["verdict"] for one in made["servers"]] == [BY_ESTIMATE, TOO_LARGE]
    assert FitReport.model_validate(made).exit_code == TOO_LARGE


def test_the_answers_hold_what_they_promise(gate: Run, real: Path) -> None:
    memory = ("--gpu-memory", "32GiB")
    made = asked(gate, "--model", real, *memory, "--max-num-seqs", 4, "--context", 8192)
    for one in made["servers"]:
        server = ("--server", one["server"])
        longest, most = one["largest_context"], one["largest_max_num_seqs"]
        assert gate("--model", real, *memory, *server, "--max-num-seqs", 4, "--context", longest)[0] == FITS
        assert gate("--model", real, *memory, *server, "--max-num-seqs", 4, "--context", longest + 1)[0] != FITS
        assert gate("--model", real, *memory, *server, "--max-num-seqs", most, "--context", 8192)[0] == FITS
        assert gate("--model", real, *memory, *server, "--max-num-seqs", most + 1, "--context", 8192)[0] != FITS


def test_a_recipe_gives_the_limits_and_the_command_line_changes_them(
    gate: Run, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow.find, "of_recipe", lambda _recipe: tiny)
    made = asked(gate, "--recipe", "tiny")
    assert (made["limits"]["context"], made["limits"]["max_num_seqs"]) == (512, 8)
    assert (made["kv_cache_dtype"], made["kv_cache_why"], made["together"]) == ("bfloat16", "as asked", True)
    made = asked(gate, "--recipe", "tiny", "--context", 64, "--max-num-seqs", 2, "--kv-cache-dtype", "fp8")
    assert made["limits"]["context"] == 64
    assert made["limits"]["max_num_seqs"] == 2
    assert made["kv_cache_dtype"] == "fp8"
    _, out = gate("--recipe", "tiny", "--gpu-memory", "3GiB")
    assert 'residency = "both" keeps the two on one GPU' in out
    assert "in all: fits" in out
    alone = recipes.parse({**recipes.load("tiny").model_dump(), "protocol": {"residency": "alternate"}}, "test")
    monkeypatch.setattr(recipes, "load", lambda _name: alone)
    assert asked(gate, "--recipe", "tiny")["together"] is False
    monkeypatch.undo()


def test_both_at_once_may_be_too_much(gate: Run, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow.find, "of_recipe", lambda _recipe: tiny)
    assert "in all: does not fit" in gate("--recipe", "tiny", "--gpu-memory", "1.5GiB")[1]


def test_the_models_own_limit_may_be_asked_for(gate: Run, tiny: Path) -> None:
    assert gate("--model", tiny, "--context", 262144)[0] == FITS


def test_more_batched_tokens_and_another_overhead_count(gate: Run, tiny: Path) -> None:
    base = asked(gate, "--model", tiny, "--overhead", "0MB")["servers"][0]["need"]
    more = asked(gate, "--model", tiny, "--max-num-batched-tokens", 32768, "--overhead", "2GB")["servers"][0]["need"]
    assert (base["overhead"], more["overhead"]) == (0, 2 * 10**9)
    assert more["activations"] > base["activations"]


def steps(made: dict[str, Any]) -> list[tuple[str, int, str]]:
    return [(one["server"], one["batched_tokens"], one["batched_by"]) for one in made["servers"]]


def test_each_arm_s_step_is_its_own_and_shown(gate: Run, real: Path) -> None:
    wide = ("--model", real, "--max-num-seqs", 32)
    made = asked(gate, *wide)
    assert steps(made) == [("engine", 16384, "its default"), ("vllm", 8192, "its default on an H200")]
    ours, theirs = (one["need"]["activations"] for one in made["servers"])
    assert ours - theirs == 8192 * (2 * 5120 + 63_488) * 2
    _, out = gate(*wide)
    assert "\nstep         engine 16384 tokens, its default; vllm 8192 tokens, its default on an H200\n" in out
    assert "\nstart with   --max-model-len 4096 --max-num-seqs 32 --kv-cache-dtype fp8\n" in out
    assert "\nengine       --max-num-batched-tokens 16384 --num-blocks 8192; " in out
    assert "\nvllm         --max-num-batched-tokens 8192 --kv-cache-memory-bytes " in out
    _, out = gate(*wide, "--max-num-batched-tokens", 2048)
    assert "\nstep         2048 tokens, as asked\n" in out
    assert (
        "--max-num-seqs 32 --max-num-batched-tokens 2048 --kv-cache-dtype fp8\nengine       --num-blocks 8192; " in out
    )
    assert steps(asked(gate, *wide, "--gpu-memory", "24GiB"))[1] == ("vllm", 2048, "its default on a smaller card")


@pytest.mark.parametrize(
    ("words", "step"),
    [
        (["--max-num-batched-tokens", "8192"], 8192),
        (["--max-num-batched-tokens=512", "--num-blocks", "9"], 512),
        (["--num-blocks", "9", "--max_num_batched_tokens", "77"], 77),
    ],
)
def test_a_recipe_s_arguments_give_an_arm_s_step(
    gate: Run, tiny: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], step: int
) -> None:
    monkeypatch.setattr(flow.find, "of_recipe", lambda _recipe: tiny)
    whole = recipes.load("tiny").model_dump()
    for table, server in (("candidate", "engine"), ("oracle", "vllm")):
        other = {"engine": ("vllm", 4096, "its default, no more than all sequences hold")}
        other |= {"vllm": ("engine", 16384, "its default")}
        changed = recipes.parse({**whole, table: {**whole[table], "args": words}}, "test")
        monkeypatch.setattr(recipes, "load", lambda _name, changed=changed: changed)
        assert sorted(steps(asked(gate, "--recipe", "tiny"))) == sorted([(server, step, "the recipe's"), other[server]])
        made = asked(gate, "--recipe", "tiny", "--max-num-batched-tokens", 64)
        assert {one[1:] for one in steps(made)} == {(64, "as asked")}


@pytest.mark.parametrize("value", ["8k", "0", "9" * 400, ""])
def test_a_recipe_s_step_that_is_no_number_is_one_line(
    gate: Run, tiny: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setattr(flow.find, "of_recipe", lambda _recipe: tiny)
    whole = recipes.load("tiny").model_dump()
    words = ["--max-num-batched-tokens", value] if value else ["--max-num-batched-tokens"]
    changed = recipes.parse({**whole, "candidate": {**whole["candidate"], "args": words}}, "test")
    monkeypatch.setattr(recipes, "load", lambda _name: changed)
    code, out = gate("--recipe", "tiny")
    assert (code, out.count("\n")) == (64, 1)
    assert f"the recipe's --max-num-batched-tokens '{value}'; expected a number from 1 to" in out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 64, "--recipe and --model: exactly one is needed"),
        (("--recipe", "tiny", "--model", "x"), 64, "exactly one is needed"),
        (("--model", "{tiny}", "--gpu-memory", "24"), 64, "--gpu-memory '24'; expected a number with GB"),
        (("--model", "{tiny}", "--overhead", "1G"), 64, "--overhead '1G'"),
        (("--model", "{tiny}", "--kv-cache-dtype", "int8"), 64, "expected auto, bfloat16 or fp8"),
        (("--model", "{tiny}", "--server", "sglang"), 64, "expected engine or vllm"),
        (("--model", "{tiny}", "--context", "262145"), 64, "expected at most 262144, the model's"),
        (("--model", "{tiny}", "--used", "no-run"), 64, "no run"),
        (("--model", "nowhere"), 64, "no checkpoint 'nowhere'"),
        (("--model", "{tiny}/.."), 69, "has no config.json"),
        (("--model", ""), 64, "no checkpoint ''"),
        (("--model", "{tiny}", "--gpu-memory", ""), 64, "--gpu-memory ''"),
        (("--model", "{tiny}", "--gpu-memory=-1GiB"), 64, "--gpu-memory '-1GiB'"),
        (("--model", "{tiny}", "--gpu-memory", "1e3GB"), 64, "--gpu-memory '1e3GB'"),
        (("--model", "{tiny}", "--gpu-memory", "9" * 400 + "GB"), 64, "expected a number with GB"),
        (("--model", "{tiny}", "--context", "0"), 64, "--context 0; expected 1 or more"),
        (("--model", "{tiny}", "--context", "9" * 30), 64, "expected at most 262144"),
        (("--model", "{tiny}", "--max-num-seqs", "9" * 400), 64, "expected at most 1048576"),
        (("--model", "{tiny}", "--max-num-batched-tokens", "9" * 400), 64, "expected at most 1099511627776"),
        (("--model", "{llama}", "--server", "engine"), 64, "--server engine: it runs Qwen3_5ForConditionalGeneration"),
        (("--model", "{int4kv}"), 69, "asks for a KV cache of NVFP4; expected fp8, or no scheme"),
    ],
)
def test_a_mistake_is_one_line(
    arguments: tuple[str, ...], code: int, message: str, gate: Run, tiny: Path, tmp_path: Path
) -> None:
    places = {
        "tiny": tiny,
        "llama": llama(tmp_path / "llama"),
        "int4kv": llama(tmp_path / "int4kv", quantization_config={"kv_cache_quant_algo": "NVFP4"}),
    }
    ended, out = gate(*(word.format(**places) for word in arguments))
    assert ended == code
    assert message in out
    assert len(out) < 1000
    assert out.startswith("gate: ")
    assert out.count("\n") == 1


def test_what_a_run_used_stands_beside_what_it_needed(gate: Run, real: Path) -> None:
    made = FitReport.model_validate(asked(gate, "--model", real))
    need, limits = made.servers[0].need, made.limits
    arms = (
        Used(arm="candidate", server="engine", checkpoint="checkpoints/27b", limits=limits, kv_cache_dtype="fp8",
             need=need, weights_bytes=20 * 2**30, pool_bytes=2 * 2**30,
             memory_bytes=23 * 2**30, memory_source="GPU memory by process"),
        Used(arm="oracle", server="command", limits=limits, kv_cache_dtype="fp8", memory_source="GPU memory"),
    )  # fmt: skip
    out = render(made.model_copy(update={"run": "run-1", "used": arms}), "GiB")
    table = out[out.index("GiB, run-1") :]
    assert re.search(r"^weights +20\.00 +18\.7\d +– +–$", table, re.MULTILINE)
    assert re.search(r"^rest +1\.00 +\d\.\d\d +– +–$", table, re.MULTILINE)
    assert re.search(r"^whole +23\.00 +\d+\.\d\d +– +–$", table, re.MULTILINE)
    assert "no need is known: another server, or its checkpoint is gone or of another kind" in table
    assert "candidate    engine, 27b, context" in table
    on_a_cpu = arms[0].model_copy(update={"is_gpu": False})
    out = render(made.model_copy(update={"run": "run-1", "used": (on_a_cpu, on_a_cpu)}), "GiB")
    assert re.search(r"^whole +23\.00 +– +23\.00 +–$", out, re.MULTILINE)


def test_a_model_that_our_engine_does_not_run_is_answered_for_vllm_alone(gate: Run, tmp_path: Path) -> None:
    folder = llama(tmp_path / "llama")
    code, out = gate("--model", folder, "--gpu-memory", "24GB", "--context", 100, "--max-num-seqs", 3)
    assert code == FITS
    assert "engine       not shown: it runs Qwen3_5ForConditionalGeneration" in out
    assert "config.json has LlamaForCausalLM" in out
    (server,) = asked(gate, "--model", folder, "--context", 100, "--max-num-seqs", 3)["servers"]
    # 7 blocks of 16 tokens for each of 3; keys and values of 2 heads of 16, BF16, in 2 layers
    assert (server["server"], server["need"]["kv"]) == ("vllm", 3 * 7 * 16 * 2 * 2 * 16 * 2 * 2)
    assert server["need"]["weights"] == 100 * 64 * 2
    assert asked(gate, "--model", llama(tmp_path / "x", architectures={"a": 1}))["left_out"]


def test_the_answer_is_kept_where_the_reader_has_gone(tiny: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-m", "gate", "fit", "--model", str(tiny), "--gpu-memory", "1MB"]
    ended = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, check=False)
    os.close(write_end)
    assert (ended.returncode, ended.stderr) == (TOO_LARGE, b"")
