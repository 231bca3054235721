"""5 Checks: one reason not to believe a number per file; here the list, in report order.

To add one: a file, a line here, a test with the fault and one with a good leg, `python tools/docs.py`.
"""

from __future__ import annotations

from gate.checks import (
    arms_are_one,
    arms_not_as_planned,
    boot_changed,
    buffered_stream,
    checkpoint_changed,
    client_saturated,
    clock_offset,
    clock_spread,
    clock_stepped,
    clocks_explain,
    clocks_throttled,
    clocks_unsampled,
    cold_first_requests,
    delivered_concurrency,
    engine_stale,
    error_after_tokens,
    failed_request,
    foreign_gpu_process,
    foreign_load,
    identity_changed,
    idle_arm_active,
    impossible_times,
    kv_dtype_differs,
    lock_lost,
    machine_suspended,
    memory_not_returned,
    memory_swapped,
    oom_kill,
    oracle_handicapped,
    oracle_not_pinned,
    oracle_preempted,
    order_effect,
    order_not_interleaved,
    output_length,
    prefix_cache_on,
    prompt_length,
    records_mixed,
    reference_fallback,
    request_set_incomplete,
    schedule_lag,
    server_logged_error,
    server_restarted,
    settings_differ,
    spread,
    telemetry_hole,
    temperature_unsettled,
    truncated_stream,
    usage_missing,
    warmup_unsettled,
    weights_widened,
)
from gate.checks.base import Check
from gate.checks.evidence import Evidence
from gate.metrics import SERVER_AXES
from gate.observe.rows import Finding

CHECKS: tuple[Check, ...] = (
    # Who was measured
    arms_are_one,
    arms_not_as_planned,
    oracle_not_pinned,
    checkpoint_changed,
    engine_stale,
    reference_fallback,
    weights_widened,
    oracle_handicapped,
    oracle_preempted,
    settings_differ,
    identity_changed,
    kv_dtype_differs,
    prefix_cache_on,
    server_restarted,
    server_logged_error,
    # What was asked and answered
    records_mixed,
    request_set_incomplete,
    failed_request,
    error_after_tokens,
    truncated_stream,
    usage_missing,
    prompt_length,
    output_length,
    # Where and when
    lock_lost,
    boot_changed,
    machine_suspended,
    clock_stepped,
    foreign_load,
    foreign_gpu_process,
    idle_arm_active,
    oom_kill,
    memory_swapped,
    memory_not_returned,
    telemetry_hole,
    clocks_throttled,
    clocks_unsampled,
    clock_spread,
    clock_offset,
    clocks_explain,
    temperature_unsettled,
    order_not_interleaved,
    # How the load was delivered and timed
    impossible_times,
    client_saturated,
    delivered_concurrency,
    schedule_lag,
    buffered_stream,
    cold_first_requests,
    warmup_unsettled,
    order_effect,
    spread,
)
"""In report order: a fault higher up explains those below it."""

TIMING_ONLY_CODES = frozenset(check.CODE for check in CHECKS if check.TIMING_ONLY)
"""Findings with these codes leave the token comparison valid."""

MEMORY_TOO_CODES = frozenset(check.CODE for check in (oom_kill, memory_swapped, memory_not_returned, telemetry_hole))
"""Those of them that leave an arm's own memory in doubt as well: a peak in a hole, pages that went to swap."""

MOVED_CODES = frozenset(check.CODE for check in (cold_first_requests, warmup_unsettled, spread))
"""Findings with these codes say that an arm's figures moved, within a leg or between legs; not that what was measured
was something else, or beside something else."""

OWN_MEMORY = frozenset(axis.name for axis in SERVER_AXES if not axis.shared)
"""Axes of an arm's own memory, of which bad times say nothing."""


def findings(evidence: Evidence) -> tuple[Finding, ...]:
    """Every check over the whole run; a consequence is left out where its cause is in the list."""
    made: list[Finding] = []
    for check in CHECKS:
        found = check.check(evidence)
        made += [f for f in found if not (check.CONSEQUENCE and any(explains(cause, f) for cause in made))]
    return tuple(made)


def explains(cause: Finding, found: Finding) -> bool:
    """Whether `cause` voids every cell that `found` does, as far as legs and axes go, and as surely."""
    same_leg = cause.leg_id is None or found.leg_id in (None, cause.leg_id)
    same_cells = cause.concurrency in (None, found.concurrency)
    same_axes = cause.axis in (None, found.axis) or str(found.axis).startswith(f"{cause.axis}_")
    # A cell that nothing worse than movement covers may still be decided: step 1b of docs/verdict.md.
    as_surely = cause.code not in MOVED_CODES or found.code in MOVED_CODES
    memory_too = of_memory(cause) or not of_memory(found)
    tokens_too = cause.code not in TIMING_ONLY_CODES or found.code in TIMING_ONLY_CODES
    as_wide = same_leg and same_cells and same_axes and memory_too and tokens_too
    return as_wide and as_surely and cause.code != found.code


def of_memory(finding: Finding) -> bool:
    """Whether it leaves an arm's own memory in doubt, where its concurrency and axis do."""
    if finding.axis is None:
        return finding.code not in TIMING_ONLY_CODES - MEMORY_TOO_CODES
    return finding.axis in OWN_MEMORY
