"""7 Whether a grid binds: what the full protocol asks for, and what of it was missing (docs/verdict.md, step 9)."""

from __future__ import annotations

from collections.abc import Iterator

from gate import power
from gate.calibration.apply import Noise
from gate.checks.evidence import Evidence
from gate.checks.kv_dtype_differs import resolved
from gate.checks.settings_differ import differences
from gate.notes import MEMORY, short_of_capacity, unequal_capacity
from gate.observe import ended
from gate.observe.rows import ARMS
from gate.observe.settings import effective, manifest
from gate.plan import Plan
from gate.recipe import Protocol, Recipe, Workload
from gate.units import counted

MIN_REPETITIONS = 3
"""Fewest legs of an arm per concurrency: with two, a median is a mean and one odd leg cannot be told."""

UNSEALED = "complete.json has no seal of its own, so that records and marker may have been made anew: measure again"


def missing(evidence: Evidence, noise: Noise) -> Iterator[str]:
    """One sentence for each thing that keeps the grid from binding; nothing when it binds."""
    protocol = evidence.plan.recipe.protocol
    yield from noise.missing(evidence.plan.recipe.name, protocol.primary, evidence.concurrencies)
    yield from shortened(evidence.plan)
    yield from _weakened(evidence.plan.recipe)
    if evidence.missing or evidence.run.finished_at is None:
        lacking = f"{len(evidence.missing)} of {len(evidence.plan.legs)} legs missing"
        all_there = "every planned leg is there, but the run was cut off before it was complete"
        yield f"{lacking if evidence.missing else all_there}: {evidence.run.ended or ended.INTERRUPTED}"
    if evidence.run.unsealed:
        yield UNSEALED
    if not evidence.plan.recipe.gpu:
        yield "no GPU: the host's processor is the device, and no GPU lock could be taken"
    yield from _arms(evidence)
    yield from short_of_capacity(evidence)
    yield from power.missing(evidence)
    if MEMORY.intersection(evidence.plan.recipe.protocol.primary):
        yield from unequal_capacity(evidence)
    if evidence.run.client is None:
        yield "the client's own cost was not measured"
    for finding in evidence.run.preflight:
        yield f"preflight: {finding.message}"


def shortened(plan: Plan) -> Iterator[str]:
    """What a command line leaves out of the protocol: known, and said, before the first leg."""
    ours, declared = plan.recipe.protocol, (plan.declared or plan.recipe).protocol
    repetitions = counted(ours.repetitions, "repetition")
    if ours.repetitions < MIN_REPETITIONS:
        yield f"{repetitions}, fewer than {MIN_REPETITIONS}"
    if ours.repetitions < declared.repetitions:
        yield f"{repetitions}, the recipe declares {declared.repetitions}"
    if ours.residency != declared.residency:
        yield f"residency {ours.residency}, the recipe declares {declared.residency}"
    if left_out := sorted(set(declared.concurrency) - set(ours.concurrency)):
        yield f"declared concurrencies not measured: {', '.join(map(str, left_out))}"


def _weakened(recipe: Recipe) -> Iterator[str]:
    """Every limit of the recipe that is easier to pass than the protocol's own (gate/recipe.py's defaults)."""
    full, ours, asked = Protocol(), recipe.protocol, Workload()
    if ours.floor < full.floor:
        yield f"floor {ours.floor:g}, below {full.floor:g}"
    if ours.band > full.band:
        yield f"band {100 * ours.band:g} %, above {100 * full.band:g} %"
    if ours.max_spread > full.max_spread:
        yield f"max_spread {100 * ours.max_spread:g} %, above {100 * full.max_spread:g} %"
    if ours.near_tie_nats > full.near_tie_nats:
        yield f"near_tie_nats {ours.near_tie_nats:g}, above {full.near_tie_nats:g}"
    left_out = [axis for axis in full.primary if axis not in ours.primary]
    if left_out:
        yield f"axes that do not decide here: {', '.join(left_out)}"
    if recipe.workload.warmup_per_stream < asked.warmup_per_stream:
        yield "no warm-up: the first requests of each leg are cold"
    if recipe.workload.requests_per_stream < asked.requests_per_stream:
        sent, least = counted(recipe.workload.requests_per_stream, "request"), asked.requests_per_stream
        yield f"{sent} a stream, fewer than {least}: nearly all of it is ramp"
    if recipe.workload.max_common_prefix > asked.max_common_prefix:
        yield f"prompts may share {recipe.workload.max_common_prefix} tokens, more than {asked.max_common_prefix}"
    if recipe.oracle.args or recipe.oracle.env:
        own = [*recipe.oracle.args, *(f"{name}={value}" for name, value in recipe.oracle.env.items())]
        yield f"the oracle runs with settings of the recipe's own: {' '.join(own)}"


def _arms(evidence: Evidence) -> Iterator[str]:
    candidate, oracle = evidence.plan.candidate, evidence.plan.oracle
    if oracle.kind != "vllm":
        yield f"the oracle is {oracle.kind}, not the pinned vLLM"
    for arm in ARMS:
        plan, identity = evidence.arm_plan(arm), evidence.identity(arm)
        if plan.kind == "url":
            yield f"the {arm} is an attached URL: its start, flags and environment are not the gate's"
        if plan.checkpoint_digest is None and plan.kind != "url":
            yield f"the {arm}'s checkpoint has no digest"
        cold = [leg.row for leg in evidence.of_arm(arm) if leg.row.warmup_failed]
        if cold:
            count, first = sum(row.warmup_failed or 0 for row in cold), cold[0]
            legs = f"{counted(len(cold), 'leg')}, first {first.leg_id}: {first.warmup_first_error}"
            yield f"the {arm} failed {counted(count, 'warm-up request')} in {legs}"
        if identity is None:
            continue
        if identity.version is None:
            yield f"the {arm} does not report its version"
        if identity.prefix_caching is None:
            yield f"the {arm} does not report whether prefix caching is off"
        if any(row.token_ids is None for leg in evidence.of_arm(arm) for row in leg.requests if row.error is None):
            yield f"the {arm} returns no token ids: how many tokens it made is its own word"
        if resolved(identity.kv_cache_dtype) is None:
            yield f"the {arm} does not report its KV cache dtype, it says {identity.kv_cache_dtype}"
    yield from _unknown(evidence)
    digests = {candidate.checkpoint_digest, oracle.checkpoint_digest}
    if len(digests) == 2 and None not in digests:
        yield "the arms ran different copies of the checkpoint"


def _unknown(evidence: Evidence) -> Iterator[str]:
    """What could not be compared, and where the arms differ although the recipe does not say that they may."""
    allowed, said = evidence.plan.recipe.protocol.may_differ, {arm: evidence.identity(arm) for arm in ARMS}
    for arm, identity in said.items():
        plan = evidence.arm_plan(arm)
        silent = [name for name, value in effective(identity).items() if value is None and name not in allowed]
        if identity is not None and silent:
            yield f"the {arm} does not report {', '.join(silent)}"
        if identity is not None and plan.kind == "engine" and "source_sha256" not in manifest(identity):
            yield f"the {arm} does not report the digest of its sources"
        if plan.kind == "vllm" and not any(look.when == "end" for look in evidence.run.pins):
            yield f"the {arm}'s packages and checkpoint were not looked at again after the legs"
    for name, (ours, theirs) in differences(said["candidate"], said["oracle"], equal=False).items():
        if name not in allowed:
            yield f"{name} is {ours} in the candidate, {theirs} in the oracle; protocol.may_differ does not name it"
    checkpoint = evidence.plan.recipe.checkpoint
    if checkpoint.hub is None and checkpoint.digest is None:
        yield "the recipe pins no digest of its checkpoint: whatever lay there was measured"
