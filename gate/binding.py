"""Whether a grid binds: what the full protocol asks for, and what of it was missing (docs/verdict.md, step 9)."""

from __future__ import annotations

from collections.abc import Iterator

from gate.checks.evidence import Evidence
from gate.checks.kv_dtype_differs import resolved
from gate.observe.rows import ARMS
from gate.stats.band import Band

MIN_REPETITIONS = 3
"""Fewest legs of an arm per concurrency: with two, a median is a mean and one odd leg cannot be told."""


def missing(evidence: Evidence, band: Band) -> Iterator[str]:
    """One sentence for each thing that keeps the grid from binding; nothing when it binds."""
    protocol = evidence.plan.recipe.protocol
    if band.source == "assumed":
        yield f"band of {100 * band.share:.1f} % is assumed: this host has no A/A history"
    if evidence.repetitions < MIN_REPETITIONS:
        yield f"{evidence.repetitions} repetitions, fewer than {MIN_REPETITIONS}"
    left_out = sorted(set(protocol.concurrency) - set(evidence.concurrencies))
    if left_out:
        yield f"declared concurrencies not measured: {', '.join(map(str, left_out))}"
    if evidence.missing or evidence.run.finished_at is None:
        yield f"{len(evidence.missing)} of {len(evidence.plan.legs)} legs missing: the run was interrupted"
    if not evidence.plan.recipe.gpu:
        yield "no GPU: the host's processor is the device, and no GPU lock could be taken"
    yield from _arms(evidence)
    if evidence.run.client is None:
        yield "the client's own cost was not measured"
    for finding in evidence.run.preflight:
        yield f"preflight: {finding.message}"


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
        if identity is None:
            continue
        if identity.version is None:
            yield f"the {arm} does not report its version"
        if identity.prefix_caching is None:
            yield f"the {arm} does not report whether prefix caching is off"
        if resolved(identity.kv_cache_dtype) is None:
            yield f"the {arm} does not report its KV cache dtype, it says {identity.kv_cache_dtype}"
    digests = {candidate.checkpoint_digest, oracle.checkpoint_digest}
    if len(digests) == 2 and None not in digests:
        yield "the arms ran different copies of the checkpoint"
