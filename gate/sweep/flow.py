"""0 `gate sweep`: prefill and decode rates of one stream over prompt length and depth, both arms in turns."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from gate import messages
from gate.arm import Server
from gate.arm.pair import Pair
from gate.arm.process import answers
from gate.client import drive, openai
from gate.errors import ArmError, PreconditionError
from gate.inputs import Asked, plan_of, recipe_for
from gate.lock import Lock, hold, keys
from gate.observe import ended, fresh, parquet, seals
from gate.observe.documents import read_model
from gate.observe.kinds import PLANS, RECORDS, Kind
from gate.observe.machine import host, machine
from gate.observe.rows import ARMS, Arm, Finding, RequestRow
from gate.observe.server import identify, served_model
from gate.observe.store import Store
from gate.plan import Plan, PlannedLeg, leg_order
from gate.preflight import preflight
from gate.progress import Ui
from gate.recipe import Recipe, parse
from gate.runs import require_records
from gate.sweep import plots, text
from gate.sweep.judge import report
from gate.sweep.points import Point, check_context
from gate.sweep.record import SweepLeg, SweepPlan, SweepReport
from gate.workload import Phase, Prompt, leg_seed, make_prompts, prompts_digest

NO_ORACLE = "none"
NEVER_STARTED = "true {port}"
"""Stands in a plan where an oracle would, as a program that preflight finds; a sweep of one arm starts no other."""
FOLDER: Kind = "sweep"
PLAN, REQUESTS = PLANS[FOLDER], RECORDS[FOLDER]
COMPLETE, INCOMPLETE = 0, 3


def run(asked: Asked, points: tuple[Point, ...], repetitions: int, out: Path, ui: Ui) -> int:
    """
    Returns 0 when every planned value is there, 3 when not; a sweep gives no verdict.

    Raises GateError for what keeps it from starting. What was measured before an arm died, or Ctrl-C, is reported.
    """
    arms: tuple[Arm, ...] = ("candidate",) if asked.oracle == NO_ORACLE else ARMS
    asked = dataclasses.replace(asked, oracle=NEVER_STARTED) if len(arms) == 1 else asked
    declared = recipe_for(asked)
    recipe = stretched(declared, points, repetitions)
    keys(recipe)  # at once, as in gate/run.py
    gate_plan = plan_of(recipe, asked)
    check_context(points, model_context(Path(gate_plan.candidate.checkpoint)), "the model's max_position_embeddings")
    with hold(recipe) as lock:
        findings = (*raised(declared, recipe, points), *preflight(gate_plan, out))
        started, folder = fresh.folder(out / host() / FOLDER, recipe.name)
        plan = SweepPlan(
            name=folder.name,
            host=host(),
            started_at=started.isoformat(timespec="seconds"),
            machine=machine(),
            recipe=recipe,
            coin=gate_plan.coin,
            seed=gate_plan.seed,
            arms=arms,
            candidate=gate_plan.candidate,
            oracle=gate_plan.oracle if "oracle" in arms else None,
            points=points,
            repetitions=repetitions,
            legs=plan_legs(gate_plan, points, repetitions, arms),
            findings=findings,
            sealed=True,
        )
        place = Store(folder)
        place.logs.mkdir()
        place.write_text(PLAN, plan.model_dump_json(indent=1) + "\n")
        ui.begun(folder.name, findings)
        try:
            with ended.noted(place):
                measure(plan, gate_plan, place, lock, ui)
        finally:  # an arm that died, or Ctrl-C: what was measured is reported, and the cause goes its way
            code = exit_code(conclude(place)) if (folder / REQUESTS).is_file() else INCOMPLETE
    return code


def exit_code(made: SweepReport) -> int:
    return COMPLETE if made.complete else INCOMPLETE


def measure(plan: SweepPlan, gate_plan: Plan, place: Store, lock: Lock, ui: Ui) -> None:
    """One timed request for each leg, its record on disk before the next."""
    rows: list[RequestRow] = []
    warm: set[tuple[Arm, str, Point]] = set()  # of each arm: two attached servers may have started in one millisecond
    checked: set[Arm] = set()
    with Pair(gate_plan, place.logs, ui.say, lock.descriptors(), arms=plan.arms) as pair:
        for one in plan.legs:
            server = pair.ready(one.leg)
            if one.leg.arm not in checked:
                _check_server(server, one.leg.arm, plan.points)
                checked.add(one.leg.arm)
            ui.say(messages.sweep_leg(one.leg.order, len(plan.legs), one.leg.arm, one.point.name, one.leg.repetition))
            cold = None
            if (started := (one.leg.arm, server.start_id, one.point)) not in warm:
                cold = _request(gate_plan, one, server, "warmup").error
                if cold is None:
                    warm.add(started)
            rows.append(_request(gate_plan, one, server, "timed", cold))
            place.write_rows("requests", RequestRow, rows)
            if rows[-1].error is not None and not answers(server.url):
                pair.broke(one.leg.arm, messages.ARM_DIED)  # restarted once, for the points that follow


def conclude(place: Store) -> SweepReport:
    """From the records on disk; prints the table. Raises StorageError where there are none, or they cannot be read."""
    plan = read_model(SweepPlan, place.folder / PLAN)
    seals.check_records(place.folder)
    require_records(place.folder)
    rows = parquet.read(RequestRow, place.folder / REQUESTS)
    made = report(plan, rows, ended.why(place.folder))
    place.write_text("sweep.json", made.model_dump_json(indent=1) + "\n")
    drawn = plots.render(made)
    for name, svg in drawn.items():
        place.write_text(name, svg)
    place.write_text("sweep.md", text.markdown(made, tuple(drawn)))
    place.seal_report()
    text.show(made, place.folder)
    return made


def stretched(recipe: Recipe, points: tuple[Point, ...], repetitions: int) -> Recipe:
    """The recipe for one stream, its context raised to what the longest point needs, on both arms alike."""
    need = max(point.context_tokens for point in points)
    data: dict[str, Any] = recipe.model_dump()
    data["max_model_len"] = max(recipe.max_model_len, need)
    data["protocol"] |= {"concurrency": (1,), "repetitions": repetitions}
    return parse(data, "command line")


def raised(declared: Recipe, used: Recipe, points: tuple[Point, ...]) -> tuple[Finding, ...]:
    """What the servers are started with otherwise than the recipe says: told at once, and below the table."""
    if used.max_model_len == declared.max_model_len:
        return ()
    longest = max(points, key=lambda point: point.context_tokens)
    message = f"max_model_len is raised from the recipe's {declared.max_model_len} to {used.max_model_len}"
    hint = f"{longest.name} needs it, and both arms serve it at every point"
    return (Finding(code="context-raised", message=message, hint=hint),)


def model_context(checkpoint: Path) -> int | None:
    """max_position_embeddings of its configuration; None where it names none."""
    try:
        config = json.loads((checkpoint / "config.json").read_bytes())
    except (OSError, ValueError) as error:
        raise PreconditionError(f"{checkpoint} has no readable config.json") from error
    longest = config.get("text_config", config).get("max_position_embeddings")
    return longest if isinstance(longest, int) else None


def plan_legs(plan: Plan, points: tuple[Point, ...], repetitions: int, arms: tuple[Arm, ...]) -> tuple[SweepLeg, ...]:
    """In the order of `gate run`: arms alternate and points rotate, repetition by repetition."""
    order = leg_order(tuple(range(len(points))), repetitions, plan.coin, plan.recipe.protocol.residency)
    kept = [(arm, index, repetition) for arm, index, repetition in order if arm in arms]
    return tuple(
        SweepLeg(
            leg=PlannedLeg(
                leg_id=f"{number:03d}-{arm}-{points[index].name.replace(' @ ', '-')}-r{repetition}",
                order=number,
                arm=arm,
                concurrency=1,
                repetition=repetition,
                requests=1,
                prompts_sha256=prompts_digest([prompt(plan, points[index], repetition, "timed")]),
                warmup_sha256=prompts_digest([prompt(plan, points[index], repetition, "warmup")]),
            ),
            point=points[index],
        )
        for number, (arm, index, repetition) in enumerate(kept)
    )


def prompt(plan: Plan, point: Point, repetition: int, phase: Phase) -> Prompt:
    """The same for both arms of a repetition, and another in every repetition: no cache can answer for the model."""
    (made,) = make_prompts(
        count=1,
        length=point.prompt_tokens,
        vocab_size=plan.vocabulary.size,
        seed=leg_seed(plan.seed, point.prompt_tokens + point.output_tokens, repetition, phase),
        max_common_prefix=plan.recipe.workload.max_common_prefix,
        reserved=frozenset(plan.vocabulary.reserved),
    )
    return made


def _request(plan: Plan, one: SweepLeg, server: Server, phase: Phase, warmup_error: str | None = None) -> RequestRow:
    """warmup_error: why its warm-up failed; then it is not sent, and says so: a cold figure is none of the point's."""
    spec = drive.LoadSpec(
        url=server.url,
        model=plan.arm(one.leg.arm).model or _model(server.url),
        prompts=(prompt(plan, one.point, one.leg.repetition, phase),),
        output_tokens=one.point.output_tokens,
        concurrency=1,
        timeout_s=plan.recipe.protocol.request_timeout_s,
    )
    recording = drive.run_leg(spec) if warmup_error is None else drive.nothing_sent(spec, warmup_error)
    (row,) = openai.to_rows(recording, spec, one.leg)
    return row


def _model(url: str) -> str:
    try:
        return served_model(url, "")
    except ArmError:
        return ""  # the request will tell what is wrong


def _check_server(server: Server, arm: Arm, points: tuple[Point, ...]) -> None:
    """An attached server has a context of its own."""
    check_context(points, identify(server.url, arm).max_model_len, f"what the {arm} at {server.url} serves")
