"""0 The whole flow on one screen. The numbers are the project's reading order, in every docstring of the gate:

0  command line and this flow        cli, run
1  what is asked for                 recipe
2  what will be done                 inputs, plan
3  what must hold before             lock, preflight/
4  raw records, leg by leg           leg, arm/, client/, observe/, margins
5  what must not be believed         checks/
6  numbers                           metrics/, tokens/, stats/
7  the decision                      judge, verdict, binding
8  what is shown, and the exit code  conclude, report/
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from gate import margins, messages
from gate.arm.pair import Pair
from gate.binding import shortened
from gate.calibration import history
from gate.client.calibrate import calibrate
from gate.compare import baseline
from gate.conclude import conclude
from gate.errors import INTERRUPTED, ArmError, OracleError, UsageError
from gate.inputs import Asked, plan_of, recipe_for
from gate.leg import run_leg
from gate.lock import Lock, hold, keys
from gate.looks import due
from gate.observe import ended, fresh, pins, seals, store
from gate.observe.machine import host, machine
from gate.observe.ranges import leg_range
from gate.observe.server import served_model
from gate.plan import Plan, PlannedLeg
from gate.preflight import preflight
from gate.progress import Ui


def run(asked: Asked, out: Path, ui: Ui) -> int:
    """Measure, judge, report. Returns the exit code; raises GateError for what keeps a run from starting."""
    recipe = recipe_for(asked)  # 1 what is asked for
    keys(recipe)  # 3 at once: no checkpoint of 20 GB is fetched for a machine without the device
    plan = plan_of(recipe, asked)  # 2 checkpoints -> plan
    ui.say(messages.planned(plan.plan_id, len(plan.legs), plan.coin))
    with hold(plan) as lock:  # 3 one gate per device
        findings = preflight(plan, out)  # 3 what must hold before the first leg
        client = calibrate()
        started, folder = fresh.folder(out / host(), f"{plan.recipe.name}-{plan.plan_id[:8]}")
        about = store.RunFile(
            run_id=folder.name,
            host=host(),
            started_at=started.isoformat(timespec="seconds"),
            machine=machine(),
            client=client,
            preflight=findings,
        )
        place = store.Store(folder)
        place.create(plan, about)
        bring(plan, about.machine, place, ui)
        ui.begun(folder.name, findings)
        ui.each(messages.indicative(shortened(plan) if asked.both is None else ()))
        ui.each(messages.busy(findings))
        return measure(plan, place, lock, ui)


def bring(plan: Plan, machine: dict[str, str], place: store.Store, ui: Ui) -> None:
    """What this host knows already, as it is when the run begins."""
    history.bring(plan, machine, place, ui.say)  # 3 what equal arms did on it, if it was ever measured
    baseline.bring(plan, machine, place, ui.say)  # 3 what the candidate did on it when it was last accepted


def resume(folder: Path, ui: Ui) -> int:
    """Go on with an interrupted run at its next leg, under the same plan."""
    so_far = store.read_run(folder)
    plan = so_far.plan
    if seals.is_complete(folder):
        raise UsageError(f"{folder.name} is complete", hint=f"gate show {folder.name}")
    about, now = store.read_run_file(folder), machine()
    for what in ("host", "cpu", *(key for key in {**about.machine, **now} if key.startswith("gpu"))):
        if about.machine.get(what) != now.get(what):
            raise UsageError(
                f"{folder.name} was begun on another machine: its {what} is {about.machine.get(what)}",
                expected=f"{now.get(what)}, as here",
                hint="resume it there: legs of two machines make no ratio",
            )
    with hold(plan) as lock:
        place = store.Store(folder)
        findings = list(about.preflight)
        since = [messages.resumed(len(so_far.legs), len(plan.legs))] if so_far.legs else []
        if not so_far.legs:
            bring(plan, now, place, ui)  # it was cut off before it had
        now_found = preflight(plan, folder.parents[1])
        findings += [finding for finding in (*since, *now_found) if finding not in findings]
        place.write_run(about.model_copy(update={"preflight": tuple(findings)}))
        ui.begun(folder.name, now_found)
        ui.each(messages.busy(now_found))
        return measure(plan, place, lock, ui)


def measure(plan: Plan, place: store.Store, lock: Lock, ui: Ui) -> int:
    """4 to 8: whatever ends it early, both servers are gone afterwards and every finished leg is judged."""
    note_pins(plan, place, "start")
    cut: KeyboardInterrupt | ArmError | OracleError | None = None
    try:
        with ended.noted(place), Pair(plan, place.logs, ui.say, lock.descriptors(), place.append_start) as pair:
            legs(plan, plan.legs, place, pair, lock, ui)  # 4 raw records to disk after each leg
            legs(plan, due(store.read_run(place.folder)), place, pair, lock, ui)  # 4 extra blocks, where undecided
            look_again(place, pair, ui)  # 4 the oracle's opinion of both arms' tokens
    except (KeyboardInterrupt, ArmError, OracleError) as error:
        cut = error
    note_pins(plan, place, "end")
    done = store.read_run(place.folder).legs
    if cut is not None and not done:
        ui.say(messages.nothing_measured(place.folder.name))
        raise cut
    if cut is not None:
        ui.say(messages.cut_short(len(done), max(len(done), len(plan.legs)), str(cut), place.folder.name))
    finished_at = datetime.now(UTC).isoformat(timespec="seconds") if cut is None else None
    report = conclude(place.folder, finished_at)  # 5 to 8 checks, numbers, decision, report
    return INTERRUPTED if isinstance(cut, KeyboardInterrupt) else report.exit_code


def note_pins(plan: Plan, place: store.Store, when: Literal["start", "end"]) -> None:
    about = store.read_run_file(place.folder)
    place.write_run(about.model_copy(update={"pins": (*about.pins, pins.look(plan, when))}))


def legs(plan: Plan, wanted: tuple[PlannedLeg, ...], place: store.Store, pair: Pair, lock: Lock, ui: Ui) -> None:
    """Those of the wanted legs that are not on disk yet, in planned order."""
    done = {row.leg_id for row in store.read_run(place.folder).legs} & {leg.leg_id for leg in wanted}
    with ui.legs(len(done), len(wanted)):
        for number, leg in enumerate(wanted, 1):
            if leg.leg_id in done:
                continue
            server, rest = pair.ready(leg), pair.other(leg)
            ui.leg(messages.leg(number, len(wanted), leg.arm, leg.concurrency, leg.repetition))
            began = time.monotonic()  # not before: a server's start says nothing about the legs that are left
            with leg_range(leg.leg_id):
                row, error = run_leg(
                    plan,
                    leg,
                    server,
                    store=place,
                    other_pids=pair.pids(),
                    other_url=rest,
                    available_before_bytes=pair.available_before_bytes(leg.arm),
                    gpu_start_bytes=pair.gpu_growth_bytes(leg.arm),
                    lock_held=lock.held,
                )
            if error is not None:
                ui.say(messages.leg_failed(row.leg_id, row.failed, row.requests, error))
            elif row.warmup_failed:
                ui.say(messages.warmup_failed(row.leg_id, row.warmup_failed, row.warmup_first_error or ""))
            pair.note(row)
            ui.leg_done(time.monotonic() - began)


def look_again(place: store.Store, pair: Pair, ui: Ui) -> None:
    run = store.read_run(place.folder)
    differ = sum(map(len, margins.to_judge(run).values()))
    if not differ:
        return  # nothing rests on it, and one server at a time would have to be started for it
    ui.say(messages.margins(differ))
    server = pair.oracle()
    margins.look_again(place, server.url, served_model(server.url, run.plan.oracle.model), ui.say)
