"""4 After the timed legs: what the oracle is asked once more, in which order, within a budget of time.

1  Every candidate answer that differs from the oracle's goes back to the oracle, all positions of it. The verdict
   rests on it, so the budget does not cut it short.
2  The oracle's own answers of the first repetition go back to it as well, level by level in turns: how far are they
   from its own choice by the same measure?
3  It runs those prompts again, untimed, at each concurrency: does it agree with itself? Where it does not, the new
   answers go back to it too.

2 has half the budget, 3 the rest, and what is left of 2 what 3 leaves. What does not fit is left out, and the report
counts what there is: without it no bound is widened. Each part is a file, and a resumed run does not ask for it again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import zip_longest

from gate.client import drive, openai
from gate.forcing import Asker, Question
from gate.leg import load_spec
from gate.observe import store
from gate.observe.rows import RequestRow
from gate.observe.rundata import RunData
from gate.observe.tokenrows import ForcedRow, Place, SequenceRow
from gate.plan import Plan, PlannedLeg, leg_prompts
from gate.tokens.compare import Pair, differs, pair_up

REPEATED = 0
"""The repetition whose prompts the oracle runs again: it has the same prompts at the same concurrency as the legs."""


def pairs(run: RunData) -> tuple[Pair, ...]:
    """Every prompt that both arms answered in timed legs, with the oracle's untimed runs of it; pure."""
    candidate = [row for row in run.requests if row.arm == "candidate"]
    oracle = [row for row in run.requests if row.arm == "oracle"]
    return pair_up(candidate, oracle, run.repeats)


def to_judge(run: RunData) -> dict[str, list[Question]]:
    """Part name -> the candidate's answers that differ, by leg; pure."""
    found: dict[str, list[Question]] = {}
    prompts = _prompts(run.plan)
    for pair in pairs(run):
        if differs(pair) and pair.candidate is not None:
            place = pair.place
            question = Question(place, "candidate", prompts(place), pair.candidate)
            found.setdefault(f"forced-candidate-c{place.concurrency}-r{place.repetition}", []).append(question)
    return found


def own_answers(run: RunData) -> dict[str, list[Question]]:
    """Part name -> the oracle's different answers to the repeated prompts, by concurrency; pure."""
    found: dict[str, list[Question]] = {}
    prompts = _prompts(run.plan)
    for pair in pairs(run):
        if pair.place.repetition == REPEATED:
            part = found.setdefault(f"forced-oracle-c{pair.place.concurrency}", [])
            part += [Question(pair.place, "oracle", prompts(pair.place), ids) for ids in dict.fromkeys(pair.takes)]
    return found


def look_again(place: store.Store, url: str, model: str, say: Callable[[str], None]) -> None:
    """Ask, and put every part on disk as soon as it is complete.

    Raises StorageError. A server that does not answer leaves rows that say so, and the sequences stay unjudged.
    """
    run = store.read_run(place.folder)
    protocol = run.plan.recipe.protocol
    with Asker(url, model, protocol.request_timeout_s) as asker:
        for name, questions in to_judge(run).items():
            if not place.has_part(name):
                place.write_part(name, ForcedRow, list(asker.until(questions, None)))
        began = time.monotonic()
        deadline = began + protocol.second_look_s
        told: dict[str, list[ForcedRow]] = {name: [] for name in own_answers(run) if not place.has_part(name)}
        _own(asker, run, told, began + protocol.second_look_s / 2)
        for take in range(1, protocol.oracle_repeats + 1):
            for leg in _repeatable(run):
                name = f"repeats-c{leg.concurrency}-t{take}"
                if not place.has_part(name) and time.monotonic() < deadline:
                    place.write_part(name, SequenceRow, again(run.plan, leg, url, model, take))
        left = _own(asker, store.read_run(place.folder), told, deadline)
        for name, rows in told.items():
            place.write_part(name, ForcedRow, rows)
    if left:
        say(f"{left} of the oracle's own answers were not sent back to it: second_look_s was over")


def _own(asker: Asker, run: RunData, told: dict[str, list[ForcedRow]], deadline: float) -> int:
    """Ask for what `told` does not hold yet, and put it there; returns how many did not fit."""
    known = {(row.place, row.token_ids) for rows in told.values() for row in rows}
    parts = {
        name: [one for one in questions if (one.place, one.output) not in known]
        for name, questions in own_answers(run).items()
        if name in told
    }
    left = sum(map(len, parts.values()))
    for name, question in _in_turns(parts):
        for row in asker.until((question,), deadline):
            told[name].append(row)
            left -= 1
    return left


def again(plan: Plan, leg: PlannedLeg, url: str, model: str, take: int) -> list[SequenceRow]:
    """The leg's load once more, untimed: the same prompts at the same concurrency."""
    spec = load_spec(plan, leg, url, model, "timed")
    return [_untimed(row, take) for row in openai.to_rows(drive.run_leg(spec), spec, leg)]


def _untimed(row: RequestRow, take: int) -> SequenceRow:
    return SequenceRow(
        kind="leg",
        concurrency=row.concurrency,
        repetition=row.repetition,
        index=row.index,
        arm=row.arm,
        take=take,
        prompt_sha256=row.prompt_sha256,
        output_tokens=row.expected_output_tokens,
        token_ids=row.token_ids,
        error=row.error,
    )


def _repeatable(run: RunData) -> list[PlannedLeg]:
    """The oracle's legs of the repeated repetition that were measured, in planned order."""
    measured = {row.leg_id for row in run.legs}
    chosen = [leg for leg in run.plan.legs if (leg.arm, leg.repetition) == ("oracle", REPEATED)]
    return [leg for leg in chosen if leg.leg_id in measured]


def _in_turns(parts: dict[str, list[Question]]) -> Iterator[tuple[str, Question]]:
    """One of each part, then the next of each, so that a budget that ends leaves every level something."""
    for turn in zip_longest(*parts.values()):
        yield from ((name, question) for name, question in zip(parts, turn, strict=True) if question is not None)


def _prompts(plan: Plan) -> Callable[[Place], tuple[int, ...]]:
    """Token ids of a place's prompt; each leg's prompts are made once."""
    made: dict[tuple[int, int], list[tuple[int, ...]]] = {}

    def prompt(place: Place) -> tuple[int, ...]:
        at = (place.concurrency, place.repetition)
        if at not in made:
            leg = next(leg for leg in plan.all_legs if (leg.concurrency, leg.repetition) == at)
            made[at] = [one.token_ids for one in leg_prompts(plan, leg, "timed")]
        return made[at][place.index]

    return prompt
