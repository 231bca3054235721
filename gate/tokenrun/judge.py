"""5 to 7 A token run's raw records -> TokenReport. Pure; the rule is that of gate/verdict.py, step 7."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from gate import verdict
from gate.binding import UNSEALED
from gate.checks.arms_are_one import posing
from gate.observe import ended
from gate.observe.residency import build, residency
from gate.observe.rows import ARMS, Arm, Finding, Identity
from gate.observe.settings import manifest
from gate.observe.tokenrows import Kind, Place, SequenceRow
from gate.recipe import Protocol
from gate.report.model import ArmSummary, Divergence, TokenCell
from gate.tokenrun.folder import TokenData
from gate.tokenrun.model import KindCell, TieBreak, TokenReport
from gate.tokenrun.plan import REPEATS, SEEDS, TokenPlan
from gate.tokens.compare import Pair, compare, noise_of, own_spread
from gate.tokens.own import tie_breaks
from gate.units import counted

KINDS: tuple[Kind, ...] = ("long", "churn")
FAILED, TRUNCATED = "failed-request", "output-length"
"""Codes of the checks of a timed leg that say the same."""


def judge(data: TokenData) -> TokenReport:
    """Judge one token run, complete or not."""
    recipe = data.plan.base.recipe
    cells: list[KindCell] = []
    divergences: list[Divergence] = []
    findings = list(data.run.preflight)
    for concurrency in sorted(recipe.protocol.concurrency):
        for kind in KINDS:
            answers = [row for row in data.answers if (row.kind, row.concurrency) == (kind, concurrency)]
            cell, parted, found = _cell(data, kind, concurrency, answers)
            cells.append(cell)
            divergences += parted
            findings += found
    decided = verdict.grid((), [_as_token_cell(cell) for cell in cells])
    because = tuple(_missing(data))
    return TokenReport(
        run_id=data.run.run_id,
        plan_id=data.plan.plan_id,
        recipe=recipe.name,
        host=data.run.host,
        started_at=data.run.started_at,
        finished_at=data.finished_at,
        complete=data.finished_at is not None,
        binding=not because,
        not_binding_because=because,
        verdict=decided,
        exit_code=verdict.EXIT_CODES[decided],
        candidate=_arm(data, "candidate"),
        oracle=_arm(data, "oracle"),
        machine=data.run.machine,
        repeats=data.plan.repeats,
        seeds=data.plan.seeds,
        near_tie_nats=recipe.protocol.near_tie_nats,
        cells=tuple(cells),
        tie_breaks=tuple(_ties(data, arm) for arm in ARMS if any(row.arm == arm for row in data.decoded)),
        divergences=tuple(divergences),
        findings=tuple(findings),
    )


def pairs(answers: Iterable[SequenceRow]) -> tuple[Pair, ...]:
    """The candidate's answer to each prompt, beside all of the oracle's; pure."""
    ours: dict[Place, SequenceRow] = {}
    theirs: dict[Place, list[SequenceRow]] = defaultdict(list)
    for row in sorted(answers, key=lambda row: row.take):
        if row.arm == "oracle":
            theirs[row.place].append(row)
        else:
            ours[row.place] = row
    return tuple(
        Pair(place, row.output_tokens, row.token_ids, tuple(one.token_ids for one in theirs[place]))
        for place, row in ours.items()
        if theirs[place] and {one.prompt_sha256 for one in theirs[place]} == {row.prompt_sha256}
    )


def faults(answers: Iterable[SequenceRow]) -> Iterator[Finding]:
    """Answers that failed or have another length than was asked for: what was measured is not what was planned."""
    for row in answers:
        what = f"{row.kind} c{row.concurrency} s{row.repetition} #{row.index}"
        if row.error is not None:
            message = f"{what} of the {row.arm} failed: {row.error}"
            yield _finding(row, FAILED, message, "the arm's log says more; a failed answer is no answer")
        elif row.token_ids is not None and len(row.token_ids) != row.output_tokens:
            message = f"{what} of the {row.arm} has {len(row.token_ids)} ids; expected {row.output_tokens}"
            yield _finding(
                row, TRUNCATED, message, "the end of sequence is ignored: every answer has the length asked for"
            )


def _finding(row: SequenceRow, code: str, message: str, hint: str) -> Finding:
    return Finding(code=code, message=message, hint=hint, arm=row.arm, concurrency=row.concurrency)


def _cell(
    data: TokenData, kind: Kind, concurrency: int, answers: list[SequenceRow]
) -> tuple[KindCell, tuple[Divergence, ...], list[Finding]]:
    floor = data.plan.base.recipe.protocol.near_tie_nats
    forced = [row for row in data.forced if row.kind == kind]  # the other kind's answers have other lengths
    every = noise_of(pairs(row for row in data.answers if row.kind == kind), forced)
    found = compare(pairs(answers), forced, floor, run_noise=every)
    broken = list(faults(answers))
    planned = sum(one.calls for one in data.plan.scenarios if one.name.startswith(f"{kind}-c{concurrency}-s"))
    decision = verdict.tokens(found, planned=planned, findings=broken, finished=data.finished_at is not None)
    cell = KindCell(
        kind=kind,
        concurrency=concurrency,
        planned=planned,
        sequences=found.sequences,
        exact=found.exact,
        near_tie=found.near_tie,
        undecided=found.undecided,
        diverged=found.diverged,
        unjudged=found.unjudged,
        uncompared=found.uncompared,
        max_margin_nats=found.max_margin_nats,
        near_nats=found.near_nats,
        wrong_nats=found.wrong_nats,
        own=own_spread(found),
        noise=found.noise,
        run_noise=found.run_noise,
        verdict=decision.verdict,
        reasons=decision.reasons,
    )
    return cell, found.divergences, broken


def _as_token_cell(cell: KindCell) -> TokenCell:
    return TokenCell(
        concurrency=cell.concurrency,
        sequences=cell.sequences,
        exact=cell.exact,
        near_tie=cell.near_tie,
        diverged=cell.diverged,
        unjudged=cell.unjudged,
        max_margin_nats=cell.max_margin_nats,
        bound_nats=cell.near_nats,
        verdict=cell.verdict,
        reasons=cell.reasons,
        undecided=cell.undecided,
        near_nats=cell.near_nats,
        own=cell.own,
        noise=cell.noise,
        run_noise=cell.run_noise,
    )


def _ties(data: TokenData, arm: Arm) -> TieBreak:
    found = tie_breaks(row for row in data.decoded if row.arm == arm)
    return TieBreak(arm=arm, positions=found.positions, ties=found.ties, high=found.high, not_greedy=found.not_greedy)


def shortened(plan: TokenPlan) -> Iterator[str]:
    """What a command line leaves out: known, and said, before the first load."""
    if plan.repeats < REPEATS:
        yield f"{counted(plan.repeats, 'run')} by the oracle, fewer than {REPEATS}"
    if plan.seeds < SEEDS:
        yield f"{counted(plan.seeds, 'seed')}, fewer than {SEEDS}"
    recipe = plan.base.recipe
    declared = (plan.base.declared or recipe).protocol.concurrency
    if left_out := sorted(set(declared) - set(recipe.protocol.concurrency)):
        yield f"declared concurrencies not asked: {', '.join(map(str, left_out))}"


def _missing(data: TokenData) -> Iterator[str]:
    """What of the whole protocol was not kept."""
    recipe = data.plan.base.recipe
    if data.finished_at is None:
        yield data.ended or ended.INTERRUPTED
    if data.unsealed:
        yield UNSEALED
    yield from shortened(data.plan)
    full = Protocol().near_tie_nats
    if recipe.protocol.near_tie_nats > full:
        yield f"near_tie_nats {recipe.protocol.near_tie_nats:g}, above {full:g}"
    if data.plan.base.oracle.kind != "vllm":
        yield f"the oracle is {data.plan.base.oracle.kind}, not the pinned vLLM"
    if recipe.oracle.args or recipe.oracle.env:
        own = [*recipe.oracle.args, *(f"{name}={value}" for name, value in recipe.oracle.env.items())]
        yield f"the oracle runs with settings of the recipe's own: {' '.join(own)}"
    if not recipe.gpu:
        yield "no GPU: the kernels that serve users did not run"
    yield from _arms(data)
    for finding in data.run.preflight:
        yield f"preflight: {finding.message}"


def _arms(data: TokenData) -> Iterator[str]:
    """What is not known of the servers that answered, or was not the same for all of their answers."""
    for arm in ARMS:
        plan = data.plan.base.arm(arm)
        if plan.kind == "url":
            yield f"the {arm} is an attached URL: its start, flags and environment are not the gate's"
        elif plan.checkpoint_digest is None:
            yield f"the {arm}'s checkpoint has no digest"
        if len({one.digest for one in data.identities if one.arm == arm}) > 1:
            yield f"the {arm} was not the same server throughout: what it says of itself changed"
    digests = {data.plan.base.arm(arm).checkpoint_digest for arm in ARMS}
    if len(digests) == 2 and None not in digests:
        yield "the arms ran different copies of the checkpoint"
    first = {arm: next((one for one in data.identities if one.arm == arm), None) for arm in ARMS}
    version = posing(data.plan.base.candidate, first["candidate"], first["oracle"])
    if version is not None:
        yield f"the candidate does not say that it is the engine, and has the oracle's version {version}"


def _arm(data: TokenData, arm: Arm) -> ArmSummary:
    plan = data.plan.base.arm(arm)
    identity: Identity | None = next((one for one in data.identities if one.arm == arm), None)
    return ArmSummary(
        name={"url": plan.url, "command": " ".join(plan.argv or ())}.get(plan.kind, plan.kind),
        version=None if identity is None else identity.version,
        argv=plan.argv,
        url=plan.url,
        checkpoint=plan.checkpoint,
        checkpoint_digest=plan.checkpoint_digest,
        kv_cache_dtype=None if identity is None else identity.kv_cache_dtype,
        build=build({} if identity is None else manifest(identity)),
        residency=residency(identity),
    )
