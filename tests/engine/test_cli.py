"""Arguments, exit codes and one-line errors. What needs a model is in server/test_end_to_end.py."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys

import pytest

from engine import cli, manifest
from engine.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig, ServerConfig
from engine.kernels import build
from engine.server import serve


def complaint(capsys, arguments, code):
    assert cli.run(arguments) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("engine: ")
    return line


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["serve"], "MODEL"),
        (["serve", "x", "--prot", "1"], "--port"),
        (["serve", "x", "--port", "70000"], "65535"),
        (["serve", "x", "--port", "x"], "--port"),
        (["serve", "x", "--device", "tpu"], "cuda"),
        (["serve", "x", "--dtype", "int3"], "bfloat16"),
        (["serve", "x", "--max-model-len", "0"], "--max-model-len"),
        (["serve", "x", "--kv-cache-dtype", "fp4"], "fp8"),
        (["serve", "x", "--max-logprobs", "-2"], "--max-logprobs"),
        (["serve", "x", "--max-num-batched-tokens", "65537"], "--max-num-batched-tokens"),
        (["frobnicate"], "frobnicate"),
        (["generate", "x"], "--prompt"),
        (["generate", "x", "--prompt", "a", "--prompt-ids", "1"], "either"),
        (["generate", "x", "--prompt-ids", "1,-2"], "1,-2"),
        (["generate", "x", "--prompt-ids", ","], "','"),
        (["generate", "x", "--prompt-ids", "9" * 5000], "999"),
        (["bench", "step", "x", "--batch", "1,0"], "--batch is '1,0'"),
        (["bench", "step", "x", "--batch", "9999999"], "--batch"),
        (["bench", "prefill", "x", "--tokens", "many"], "--tokens is 'many'"),
        (["bench", "op", "gemm"], "found op 'gemm'; expected one of w4a16, w8a8"),
        (["bench", "op"], "OP..."),
        (["generate", "x", "--prompt", "a", "--temperature", "nan"], "temperature"),
        (["generate", "x", "--prompt", "a", "--temperature", "1e39"], "--temperature"),
        (["generate", "x", "--prompt", "a", "--top-p", "nan"], "--top-p"),
        (["generate", "x", "--prompt", "a", "--top-k", "9" * 20], "--top-k"),
    ],
)
def test_usage_errors_are_one_line_and_64(capsys, arguments, word):
    assert word in complaint(capsys, arguments, 64)


def test_missing_checkpoints_are_one_line_and_69(capsys, tmp_path):
    for command in (["serve"], ["generate", "--prompt", "x"]):
        assert "no folder" in complaint(capsys, [*command, str(tmp_path / "nothing")], 69)
        assert "config.json" in complaint(capsys, [*command, str(tmp_path)], 69)


def test_bench_without_a_gpu_is_one_line_and_69(capsys, monkeypatch, tiny_checkpoint, tmp_path):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert "no folder" in complaint(capsys, ["bench", "step", str(tmp_path / "nothing")], 69)
    assert "torch sees no CUDA device" in complaint(capsys, ["bench", "prefill", str(tiny_checkpoint)], 69)
    assert "found no CUDA device" in complaint(capsys, ["bench", "op", "norm"], 69)


def test_no_arguments_and_help_show_the_commands(capsys):
    for arguments in ([], ["--help"]):
        assert cli.run(arguments) == 0
        assert "serve" in capsys.readouterr().out


def test_version_names_the_sources(capsys):
    assert cli.run(["--version"]) == 0
    assert manifest.source_sha256()[:12] in capsys.readouterr().out


def test_every_option_reaches_the_configuration_and_defaults_are_config_s(monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr(serve, "serve", lambda config: seen.append(config) or 0)
    assert cli.run(["serve", str(tmp_path)]) == 0
    assert seen.pop() == EngineConfig(ModelConfig(tmp_path))
    changed = EngineConfig(
        ModelConfig(tmp_path, "name", "cpu", "float32", True, 5),
        CacheConfig(8, 9, "fp8"),
        SchedulerConfig(3, 64, 512, 7),
        ServerConfig("::1", 81, 1000, 2, 3, -1, "KEY"),
    )
    names = {"served_name": "served-model-name", "allow_reference": None}
    arguments = ["serve", str(tmp_path), "--allow-reference"]
    for part in (changed.model, changed.cache, changed.scheduler, changed.server):
        for field in dataclasses.fields(part):
            option = names.get(field.name, field.name.replace("_", "-"))
            if field.name != "path" and option is not None:
                arguments += [f"--{option}", str(getattr(part, field.name))]
    assert cli.run(arguments) == 0
    assert seen.pop() == changed


def test_ctrl_c_is_130(monkeypatch, tmp_path):
    def interrupted(_: EngineConfig) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(serve, "serve", interrupted)
    assert cli.run(["serve", str(tmp_path)]) == 130


def test_ctrl_c_that_python_drops_ends_the_command_all_the_same():
    """As in the callback that each import ends with; a finaliser is the same to Python."""
    code = """
import signal, sys, time
from engine import cli

class Finalised:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)

@cli.app.command()
def slow():
    Finalised()
    time.sleep(30)

sys.argv = ["engine", "slow"]
cli.main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (130, "")


def test_module_and_help_start_without_torch():
    code = "import sys, engine.cli; engine.cli.run(['--help']); assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    done = subprocess.run([sys.executable, "-m", "engine", "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_build_without_a_compiler_is_one_line_and_69(monkeypatch, capsys):
    def no_compiler(*_: object, **__: object) -> None:
        raise build.BuildError("found no nvcc on PATH")

    monkeypatch.setattr(build, "build", no_compiler)
    assert "nvcc" in complaint(capsys, ["build", "--arch", "90a"], 69)
    assert "121a" in complaint(capsys, ["build", "--arch", "80"], 64)


def test_build_compiles_what_is_asked_for(monkeypatch):
    asked = []
    monkeypatch.setattr(build, "build", lambda arch, *, force, **_: asked.append((arch, force)))
    assert cli.run(["build", "--arch", "90a, 121a", "--force"]) == 0
    assert asked == [("90a", True), ("121a", True)]


def test_version_both_ways(capsys):
    said = []
    for how in ("version", "--version"):
        assert cli.run([how]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    assert said[0].startswith("engine 0")


@pytest.mark.parametrize("command", [["serve"], ["generate"], ["bench", "step"]])
def test_a_mistake_in_an_option_points_to_the_commands_own_help(capsys, command):
    assert f"(engine {' '.join(command)} --help)" in complaint(capsys, [*command, "--no-such"], 64)


def test_the_help_of_bench_op_names_every_op():
    from engine.bench_cases import CASES

    parameter = next(p for p in inspect.signature(cli.bench_op).parameters.values() if p.name == "names")
    assert ", ".join(CASES) in str(parameter.annotation)
