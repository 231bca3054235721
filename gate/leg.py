"""4 One leg: warm up, identify, load, identify again, write. Starting and stopping servers is arm/pair.py's."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from gate.arm import Server
from gate.client import drive, openai
from gate.errors import ArmError
from gate.lock import keys
from gate.observe import errorlines
from gate.observe import host as hosts
from gate.observe import server as ask
from gate.observe.rows import Arm, Identity, LegRow
from gate.observe.sampler import Sampler
from gate.observe.store import Store, read_run_file
from gate.plan import Plan, PlannedLeg, leg_prompts
from gate.workload import Phase, Prompt, leg_seed


def run_leg(
    plan: Plan,
    leg: PlannedLeg,
    server: Server,
    *,
    store: Store,
    other_pids: tuple[int | None, ...] = (),
    other_url: str | None = None,
    available_before_bytes: int | None = None,
    gpu_start_bytes: int | None = None,
    lock_held: Callable[[], bool],
) -> tuple[LegRow, str | None]:
    """Measure one leg and put it on disk; returns its row and the first error of its requests.

    What a server does wrong becomes failed requests.

    other_pids: the other arm's server, whose CPU time is not foreign load. other_url: where it is up as well; it should
    rest meanwhile. available_before_bytes: MemAvailable before this server was started, where it is the only one.
    gpu_start_bytes: what its start added to the memory in use on the GPUs.
    Raises StorageError when the records cannot be written; an interrupted leg writes nothing.
    """
    held = lock_held()
    gpus, log = keys(plan), store.logs / f"{leg.arm}.log"
    found, logged = hosts.read(gpus), errorlines.position(log)
    started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
    start_id = server.start_id
    # Read before the warm-up, not beside the load: answering /metrics costs a server up to a third of a CPU second. It
    # has the time of making the prompts as well, since a staggered start has no warm-up of its own.
    resting = ask.counters(other_url).tokens if other_url else None
    timed = _spec(plan, leg, server, "timed")
    warmed_up = _warm_up(plan, leg, server)
    before, counted = _identify(server, leg.arm), ask.counters(server.url)
    attached = (None,) if any(arm.argv is None for arm in (plan.candidate, plan.oracle)) else ()
    with Sampler(leg.leg_id, server.pid, (*other_pids, *attached), gpus) as sampler:
        answered = not warmed_up or None in warmed_up
        recording = drive.run_leg(timed) if answered else drive.nothing_sent(timed, warmed_up[0] or "")
    rows = openai.to_rows(recording, timed, leg)
    cold = [error for error in (*warmed_up, *openai.lead_in_errors(recording, timed, leg)) if error is not None]
    leg_s = (recording.end_ns - recording.start_ns) / 1e9
    foreign = None if sampler.foreign_cores is None else sampler.foreign_cores * leg_s
    after, counted = _identify(server, leg.arm), ask.counters(server.url).since(counted)
    rested = ask.counters(other_url).tokens if other_url else None
    passed = hosts.passed(found, hosts.read(gpus))
    errors = None if server.pid is None else errorlines.since(log, logged)
    row = LegRow(
        leg_id=leg.leg_id,
        order=leg.order,
        arm=leg.arm,
        concurrency=leg.concurrency,
        repetition=leg.repetition,
        started_at=started_at,
        start_ns=recording.start_ns,
        end_ns=recording.end_ns,
        requests=len(rows),
        failed=sum(one.error is not None for one in rows),
        server_pid=server.pid,
        server_start_id=start_id,
        server_start_id_after=server.start_id,
        identity_before=before.digest if before else ask.UNREACHABLE,
        identity_after=after.digest if after else ask.UNREACHABLE,
        lock_held=held and lock_held(),
        client_cpu_s=recording.cpu_s,
        client_events=None if recording.cpu_s is None else recording.events,
        client_loop_lag_p99_ms=recording.loop_lag_p99_ms,
        client_stamps=recording.stamps,
        host_load_foreign_cpu_s=foreign,
        server_peak_rss_bytes=sampler.peak_rss_bytes,
        server_peak_pss_bytes=sampler.peak_pss_bytes,
        gpu_peak_bytes=sampler.gpu_peak_bytes,
        gpu_reported_bytes=counted.device_peak_bytes,
        gpu_start_bytes=gpu_start_bytes,
        host_available_drop_bytes=_difference(available_before_bytes, sampler.least_available_bytes),
        prefix_cache_hit_tokens=counted.prefix_cache_hit_tokens,
        preemptions=counted.preemptions,
        other_arm_tokens=None if resting is None or rested is None else rested - resting,
        run_id=read_run_file(store.folder).run_id,
        other_arm_cpu_s=None if sampler.other_cores is None else sampler.other_cores * leg_s,
        gpu_foreign_processes=sampler.gpu_foreign_processes,
        gpu_used_before_bytes=found.gpu_used_bytes,
        host_available_before_bytes=found.available_bytes,
        boot_id=found.boot_id,
        suspended_ms=passed.suspended_ms,
        wall_step_ms=passed.wall_step_ms,
        host_swapped_bytes=passed.swapped_bytes,
        host_oom_kills=passed.oom_kills,
        server_log_errors=None if errors is None else len(errors),
        server_log_first_error=errors[0] if errors else None,
        warmup_failed=len(cold),
        warmup_first_error=cold[0] if cold else None,
    )
    store.append_identities([one for one in (before, after) if one is not None])
    store.append_leg(row, rows, sampler.rows)
    return row, next((one.error for one in rows if one.error is not None), None)


def _spec(plan: Plan, leg: PlannedLeg, server: Server, phase: Phase) -> drive.LoadSpec:
    return load_spec(plan, leg, server.url, _model(server.url, plan.arm(leg.arm).model), phase)


def load_spec(plan: Plan, leg: PlannedLeg, url: str, model: str, phase: Phase) -> drive.LoadSpec:
    """Warm-up is always a closed loop: it fills caches and graphs at the leg's concurrency, and is not timed. In a
    staggered start it is the timed load's lead-in and nothing by itself."""
    workload = plan.recipe.workload
    paced = phase == "timed" and workload.rate_per_stream is not None
    lead_in: tuple[tuple[Prompt, int], ...] = ()
    if phase == "timed" and workload.start == "staggered":
        tokens = workload.warmup_output_tokens(leg.concurrency)
        lead_in = tuple(zip(leg_prompts(plan, leg, "warmup"), tokens, strict=True))
    return drive.LoadSpec(
        url=url,
        model=model,
        prompts=leg_prompts(plan, leg, phase),
        output_tokens=workload.output_tokens,
        concurrency=leg.concurrency,
        arrival=workload.arrival if paced else "closed",
        rate=workload.rate_per_stream * leg.concurrency if paced and workload.rate_per_stream else None,
        timeout_s=plan.recipe.protocol.request_timeout_s,
        seed=leg_seed(plan.seed, leg.concurrency, leg.repetition, phase),
        lead_in=lead_in,
    )


def _warm_up(plan: Plan, leg: PlannedLeg, server: Server) -> tuple[str | None, ...]:
    """Why each warm-up request failed, None for one that was answered; empty where none is sent before the load.

    One that fails beside others voids nothing: it is not timed, and what too little warm-up does to figures, the checks
    see in them. But it is less than the protocol asks for, so the grid does not bind (gate/binding.py).
    """
    if plan.recipe.workload.warmup_per_stream == 0 or plan.recipe.workload.start == "staggered":
        return ()
    spec = _spec(plan, leg, server, "warmup")
    return tuple(row.error for row in openai.to_rows(drive.run_leg(spec), spec, leg))


def _difference(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else before - after


def _model(url: str, planned: str) -> str:
    try:
        return ask.served_model(url, planned)
    except ArmError:
        return planned  # the requests will tell what is wrong with it


def _identify(server: Server, arm: Arm) -> Identity | None:
    try:
        return ask.identify(server.url, arm, server.logged)
    except ArmError:
        return None  # the leg says "unreachable", and its requests say why
