"""4 After the timed legs: what the oracle is asked once more, in which order, within a budget of time.

1  Every candidate answer that differs from the oracle's goes back to the oracle, all positions of it, and in turns with
   them the oracle's own answers to the same prompts: how far are they from its own choice by the same measure? One of
   each level, repetition and arm, then the next of each: a budget that ends leaves both arms and all levels as much.
   From OWN_FIRST of its own on the candidate's come first: more of its own would move no verdict.
2  It runs the first repetition's prompts again, untimed, at each concurrency: does it agree with itself?
3  Where it does not, the new answers go back to it too.

What does not fit is left out and counted. A candidate's answer without an opinion leaves its cell undecided; without
some of its own the oracle's spread is less well known, which never makes a verdict easier. Each part is a file, and a
resumed run does not ask for it again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import zip_longest

from gate.client import drive, openai
from gate.forcing import Asker, Question, row
from gate.leg import load_spec
from gate.observe import store
from gate.observe.rows import Arm, RequestRow
from gate.observe.rundata import RunData
from gate.observe.tokenrows import ForcedRow, Place, SequenceRow
from gate.plan import Plan, PlannedLeg, leg_prompts
from gate.tokens.compare import NOT_ASKED, Pair, differs, pair_up

OWN_FIRST = 128
"""Of the oracle's own answers. Resampled from a run on an H200, so many tell engines apart as well as 378 do, and 15 do
not (docs/verdict.md, step 7). With as many of its own as of the candidate's, 95 of 408 of these were not reached."""

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
    """Part name -> the oracle's timed answers, by leg; pure."""
    found: dict[str, list[Question]] = {}
    prompts = _prompts(run.plan)
    for pair in pairs(run):
        if pair.takes:
            place = pair.place
            question = Question(place, "oracle", prompts(place), pair.takes[0])
            found.setdefault(f"forced-oracle-c{place.concurrency}-r{place.repetition}", []).append(question)
    return found


def other_answers(run: RunData) -> dict[str, list[Question]]:
    """Part name -> what the oracle answered to repeated prompts beside its timed answer, by concurrency; pure."""
    found: dict[str, list[Question]] = {}
    prompts = _prompts(run.plan)
    for pair in pairs(run):
        new = [ids for ids in dict.fromkeys(pair.takes) if ids != pair.takes[0]]
        part = found.setdefault(f"forced-repeats-c{pair.place.concurrency}", []) if new else []
        part += [Question(pair.place, "oracle", prompts(pair.place), ids) for ids in new]
    return found


def look_again(place: store.Store, url: str, model: str, say: Callable[[str], None]) -> None:
    """Ask, and put every part on disk as soon as it is complete.

    Raises StorageError. A server that does not answer leaves rows that say so, and the sequences stay unjudged.
    """
    run = store.read_run(place.folder)
    protocol = run.plan.recipe.protocol
    deadline = time.monotonic() + protocol.second_look_s
    with Asker(url, model, protocol.request_timeout_s) as asker:
        left = _ask(asker, place, {**to_judge(run), **own_answers(run)}, deadline)
        for take in range(1, protocol.oracle_repeats + 1):
            for leg in _repeatable(run):
                name = f"repeats-c{leg.concurrency}-t{take}"
                if not place.has_part(name) and time.monotonic() < deadline:
                    place.write_part(name, SequenceRow, again(run.plan, leg, url, model, take))
        left += _ask(asker, place, other_answers(store.read_run(place.folder)), deadline)
    whose: dict[Arm, str] = {"candidate": "the candidate's", "oracle": "the oracle's own"}
    for arm, name in whose.items():
        if count := left[arm]:
            say(f"{count} of {name} answers were not sent back to the oracle: second_look_s was over")


def _ask(asker: Asker, place: store.Store, parts: dict[str, list[Question]], deadline: float) -> Counter[Arm]:
    """Ask for the parts that are not on disk and put them there; returns how many of each arm's did not fit."""
    wanted = {name: questions for name, questions in parts.items() if not place.has_part(name)}
    rows = asker.answers(_ordered(wanted), deadline)
    told = {(row.arm, row.place, row.token_ids): row for row in rows}
    left: Counter[Arm] = Counter()
    for name, questions in wanted.items():
        answered = []
        for one in questions:
            opinion = told.get((one.arm, one.place, one.output))
            left[one.arm] += opinion is None
            if opinion is None and one.arm == "candidate":
                opinion = row(one, (), NOT_ASKED)
            answered += [] if opinion is None else [opinion]
        place.write_part(name, ForcedRow, answered)
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


def _ordered(parts: dict[str, list[Question]]) -> list[Question]:
    """In turns; what is beyond OWN_FIRST of the oracle's own comes last, in turns too."""
    first: list[Question] = []
    last: list[Question] = []
    own = 0
    for _, question in _in_turns(parts):
        own += question.arm == "oracle"
        (last if question.arm == "oracle" and own > OWN_FIRST else first).append(question)
    return first + last


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
