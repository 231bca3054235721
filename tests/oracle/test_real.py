"""The real pinned vLLM, started as a gate run starts it: reads back as pinned, streams ids and usage, rests, goes."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest

from gate.errors import OracleError
from oracle.capture import teacher_forced
from oracle.pins import REPOSITORY
from oracle.readback import read_back
from oracle.verify import verify_installed, verify_running
from tests.ports import free_port

pytestmark = [pytest.mark.oracle, pytest.mark.slow]

START_TIMEOUT_S = 900
MAX_MODEL_LEN = 512
PROMPT = list(range(300, 364))
IDLE_S = 3.0


@dataclass(frozen=True)
class Running:
    process: subprocess.Popen[bytes]
    url: str
    model: str

    def members(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)


def tool(name: str, *arguments: object) -> None:
    command = [sys.executable, str(REPOSITORY / "tools" / name), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


Start = Callable[[], Running]


@pytest.fixture(scope="module")
def start(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Gives the server that is up, started where none is: one for all tests but those behind the one that ends it."""
    folder = tmp_path_factory.mktemp("real")
    tool("expand_checkpoint.py", tiny_checkpoint, folder / "copy")
    started: list[Running] = []

    def up() -> Running:
        if not started or started[-1].process.poll() is not None:
            started.append(begun(folder / "copy", folder / f"serve-{len(started)}.log"))
        return started[-1]

    yield up
    for one in started:
        one.process.send_signal(signal.SIGINT)
        one.process.wait(300)


@pytest.fixture
def running(start: Start) -> Running:
    return start()


def begun(checkpoint: Path, log: Path) -> Running:
    port = free_port()
    command = [sys.executable, "-m", "oracle", "serve", str(checkpoint), "--port", str(port)]
    command += ["--max-model-len", str(MAX_MODEL_LEN), "--max-num-seqs", "4", "--kv-cache-dtype", "bfloat16"]
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=REPOSITORY, stdout=out, stderr=out)
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + START_TIMEOUT_S
    try:
        while not healthy(url):
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.5)
    except BaseException:
        process.send_signal(signal.SIGINT)
        process.wait(300)
        raise
    return Running(process, url, str(checkpoint))


def healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def test_the_installation_is_as_pinned() -> None:
    assert verify_installed("cpu").differences == ()


def test_the_server_reads_back_as_pinned(running: Running) -> None:
    expect = {"cache_dtype": "bfloat16", "max_model_len": str(MAX_MODEL_LEN)}
    assert verify_running(running.url, "cpu", expect).differences == ()
    seen = read_back(running.url)
    assert seen.model == running.model
    assert int(seen.cache_config["block_size"]) > 0


def test_a_server_with_other_limits_than_planned_is_refused(running: Running) -> None:
    with pytest.raises(OracleError, match=r"max_model_len +4096 +512"):
        verify_running(running.url, "cpu", {"max_model_len": "4096"})
    with pytest.raises(OracleError, match=r"version +0\.25\.0 +0\.32\.0"):
        verify_running(running.url, "cuda")


def stream(running: Running, tokens: int) -> list[dict[str, object]]:
    body = {
        "model": running.model,
        "prompt": PROMPT,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }
    with httpx.stream("POST", f"{running.url}/v1/completions", json=body, timeout=120) as answer:
        lines = [line for line in answer.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def joined(events: list[dict[str, object]]) -> tuple[list[int], str]:
    """Ids and text of a stream. How many tokens an event has depends on how busy the machine is."""
    choices = [choice for event in events for choice in event["choices"]]  # type: ignore[attr-defined]
    return [token for choice in choices for token in choice["token_ids"]], "".join(choice["text"] for choice in choices)


def test_a_stream_carries_every_id_and_then_the_usage(running: Running) -> None:
    *events, last = stream(running, 8)
    assert len(joined(events)[0]) == 8
    assert events[-1]["choices"][0]["finish_reason"] == "length"  # type: ignore[index]
    assert last["choices"] == []
    assert last["usage"] == {"prompt_tokens": len(PROMPT), "completion_tokens": 8, "total_tokens": len(PROMPT) + 8}


def test_the_same_prompt_again_gives_the_same_ids_and_hits_no_prefix_cache(running: Running) -> None:
    first, second = stream(running, 8), stream(running, 8)
    assert joined(first) == joined(second)
    metrics = httpx.get(f"{running.url}/metrics").text
    hits = [line for line in metrics.splitlines() if line.startswith("vllm:prefix_cache_hits_total")]
    assert [line.rpartition(" ")[2] for line in hits] == ["0.0"]


def test_teacher_forced_log_probs_know_its_own_choice_from_a_foreign_token(running: Running) -> None:
    """Its first token comes from the same prefill as the log-probs, so there the margin is exactly 0."""
    ids, _ = joined(stream(running, 8))
    foreign = [(token + 700) % 1500 + 300 for token in ids]
    with httpx.Client(base_url=running.url, timeout=120) as client:
        own = teacher_forced(client, running.model, PROMPT, ids)
        other = teacher_forced(client, running.model, PROMPT, foreign)
    assert [position.token_id for position in own] == ids
    assert (own[0].rank, own[0].margin_nats) == (1, 0.0)
    assert other[0].rank > 1
    assert sum(position.margin_nats for position in own) < sum(position.margin_nats for position in other)


def cpu_s(processes: list[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def test_an_idle_server_leaves_the_cores_to_the_other_arm(running: Running) -> None:
    """A waiting loop that spins would take a core for ever; what the last request left to do takes as long as a busy
    machine lets it."""
    members = running.members()
    for _ in range(30):
        before = cpu_s(members)
        time.sleep(1)
        if cpu_s(members) - before < 0.25:
            break
    before = cpu_s(members)
    time.sleep(IDLE_S)
    assert cpu_s(members) - before < 0.25 * IDLE_S


def test_an_interrupt_ends_every_process_and_frees_the_port(running: Running) -> None:
    """Last in the file, since what comes behind it starts a server again."""
    members = running.members()
    assert len(members) >= 3, "API server, engine core, worker"
    running.process.send_signal(signal.SIGINT)
    running.process.wait(300)
    _, alive = psutil.wait_procs(members, timeout=60)
    assert alive == []
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", int(running.url.rpartition(":")[2])))
