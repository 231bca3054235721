"""The server as a process: 503 while loading, signals, exit codes, occupied ports, broken checkpoints."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.engine.server.test_disconnect import until

SERVED = str(Path(__file__).with_name("served.py"))
PATIENCE_S = 120
"""Only a fault reaches it."""


class Process:
    def __init__(self, *arguments: str) -> None:
        self.child = subprocess.Popen([sys.executable, SERVED, *arguments], stderr=subprocess.PIPE, text=True)
        self.log = ""

    def url(self) -> str:
        while (found := re.search(r"listening on (http://\S+);", self.log)) is None:
            # From the pipe itself: a line that Python had read ahead would be one that select does not see.
            assert select.select([self.child.stderr], [], [], PATIENCE_S)[0], self.log
            part = os.read(self.child.stderr.fileno(), 65536)
            assert part, self.log
            self.log += part.decode()
        return found[1]

    def end(self) -> int:
        _, rest = self.child.communicate(timeout=PATIENCE_S)
        self.log += rest
        return self.child.returncode


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


@contextlib.contextmanager
def process(mode: str, folder: Path, *more: str) -> Iterator[Process]:
    served = Process(mode, "serve", str(folder), "--port", "0", *more)
    try:
        yield served
    finally:
        served.child.kill()
        served.child.communicate()


def health(url: str) -> int:
    """Asked patiently: while torch is imported, on a slow disk, the interpreter may answer nobody for seconds."""
    return httpx.get(url + "/health", timeout=PATIENCE_S, trust_env=False).status_code


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_listens_while_loading_and_leaves_on_a_signal(folder, number, code):
    with process("slow", folder) as served:
        assert health(served.url()) == 503
        served.child.send_signal(number)
        assert served.end() == code
        assert "Traceback" not in served.log


@pytest.mark.parametrize("more", [(), ("long-step",)])
def test_a_signal_ends_running_streams(folder, more):
    with process("quick", folder, *more) as served:
        url = served.url()
        until(lambda: health(url) == 200)
        with httpx.stream(
            "POST",
            url + "/v1/completions",
            json={"prompt": [1], "stream": True},
            timeout=PATIENCE_S,
            trust_env=False,
        ) as got:
            served.child.send_signal(signal.SIGTERM)
            text = "".join(got.iter_text())
        assert "shutting down" in text
        assert text.endswith("data: [DONE]\n\n")
        assert served.end() == 0
        assert "Traceback" not in served.log


def test_a_broken_checkpoint_is_one_line_and_69(folder):
    with process("broken", folder) as served:
        assert served.end() == 69
        assert served.log.splitlines()[-1] == (
            "engine: model.safetensors ends in the middle; expected 10 bytes more; download it again"
        )
        assert "Traceback" not in served.log


def test_a_broken_tokenizer_is_named(folder):
    (folder / "tokenizer.json").write_text("{")
    with process("quick", folder) as served:
        assert served.end() == 69
        assert "tokenizer.json" in served.log.splitlines()[-1]
        assert "Traceback" not in served.log


def test_a_bug_keeps_its_traceback(folder):
    with process("crash", folder) as served:
        assert served.end() == 1
        assert "ZeroDivisionError: a bug" in served.log


def test_an_occupied_port_is_named_with_its_holder(folder):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with process("quick", folder, "--port", str(port)) as served:
            assert served.end() == 69
    (line,) = served.log.splitlines()
    assert f"port {port} on 127.0.0.1 is in use" in line
    assert "--port" in line


def test_an_unknown_host_is_named(folder):
    with process("quick", folder, "--host", "no.such.host.invalid") as served:
        assert served.end() == 69
    assert "no.such.host.invalid" in served.log


def test_a_key_variable_must_hold_a_key(folder, monkeypatch):
    monkeypatch.delenv("MY_KEY", raising=False)
    with process("quick", folder, "--api-key-env", "MY_KEY") as served:
        assert served.end() == 69
    assert "MY_KEY" in served.log


def test_the_key_is_never_printed(folder, monkeypatch):
    monkeypatch.setenv("MY_KEY", "s3cret")
    with process("quick", folder, "--api-key-env", "MY_KEY") as served:
        url = served.url()
        until(lambda: health(url) == 200)
        assert httpx.get(url + "/v1/models", trust_env=False).status_code == 401
        assert "s3cret" not in json.dumps(httpx.get(url + "/version", trust_env=False).json())
        served.child.send_signal(signal.SIGTERM)
        assert served.end() == 0
    assert "s3cret" not in served.log


def test_an_open_address_without_a_key_is_warned_about(folder):
    with process("quick", folder, "--host", "0.0.0.0") as served:
        served.url()
        assert "0.0.0.0 may use this server; --api-key-env" in served.log


WRONG_STARTS = [
    (("--max-num-seqs", "32", "--max-num-batched-tokens", "31"), {}, 64, "--max-num-batched-tokens 31"),
    (("--served-model-name", "a\nb"), {}, 64, "'a\\nb'"),
    (("--served-model-name", "a\udcffb"), {}, 64, "'a\\udcffb'"),
    (("--host", "a" * 70), {}, 69, "not a host name"),
    (("--api-key-env", "MY_KEY"), {"MY_KEY": "s3cret\n"}, 69, "no header can carry"),
    (("--api-key-env", "MY_KEY"), {"MY_KEY": "s3cret\udcff"}, 69, "no header can carry"),
    (("--api-key-env", "MY_KEY"), {"MY_KEY": "s3cr\u00e9t"}, 69, "no header can carry"),
]


@pytest.mark.parametrize(("arguments", "environment", "code", "word"), WRONG_STARTS, ids=lambda v: ascii(v)[:30])
def test_what_could_only_fail_later_is_one_line_at_once(folder, monkeypatch, arguments, environment, code, word):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with process("quick", folder, *arguments) as served:
        assert served.end() == code, served.log
    (line,) = served.log.splitlines()
    assert word in line
    assert "s3cr" not in line
