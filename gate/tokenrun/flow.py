"""0 The token judgement on one screen: the same numbers as gate/run.py, without timing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from gate import messages
from gate.arm import Server
from gate.arm.pair import Pair
from gate.errors import INTERRUPTED, ArmError, OracleError, UsageError
from gate.forcing import Asker, Question
from gate.inputs import Asked, plan_for
from gate.lock import Lock, hold
from gate.observe import ended, fresh, store
from gate.observe.machine import host, machine
from gate.observe.rows import ARMS, Arm
from gate.observe.server import identify, served_model
from gate.observe.tokenrows import ForcedRow, Place, SequenceRow
from gate.preflight import preflight
from gate.progress import Ui
from gate.tokenrun import folder as folders
from gate.tokenrun.drive import Driver
from gate.tokenrun.judge import pairs, shortened
from gate.tokenrun.plan import TokenPlan, make_token_plan, planned_scenarios
from gate.tokenrun.scenario import Scenario
from gate.tokenrun.show import conclude
from gate.tokens.compare import differs


def run(asked: Asked, repeats: int, seeds: int, out: Path, ui: Ui) -> int:
    """Ask, judge, report. Returns the exit code; raises GateError for what keeps a run from starting."""
    plan = make_token_plan(plan_for(asked), repeats, seeds)  # 1, 2
    ui.say(messages.tokens_planned(plan.plan_id, len(plan.scenarios), plan.repeats))
    with hold(plan.base) as lock:  # 3
        findings = preflight(plan.base, out)
        label = f"tokens-{plan.base.recipe.name}-{plan.plan_id[:8]}"
        started, folder = fresh.folder(out / host(), label)
        about = store.RunFile(
            run_id=folder.name,
            host=host(),
            started_at=started.isoformat(timespec="seconds"),
            machine=machine(),
            preflight=findings,
        )
        place = store.Store(folder)
        place.create(plan, about)
        ui.begun(folder.name, findings)
        ui.each(messages.indicative(shortened(plan)))
        return measure(plan, place, lock, ui)


def resume(folder: Path, ui: Ui) -> int:
    """Go on with an interrupted token run at its next part."""
    data = folders.read(folder)
    if data.finished_at is not None:
        raise UsageError(f"{folder.name} is complete", hint=f"gate show {folder.name}")
    if data.run.host != host():
        raise UsageError(f"{folder.name} was begun on {data.run.host}", hint="resume it there")
    with hold(data.plan.base) as lock:
        found = preflight(data.plan.base, folder.parents[1])
        findings = (*data.run.preflight, *(one for one in found if one not in data.run.preflight))
        place = store.Store(folder)
        place.write_run(data.run.model_copy(update={"preflight": findings}))
        ui.begun(folder.name, found)
        return measure(data.plan, place, lock, ui)


def measure(plan: TokenPlan, place: store.Store, lock: Lock, ui: Ui) -> int:
    """4 to 8: both servers are gone afterwards, and what was asked is judged."""
    cut: KeyboardInterrupt | ArmError | OracleError | None = None
    loads = planned_scenarios(plan)
    try:
        with ended.noted(place), Pair(plan.base, place.logs, ui.say, lock.descriptors()) as pair:
            turns = planned_turns(loads, plan.repeats)
            with ui.legs(sum(place.has_part(turn.part) for turn in turns), len(turns)):
                for arm in ARMS:  # 4 the candidate's answers, then the oracle's, K times
                    answers(plan, loads, [turn for turn in turns if turn.arm == arm], place, pair, ui)
            opinions(plan, loads, place, pair, ui)  # 4 the oracle's opinion of both
    except (KeyboardInterrupt, ArmError, OracleError) as error:
        cut = error
        ui.say(messages.tokens_cut_short(str(error), place.folder.name))
    if cut is not None and not folders.read(place.folder).answers:
        raise cut
    finished_at = datetime.now(UTC).isoformat(timespec="seconds") if cut is None else None
    report = conclude(place.folder, finished_at)  # 5 to 8
    return INTERRUPTED if isinstance(cut, KeyboardInterrupt) else report.exit_code


@dataclass(frozen=True, slots=True)
class Turn:
    """One load on one arm, once."""

    arm: Arm
    take: int
    load: Scenario
    line: str
    """What is said as it begins."""

    @property
    def part(self) -> str:
        return f"answers-{self.arm}-{self.load.name}-t{self.take}"


def planned_turns(loads: Sequence[Scenario], repeats: int) -> tuple[Turn, ...]:
    """In order, those that are on disk already too: the candidate answers each load once, the oracle K times."""
    takes: dict[Arm, int] = {"candidate": 1, "oracle": repeats}
    turns: list[Turn] = []
    of = len(loads) * sum(takes.values())
    for arm in ARMS:
        for take in range(takes[arm]):
            for load in loads:
                run = f"{take + 1} of {takes[arm]}"
                line = messages.tokens_load(len(turns) + 1, of, arm, load.name, run, len(load.calls))
                turns.append(Turn(arm, take, load, line))
    return tuple(turns)


def answers(
    plan: TokenPlan, loads: tuple[Scenario, ...], turns: Sequence[Turn], place: store.Store, pair: Pair, ui: Ui
) -> None:
    """An arm's turns on one server that is never restarted: what one load leaves behind meets the next."""
    left, arm = [turn for turn in turns if not place.has_part(turn.part)], turns[0].arm
    if not left and not untied(loads, place, arm):
        return
    server = pair.alone(arm)
    driver = Driver(server.url, _model(plan, arm, server), plan.base.recipe.protocol.request_timeout_s)
    place.append_identities([identify(server.url, arm, server.logged)])
    for turn in left:
        ui.leg(turn.line)
        began = time.monotonic()
        rows = driver.run(turn.load, arm, turn.take)
        if not server.alive():
            raise ArmError(f"the {arm} died under {turn.load.name}", hint=f"its log is {place.logs / f'{arm}.log'}")
        place.append_identities([identify(server.url, arm, server.logged)])  # first: a part on disk is whole with it
        place.write_part(turn.part, SequenceRow, rows)
        ui.leg_done(time.monotonic() - began)
    ties(plan, loads, place, server, arm)


def untied(loads: Sequence[Scenario], place: store.Store, arm: Arm) -> tuple[Scenario, ...]:
    """The loads of ties() that are not on disk yet."""
    lowest = min(load.concurrency for load in loads)
    asked = [load for load in loads if load.kind == "long" and load.concurrency == lowest]
    return tuple(load for load in asked if not place.has_part(_tie_part(arm, load)))


def _tie_part(arm: Arm, load: Scenario) -> str:
    return f"decoded-{arm}-{load.name}"


def ties(plan: TokenPlan, loads: tuple[Scenario, ...], place: store.Store, server: Server, arm: Arm) -> None:
    """The long answers of the lowest level once more, with the log-probs of each step: how exact ties are broken."""
    with Asker(server.url, _model(plan, arm, server), plan.base.recipe.protocol.request_timeout_s) as asker:
        for load in untied(loads, place, arm):
            rows = []
            for call in load.calls:
                index, repetition = call.prompt.index, load.repetition
                where = Place(kind="long", concurrency=load.concurrency, repetition=repetition, index=index)
                rows.append(asker.watch(Question(where, arm, call.prompt.token_ids, ()), call.kept))
            place.append_identities([identify(server.url, arm, server.logged)])
            place.write_part(_tie_part(arm, load), ForcedRow, rows)


def opinions(plan: TokenPlan, loads: tuple[Scenario, ...], place: store.Store, pair: Pair, ui: Ui) -> None:
    """The candidate's answers that differ, and each different answer of the oracle's own, in turns."""
    data = folders.read(place.folder)
    server = pair.alone("oracle")
    left: dict[str, list[Question]] = {}
    for load in loads:
        if not place.has_part(name := f"forced-{load.name}"):
            mine = [row for row in data.answers if (row.kind, row.concurrency, row.repetition) == _key(load)]
            left[name] = _questions(load, mine)
    began, asked = time.monotonic(), sum(map(len, left.values()))
    ui.say(messages.tokens_forcing(asked))
    with Asker(server.url, _model(plan, "oracle", server), plan.base.recipe.protocol.request_timeout_s) as asker:
        for name, questions in left.items():
            place.write_part(name, ForcedRow, asker.answers(questions))
    ui.say(messages.tokens_opinions(asked, time.monotonic() - began))


def _questions(load: Scenario, answered: list[SequenceRow]) -> list[Question]:
    prompts = {call.prompt.index: call.prompt.token_ids for call in load.calls}
    questions = []
    for pair in pairs(answered):
        prompt = prompts[pair.place.index]
        if differs(pair) and pair.candidate is not None:
            questions.append(Question(pair.place, "candidate", prompt, pair.candidate))
        questions += [Question(pair.place, "oracle", prompt, ids) for ids in dict.fromkeys(pair.takes)]
    return questions


def _key(load: Scenario) -> tuple[str, int, int]:
    return load.kind, load.concurrency, load.repetition


def _model(plan: TokenPlan, arm: Arm, server: Server) -> str:
    return served_model(server.url, plan.base.arm(arm).model)
