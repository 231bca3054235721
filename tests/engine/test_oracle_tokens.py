"""Our tokens against the real vLLM's, over HTTP, on the same token ids: they may differ where bfloat16 cannot tell.

How far that is, is measured here and now: our own bfloat16 run against our own float32 run, which tests/engine/models
holds to transformers'. The oracle must be as near to that float32 run as we are, and no first divergence may have a
wider margin, by the oracle's own log-probs, than bfloat16 alone can turn.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import torch
from torch import Tensor

from engine.batch import TokenLogprobs
from engine.cache.blocks import BlockPool
from engine.cache.states import StatePool
from engine.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from engine.request import Request, SamplingParams
from engine.runner import LoadedRunner, load_runner
from engine.scheduler import Scheduler
from oracle.serve import argv
from tests.ports import free_port

pytestmark = [pytest.mark.oracle, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
LENGTHS = (2, 3, 17, 63, 64, 65, 130, 200, 300, 9, 90, 40)
"""From 2: vLLM 0.32.0's CPU convolution dies of a prompt of one token ("expect x to be transposed")."""
OUTPUT_TOKENS = 32
START_TIMEOUT_S = 900
SPREAD = 1.5
"""How much larger than our own bfloat16's a mean distance may be."""


@dataclass(frozen=True)
class Oracle:
    client: httpx.Client
    model: str
    ours: Path
    """The checkpoint that we run; the oracle runs its own copy of it."""

    def complete(self, ids: Sequence[int], tokens: int) -> tuple[list[int], list[dict[int, float]]]:
        """Greedy ids and, per position, the 20 most probable ids' log-probs."""
        body = {
            "model": self.model,
            "prompt": list(ids),
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "logprobs": 20,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
        }
        reply = self.client.post("/v1/completions", json=body)
        assert reply.status_code == 200, reply.text
        choice = reply.json()["choices"][0]
        tops = [{int(k.removeprefix("token_id:")): v for k, v in t.items()} for t in choice["logprobs"]["top_logprobs"]]
        return choice["token_ids"], tops


def run_tool(name: str, *arguments: object) -> None:
    command = [sys.executable, str(ROOT / "tools" / name), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module", params=["tiny", "tiny-moe"])
def oracle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Oracle]:
    folder = tmp_path_factory.mktemp("oracle")
    shipped, copy, log = folder / "shipped", folder / "copy", folder / "vllm.log"
    run_tool("make_checkpoint.py", "--shape", request.param, "--device", "cpu", shipped)
    run_tool("expand_checkpoint.py", *(["--all"] if request.param == "tiny-moe" else []), shipped, copy)
    port = free_port()
    command, environment = argv("cpu", str(copy), port, 1024, 8, "bfloat16")
    with log.open("wb") as out:
        server = subprocess.Popen(command, env=environment, stdout=out, stderr=out, start_new_session=True)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=300, trust_env=False) as client:
            wait_until_ready(client, server, log)
            # The oracle cannot run a quantised MoE layer, so its copy is all bfloat16: then that is what we run too.
            yield Oracle(client, str(copy), copy if request.param == "tiny-moe" else shipped)
    finally:
        os.killpg(server.pid, signal.SIGINT)
        try:
            server.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
        shutil.rmtree(folder)


def wait_until_ready(client: httpx.Client, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        assert server.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < deadline, f"not ready after {START_TIMEOUT_S} s: {log.read_text()[-3000:]}"
        try:
            if client.get("/health").status_code == 200:
                return
        except httpx.TransportError:
            pass  # not listening yet: asked again until the deadline
        time.sleep(1)


def config(path: Path, dtype: str) -> EngineConfig:
    return EngineConfig(
        ModelConfig(path, device="cpu", dtype=dtype),
        CacheConfig(kv_cache_dtype="bfloat16"),
        SchedulerConfig(max_model_len=1024, max_num_seqs=8, max_num_batched_tokens=512),
    )


def generate(runner: LoadedRunner, prompts: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
    """Greedy ids of all prompts, batched by the real scheduler."""
    requests, _ = run(runner, prompts, SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True))
    return [request.output_ids for request in requests]


def score(runner: LoadedRunner, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> list[Tensor]:
    """Per answer fp32 [tokens, vocab_size]: log-probs of every id at each of its positions."""
    params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=-1)
    requests, entries = run(runner, [[*p, *a] for p, a in zip(prompts, answers, strict=True)], params)
    scores = []
    for request, prompt in zip(requests, prompts, strict=True):
        rows = [dict(entry.top) for entry in entries[request.id][len(prompt) :]]
        scores.append(torch.tensor([[row[i] for i in range(runner.vocab_size)] for row in rows]))
    return scores


def run(
    runner: LoadedRunner, prompts: Sequence[Sequence[int]], params: SamplingParams
) -> tuple[list[Request], dict[str, list[TokenLogprobs]]]:
    """All prompts at once -> (finished requests, prompt log-probs by request)."""
    settings = config(Path(), "bfloat16")
    pools = BlockPool(runner.num_blocks, settings.cache.block_tokens), StatePool(settings.scheduler.max_num_seqs)
    scheduler = Scheduler(settings, *pools)
    requests = [Request(str(i), tuple(p), params) for i, p in enumerate(prompts)]
    entries = {request.id: [] for request in requests}
    for request in requests:
        scheduler.add(request)
    while scheduler.has_work():
        batch = scheduler.schedule()
        for delivery in scheduler.update(batch, runner.run(batch)):
            entries[delivery.request_id] += delivery.prompt_logprobs
    return requests, entries


def test_tokens_differ_only_where_bfloat16_cannot_tell(oracle, capsys):
    generator = torch.Generator().manual_seed(5)
    prompts = [torch.randint(10, 2003, (n,), generator=generator).tolist() for n in LENGTHS]
    theirs = [oracle.complete(prompt, OUTPUT_TOKENS) for prompt in prompts]
    answers = [ids for ids, _ in theirs]
    bfloat16 = load_runner(config(oracle.ours, "bfloat16"))
    exact = load_runner(config(oracle.ours, "float32"), quantize_inputs=True)
    exact_scores, our_scores = score(exact, prompts, answers), score(bfloat16, prompts, answers)

    # Distances of the log-prob of the oracle's own token, and of the gap between it and the exact runner-up.
    ids = [torch.tensor(a)[:, None] for a in answers]
    exact_own = torch.cat([s.gather(1, i)[:, 0] for s, i in zip(exact_scores, ids, strict=True)])
    our_own = torch.cat([s.gather(1, i)[:, 0] for s, i in zip(our_scores, ids, strict=True)])
    oracle_own = torch.tensor([top[i] for a, tops in theirs for i, top in zip(a, tops, strict=True)])
    ours_to_exact, oracle_to_exact = (our_own - exact_own).abs(), (oracle_own - exact_own).abs()
    ours_to_oracle = (our_own - oracle_own).abs()
    gap_errors = torch.cat([gap(o) - gap(e) for o, e in zip(our_scores, exact_scores, strict=True)]).abs()
    # Both arms round: their gaps differ by two such errors, independent of each other.
    bound = 2**0.5 * float(gap_errors.max())

    margins = []
    for prompt, answer, mine in zip(prompts, answers, generate(bfloat16, prompts, OUTPUT_TOKENS), strict=True):
        first = next((i for i, (a, b) in enumerate(zip(answer, mine, strict=True)) if a != b), None)
        if first is not None:
            _, (top,) = oracle.complete([*prompt, *answer[:first]], 1)
            margins.append((len(prompt), first, max(top.values()) - top.get(mine[first], -torch.inf)))
    with capsys.disabled():
        print(
            f"\n{oracle.ours}: mean |Δ log-prob| ours-exact {ours_to_exact.mean():.4f}, oracle-exact "
            f"{oracle_to_exact.mean():.4f}, ours-oracle {ours_to_oracle.mean():.4f}; near-tie bound {bound:.3f}; "
            f"{len(prompts) - len(margins)} of {len(prompts)} answers equal; (prompt, position, margin): "
            + ", ".join(f"({n}, {at}, {m:.3f})" for n, at, m in margins)
        )
    assert float(oracle_to_exact.mean()) <= SPREAD * float(ours_to_exact.mean())
    assert float(ours_to_oracle.mean()) <= SPREAD * 2**0.5 * float(ours_to_exact.mean())
    assert [entry for entry in margins if entry[2] > bound] == []


def gap(scores: Tensor) -> Tensor:
    """[tokens, vocab_size] -> [tokens]: the most probable minus the second."""
    top = scores.topk(2).values
    return top[:, 0] - top[:, 1]
