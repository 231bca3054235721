"""4 One arm's profile: start it traced, warm it up, time both lengths untraced, then trace a window of each length."""

from __future__ import annotations

import contextlib
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gate import lock
from gate.arm import Server, process
from gate.arm.pair import GPU_RETURN_S, GPU_RETURN_SLACK_BYTES
from gate.client import drive, openai
from gate.errors import ArmError, StorageError
from gate.metrics.itl import itl_ms
from gate.observe import gpu
from gate.observe import server as ask
from gate.observe.rows import Arm, Identity, RequestRow
from gate.plan import Plan, PlannedLeg
from gate.profile import commands
from gate.profile.rows import LONG_TOKENS, SHORT_TOKENS, Backend, Role, Wall, Window
from gate.profile.tracer import NsysTracer, RouteTracer, Tracer
from gate.units import counted, gib
from gate.workload import leg_seed, make_prompts
from oracle.verify import verify_running

WALL_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Setting:
    """What a profile is made with; the same for both arms."""

    plan: Plan
    backend: Backend
    nsys: str
    concurrency: int
    prompt_tokens: int
    rounds: int
    keep_traces: bool = False
    """Beside the records. A trace has 100 MB and more, and its kernels are in windows.parquet."""


@dataclass(frozen=True, slots=True)
class Captured:
    windows: tuple[Window, ...]
    wall: Wall
    identity: Identity


@dataclass(frozen=True, slots=True)
class Round:
    """Requests that were sent at once."""

    rows: tuple[RequestRow, ...]
    took_us: float
    """From the first send to the last end."""
    first_us: float
    """From the first send to the last first token."""


def capture(setting: Setting, arm: Arm, role: Role, folder: Path, say: Callable[[str], None]) -> Captured:
    """Nothing of the server is left afterwards, however it ends.

    folder: absolute, for logs, and for the profiler's own files where they are kept.
    Raises ArmError: it did not start, failed its warm-up, or could not be traced; StorageError: a trace is unreadable.
    """
    name = f"{arm}-{role}"
    with scratch(name, folder / "traces" / name if setting.keep_traces else None) as files:
        return _capture(setting, arm, role, folder / "logs" / f"{name}.log", files, say)


@contextlib.contextmanager
def scratch(name: str, kept: Path | None) -> Iterator[Path]:
    """Where the profiler writes; gone at the end unless it is to be kept, or holds the file that could not be read."""
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept
        return
    made = Path(tempfile.mkdtemp(prefix=f"gate-profile-{name}-")).resolve()
    try:
        yield made
    except StorageError:
        raise
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    shutil.rmtree(made, ignore_errors=True)


def _capture(setting: Setting, arm: Arm, role: Role, log: Path, files: Path, say: Callable[[str], None]) -> Captured:
    cards = lock.cards(setting.plan)
    memory_before = gpu.used_bytes(cards)
    session = f"gate-{arm}-{role}-{time.monotonic_ns()}"
    planned = setting.plan.arm(arm)
    traced = commands.traced(planned, setting.backend, nsys=setting.nsys, session=session, folder=files)
    say(f"starting the {arm} ({planned.kind}) for its {role} windows, {setting.backend}")
    server = process.launch(traced, log, setting.plan.recipe.protocol.ready_timeout_s)
    tracer: Tracer = (
        NsysTracer(setting.nsys, session, files) if setting.backend == "nsys" else RouteTracer(server.url, files)
    )
    try:
        if planned.kind == "vllm":
            verify_running(server.url, setting.plan.recipe.oracle.platform)
        return _measure(setting, arm, role, server, tracer, say)
    finally:
        tracer.close()
        server.stop()
        _wait_for_memory(arm, cards, memory_before)


def _wait_for_memory(arm: Arm, cards: tuple[str, ...], before: int | None) -> None:
    """The driver frees a dead process's memory lazily, and the next server sizes itself by what is free.

    Raises ArmError when it does not come back.
    """
    deadline = time.monotonic() + GPU_RETURN_S
    while before is not None and (used := gpu.used_bytes(cards) or 0) > before + GPU_RETURN_SLACK_BYTES:
        if time.monotonic() > deadline:
            raise ArmError(
                f"{gib(used)} of GPU memory in use {GPU_RETURN_S:g} s after the {arm} ended", expected=gib(before)
            )
        time.sleep(0.2)


def _measure(
    setting: Setting, arm: Arm, role: Role, server: Server, tracer: Tracer, say: Callable[[str], None]
) -> Captured:
    url = server.url
    for index, tokens in enumerate((SHORT_TOKENS, LONG_TOKENS)):
        rows = _round(setting, arm, url, tokens, 1000 + index).rows
        if failed := next((row.error for row in rows if row.error is not None), None):
            raise ArmError(f"the {arm} failed its warm-up: {failed}", hint="its log says why")
    warm_ns = time.perf_counter_ns()
    say(f"timing the {arm} without tracing, {WALL_ROUNDS} rounds of each length")
    timed: dict[int, list[Round]] = {SHORT_TOKENS: [], LONG_TOKENS: []}
    for round_ in range(WALL_ROUNDS):
        for tokens, so_far in timed.items():
            so_far.append(_round(setting, arm, url, tokens, 100 + round_))
    gaps = [[1e3 * gap for row in one.rows for gap in itl_ms(row)] for one in timed[LONG_TOKENS]]
    windows, rounds = [], f"{counted(setting.rounds, 'round')} of {counted(setting.concurrency, 'request')}"
    for tokens in (SHORT_TOKENS, LONG_TOKENS):
        say(f"tracing the {arm}: {tokens} output tokens, {rounds}")
        windows.append(_window(setting, arm, role, url, tracer, tokens, warm_ns))
    wall = Wall(
        short_us=tuple(one.took_us for one in timed[SHORT_TOKENS]),
        long_us=tuple(one.took_us for one in timed[LONG_TOKENS]),
        short_first_us=tuple(one.first_us for one in timed[SHORT_TOKENS]),
        long_first_us=tuple(one.first_us for one in timed[LONG_TOKENS]),
        gaps_us=tuple(statistics.median(found) for found in gaps if found),
        largest_gaps_us=tuple(max(found) for found in gaps if found),
    )
    return Captured(tuple(windows), wall, ask.identify(url, arm, server.logged))


def _window(setting: Setting, arm: Arm, role: Role, url: str, tracer: Tracer, tokens: int, warm_ns: int) -> Window:
    rows: list[RequestRow] = []

    def work() -> None:
        for round_ in range(setting.rounds):
            rows.extend(_round(setting, arm, url, tokens, round_).rows)

    counted = ask.counters(url)
    start_ns = time.perf_counter_ns()
    trace = tracer.window(f"{arm}-{role}-{tokens}", work)
    return Window(
        arm=arm,
        role=role,
        backend=setting.backend,
        output_tokens=tokens,
        concurrency=setting.concurrency,
        rounds=setting.rounds,
        requests=len(rows),
        completed=sum(row.error is None and row.completion_tokens == tokens for row in rows),
        prompt_tokens=setting.prompt_tokens,
        warmup_ended_ns=warm_ns,
        start_ns=start_ns,
        counted_tokens=ask.counters(url).since(counted).tokens,
        level=trace.level,
        busy_us=trace.busy_us,
        idle_us=trace.idle_us,
        decode_steps=trace.decode_steps,
        device=trace.device,
        bandwidth_bytes_per_s=trace.bandwidth_bytes_per_s,
        tool=trace.tool,
        kernels=trace.kernels,
    )


def _round(setting: Setting, arm: Arm, url: str, tokens: int, number: int) -> Round:
    """`concurrency` requests at once, each with a prompt of its own.

    Both arms, and both lengths of one number, get the same prompts.
    """
    plan, workload = setting.plan, setting.plan.recipe.workload
    prompts = make_prompts(
        count=setting.concurrency,
        length=setting.prompt_tokens,
        vocab_size=plan.vocabulary.size,
        seed=leg_seed(plan.seed, setting.concurrency, number, "timed"),
        max_common_prefix=workload.max_common_prefix,
        reserved=frozenset(plan.vocabulary.reserved),
    )
    spec = drive.LoadSpec(
        url=url,
        model=ask.served_model(url, plan.arm(arm).model),
        prompts=prompts,
        output_tokens=tokens,
        concurrency=setting.concurrency,
        timeout_s=plan.recipe.protocol.request_timeout_s,
    )
    recording = drive.run_leg(spec)
    leg = PlannedLeg(
        leg_id=f"profile-{number}",
        order=0,
        arm=arm,
        concurrency=setting.concurrency,
        repetition=number,
        requests=setting.concurrency,
        prompts_sha256="",
        warmup_sha256="",
    )
    rows = openai.to_rows(recording, spec, leg)
    last_first_ns = max((row.first_token_ns or recording.end_ns for row in rows), default=recording.end_ns)
    return Round(rows, (recording.end_ns - recording.start_ns) / 1e3, (last_first_ns - recording.start_ns) / 1e3)
