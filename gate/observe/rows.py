"""The records a run leaves behind. Frozen; the unit is in the field name; what was not measured is None, never 0.

Written to parquet as they are (one row a record); everything shown later is derived from them again by `gate report`.
"""

from __future__ import annotations

import enum
from typing import Literal

from pydantic import BaseModel, ConfigDict


class Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


Arm = Literal["candidate", "oracle"]
ARMS: tuple[Arm, Arm] = ("candidate", "oracle")
CacheState = Literal["cold", "partly", "warm"]
"""How much of a checkpoint the page cache held when a server was started (observe/pagecache.py)."""


class Verdict(enum.StrEnum):
    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    VOID = "VOID"


class RequestRow(Row):
    """One request of one leg. Times are time.perf_counter_ns() of the client process."""

    leg_id: str
    arm: Arm
    concurrency: int
    repetition: int
    index: int
    """Position in the leg's prompt list; equal index means equal prompt in both arms."""
    prompt_sha256: str
    expected_prompt_tokens: int
    expected_output_tokens: int
    scheduled_ns: int | None = None
    """Open loop: when it should have been sent."""
    sent_ns: int
    first_token_ns: int | None = None
    """Arrival of the first event that carries generated tokens; role-only and empty deltas do not count."""
    last_token_ns: int | None = None
    end_ns: int | None = None
    """Stream closed."""
    token_times_ns: tuple[int, ...] = ()
    """One stamp per token-carrying event; events that came in one read share a stamp."""
    tokens_per_event: tuple[int, ...] = ()
    """Tokens each of those events carried; empty, although there are events, when the server does not let one know."""
    prompt_tokens: int | None = None
    """From the server's `usage`."""
    completion_tokens: int | None = None
    """From the server's `usage`."""
    cached_prompt_tokens: int | None = None
    token_ids: tuple[int, ...] | None = None
    """Generated ids, where the server returns them."""
    finish_reason: str | None = None
    http_status: int | None = None
    saw_done: bool = False
    error: str | None = None
    """Why the request failed; None for a good one."""


START_UNTOLD = "attached"
"""The start id of an attached server whose start time could not be read: it may be any start."""


class LegRow(Row):
    """One leg: one arm × one concurrency × one repetition."""

    leg_id: str
    order: int
    """Position in the run, from 0."""
    arm: Arm
    concurrency: int
    repetition: int
    started_at: str
    """ISO 8601 UTC."""
    start_ns: int
    end_ns: int
    """First send to last stream end, perf_counter_ns."""
    requests: int
    failed: int
    server_pid: int | None = None
    server_start_id: str
    """Changes when the server was restarted: pid and its start time, or what an attached URL reports (START_UNTOLD
    where it told none). Read before the leg."""
    identity_before: str
    identity_after: str
    """Digest of what the arm said of itself before and after the leg (observe/server.py)."""
    lock_held: bool
    client_cpu_s: float | None = None
    client_events: int | None = None
    client_loop_lag_p99_ms: float | None = None
    client_stamps: Literal["kernel", "loop"] | None = None
    """Whose times the reads have: the kernel's, of the packets' arrival, but for 1 read in 1,000, or else the client's
    event loop's. None: nothing was read, or a record older than the column, whose times are the loop's."""
    host_load_foreign_cpu_s: float | None = None
    """CPU seconds of processes that belong to neither arm nor gate."""
    server_peak_rss_bytes: int | None = None
    gpu_peak_bytes: int | None = None
    prefix_cache_hit_tokens: int | None = None
    preemptions: int | None = None
    server_start_id_after: str | None = None
    """The same, read after the leg; None where it was not read again."""
    other_arm_tokens: int | None = None
    """Prompt and generation tokens that the arm not under load counted meanwhile; None: it is down or counts none."""
    other_arm_cpu_s: float | None = None
    """CPU seconds that it used; None where it is down, attached, or the leg was too short to tell."""
    run_id: str | None = None
    """The run that the leg was measured for."""
    server_peak_pss_bytes: int | None = None
    """The larger of two readings, before and after the load; server_peak_rss_bytes is sampled all through it."""
    host_available_drop_bytes: int | None = None
    """MemAvailable before the server's start less the least of the leg. None while the other arm was up: the drop is
    then both arms'."""
    gpu_reported_bytes: int | None = None
    """Device memory by the server's own word, for where the driver gives none by process."""
    gpu_start_bytes: int | None = None
    """StartRow.gpu_growth_bytes of the server's start, for where neither the driver nor the server tells."""
    gpu_foreign_processes: tuple[str, ...] | None = None
    """`pid 7 (python)`: processes of neither arm on a GPU of the run; None where NVML does not tell whose is whose."""
    gpu_used_before_bytes: int | None = None
    """In use on the run's GPUs before the warm-up, by whomever; None without a GPU."""
    host_available_before_bytes: int | None = None
    """MemAvailable before the warm-up."""
    boot_id: str | None = None
    """The kernel's own, before the warm-up; another one means that the machine was restarted in between."""
    suspended_ms: float | None = None
    """Time the machine slept from before the warm-up to after the leg: CLOCK_BOOTTIME gained on CLOCK_MONOTONIC."""
    wall_step_ms: float | None = None
    """Time the wall clock gained on CLOCK_BOOTTIME meanwhile; negative when it was set back."""
    host_swapped_bytes: int | None = None
    """Read from and written to swap meanwhile, by anybody."""
    host_oom_kills: int | None = None
    """Processes that the kernel killed for memory meanwhile, anybody's."""
    server_log_errors: int | None = None
    """Lines in the server's log meanwhile that report an error; None for an attached server."""
    server_log_first_error: str | None = None
    warmup_failed: int | None = None
    """Warm-up requests that failed, those of a staggered start too; None in a record of an earlier version."""
    warmup_first_error: str | None = None


class StartRow(Row):
    """One start of a server. Stamps are perf_counter_ns() of the gate, which looks every 20 ms."""

    arm: Arm
    start_id: str
    """That of the legs it served."""
    started_at: str
    """ISO 8601 UTC."""
    repetition: int
    """It was started for; a restart has that of the leg it was needed for."""
    spawn_ns: int
    port_open_ns: int | None = None
    """Somebody accepts connections at the port."""
    ready_ns: int | None = None
    """/health answered 200."""
    first_token_ns: int | None = None
    """First token of the first request, sent as soon as it was ready; None where none was sent, as in `gate run`."""
    page_cache: CacheState | None = None
    """Of the checkpoint's files, at the spawn."""
    checkpoint_files_bytes: int | None = None
    """Whole pages."""
    checkpoint_resident_bytes: int | None = None
    available_before_bytes: int | None = None
    """MemAvailable just before the spawn."""
    available_drop_bytes: int | None = None
    """How far MemAvailable had fallen at ready."""
    gpu_growth_bytes: int | None = None
    """Memory in use on the run's GPUs at ready, by whomever, less that before the spawn; the lock keeps others away."""
    load_peak_rss_bytes: int | None = None
    """Σ VmHWM of the process tree at ready: each process's own peak since its start."""
    wanted_cache: CacheState | None = None
    """What was asked for; a start whose page_cache differs has no figures on the axes."""
    error: str | None = None
    """Why it never became ready, or sent no token."""


class TelemetryRow(Row):
    """One sample of one quantity, long form."""

    leg_id: str
    t_ns: int
    source: str
    """nvml, psutil, server."""
    name: str
    """Unit at the end of the name: sm_clock_mhz, rss_bytes, cpu_percent."""
    value: float | None


class Finding(Row):
    """A reason not to believe a number. Made by gate/checks, carried to every report."""

    code: str
    """Reason code, kebab-case, equal to the check's file name with dashes."""
    message: str
    """One line: found and expected, with the deciding numbers."""
    hint: str
    """What to do about it."""
    leg_id: str | None = None
    """The leg it voids; None: the whole run."""
    arm: Arm | None = None
    concurrency: int | None = None
    axis: str | None = None
    """The axis it voids, or a family of axes (`ttft` covers `ttft_mean_ms` …); None: all of them."""
    beyond: float | None = None
    """Found over allowed, where a number decided: of several findings with one code the largest is the one to show."""


class Identity(Row):
    """What a running server says of itself, read over HTTP; equal digests mean nothing we can see has changed."""

    arm: Arm
    version: str | None
    """vLLM's or the engine's version string."""
    model: str | None
    max_model_len: int | None
    prefix_caching: bool | None
    kv_cache_dtype: str | None
    extra: dict[str, str] = {}
    """Other configuration keys read back, as text."""
    digest: str


class Pins(Row):
    """What the pinned things on this machine came to when they were looked at (observe/pins.py)."""

    when: Literal["start", "end"]
    """Before the first server started, after the last one ended; a resumed run starts again."""
    checkpoints: dict[str, str] = {}
    """Arm -> digest of its checkpoint folder; an attached arm has none here."""
    oracle: dict[str, str] = {}
    """Distribution -> version, of those that make the oracle's numbers; empty where neither arm is the pinned vLLM."""
    oracle_differs: tuple[str, ...] = ()
    """A sentence for each difference between the oracle's environment and its pin, files of vLLM's wheel included."""


class Source(Row):
    """Which version of the gate made a record (observe/source.py)."""

    commit: str
    """40 hex digits."""
    dirty: bool
    """Tracked files differ from that commit; untracked ones, such as results, do not count."""

    def text(self) -> str:
        return self.commit[:12] + (", with uncommitted changes" if self.dirty else "")


class MarginRow(Row):
    """The oracle's opinion of one first divergence, asked for after the timed legs (gate/margins.py)."""

    concurrency: int
    repetition: int
    index: int
    """Position of the request in its leg's prompt list."""
    position: int
    """Output position of the first difference, from 0."""
    candidate_id: int
    oracle_id: int
    margin_nats: float | None
    """Oracle's log-prob of its own id minus that of the candidate's, given prompt and common output; 0 is an exact
    tie. None: outside the returned top (then outside_top is True), or the oracle did not answer."""
    outside_top: bool = False
    """The candidate's id is not even among the oracle's 20 most probable: decided against it, no figure needed."""
