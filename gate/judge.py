"""5 to 7 Raw records -> Report. Pure: checks, metrics, statistics, tokens, verdict, in that order.

The same records give the same report, whenever `gate report` is asked.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from gate import binding, checks, power, verdict
from gate.calibration import apply
from gate.cells import cells as made
from gate.checks.evidence import Evidence
from gate.compare.regression import regression
from gate.errors import UsageError
from gate.metrics import AXIS_NAMES
from gate.notes import notes
from gate.observe.capacity import capacity
from gate.observe.residency import build, residency
from gate.observe.rows import Arm, Finding, Verdict
from gate.observe.rundata import RunData
from gate.observe.settings import manifest
from gate.report.model import ArmSummary, BandSummary, Divergence, Report, TokenCell
from gate.tokens.compare import compare, noise_of, own_spread, pair_up


def judge(run: RunData) -> Report:
    """Judge one run, complete or not.

    Raises:
        UsageError: the recipe declares a primary axis that does not exist.
        StorageError: the records are not those of the plan.
    """
    evidence = Evidence.of(run)
    protocol = run.plan.recipe.protocol
    _known(protocol.primary)
    noise = apply.noise(evidence)
    found = checks.findings(evidence)
    cells = made(evidence, found, noise)
    token_cells, divergences = _tokens(evidence, found)
    not_binding = tuple(binding.missing(evidence, noise))
    decided = verdict.grid(cells, token_cells)
    return Report(
        run_id=run.run_id,
        plan_id=run.plan.plan_id,
        recipe=run.plan.recipe.name,
        host=run.host,
        started_at=run.started_at,
        finished_at=run.finished_at,
        complete=run.finished_at is not None and not evidence.missing,
        binding=not not_binding,
        not_binding_because=not_binding,
        verdict=decided,
        exit_code=verdict.EXIT_CODES[decided],
        candidate=_summary(evidence, "candidate"),
        oracle=_summary(evidence, "oracle"),
        machine=run.machine,
        client=run.client,
        concurrencies=evidence.concurrencies,
        repetitions=evidence.repetitions,
        order=tuple(leg.name for leg in evidence.legs),
        cells=cells,
        band=_band(noise),
        looks=2 if run.plan.extra_legs else 1,
        tokens=token_cells,
        divergences=divergences,
        findings=(*run.preflight, *found),
        notes=(*notes(evidence), *power.notes(evidence), *noise.notes()),
        regression=regression(run.baseline, cells, protocol.band),
        counts={kind.value: sum(c.verdict is kind for c in cells) for kind in Verdict},
    )


def _known(primary: Sequence[str]) -> None:
    for name in primary:
        if name not in AXIS_NAMES:
            nearest = difflib.get_close_matches(name, AXIS_NAMES, 1)
            hint = f"did you mean {nearest[0]}?" if nearest else "see docs/metrics.md"
            raise UsageError(
                f"primary axis {name} does not exist", expected=f"one of {len(AXIS_NAMES)} axes", hint=hint
            )


def _tokens(evidence: Evidence, findings: Sequence[Finding]) -> tuple[tuple[TokenCell, ...], tuple[Divergence, ...]]:
    bound = evidence.plan.recipe.protocol.near_tie_nats
    cells: list[TokenCell] = []
    divergences: list[Divergence] = []
    pairs = {
        concurrency: [
            pair
            for candidate, oracle in evidence.pairs(concurrency)
            for pair in pair_up(candidate.requests, oracle.requests, evidence.run.repeats)
        ]
        for concurrency in evidence.concurrencies
    }
    whole = noise_of((pair for level in pairs.values() for pair in level), evidence.run.forced)
    for concurrency in evidence.concurrencies:
        found = compare(pairs[concurrency], evidence.run.forced, bound, evidence.run.margins, whole)
        covering = [
            finding
            for finding in findings
            if finding.concurrency in (None, concurrency) and finding.code not in checks.TIMING_ONLY_CODES
        ]
        planned = evidence.requests_per_leg(concurrency) * evidence.repetitions_at(concurrency)
        decision = verdict.tokens(
            found,
            planned=planned,
            findings=covering,
            finished=evidence.run.finished_at is not None,
        )
        divergences += found.divergences
        cells.append(
            TokenCell(
                concurrency=concurrency,
                sequences=found.sequences,
                exact=found.exact,
                near_tie=found.near_tie,
                diverged=found.diverged,
                unjudged=found.unjudged,
                max_margin_nats=found.max_margin_nats,
                bound_nats=bound,
                verdict=decision.verdict,
                reasons=decision.reasons,
                undecided=found.undecided,
                near_nats=found.near_nats,
                own=own_spread(found),
                noise=found.noise,
                run_noise=found.run_noise,
            )
        )
    return tuple(cells), tuple(divergences)


def _band(noise: apply.Noise) -> BandSummary | None:
    found = noise.valid
    return None if found is None else BandSummary(band_id=found.band_id, gates=len(found.gates))


def _summary(evidence: Evidence, arm: Arm) -> ArmSummary:
    plan, identity = evidence.arm_plan(arm), evidence.identity(arm)
    held = capacity(identity)
    names = {"url": plan.url, "command": " ".join(plan.argv or ())}
    return ArmSummary(
        name=names.get(plan.kind, plan.kind),
        version=identity.version if identity else None,
        argv=plan.argv,
        url=plan.url,
        checkpoint=plan.checkpoint,
        checkpoint_digest=plan.checkpoint_digest,
        kv_cache_dtype=identity.kv_cache_dtype if identity else None,
        build=build({} if identity is None else manifest(identity)),
        residency=residency(identity),
        kv_capacity_tokens=held.tokens,
        kv_capacity_is_bound=held.upper_bound,
        kv_cache_bytes=held.kv_bytes,
        starts=tuple(start for start in evidence.run.starts if start.arm == arm),
    )
