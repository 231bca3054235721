"""After the legs: what is asked, of whom, in which order; a second look ends for both arms where its budget does."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from gate import forcing, margins
from gate import recipe as recipes
from gate.arm.fake import FakeServer
from gate.arm.fake_answer import generate
from gate.arm.fake_script import preset
from gate.forcing import Asker
from gate.observe import store
from gate.observe.rows import Arm, LegRow, RequestRow
from gate.observe.rundata import RunData
from gate.observe.tokenrows import Place, SequenceRow
from gate.plan import ArmPlan, Plan, Vocabulary, leg_prompts, make_plan
from gate.tokens.compare import NOT_ASKED, compare

OUTPUT = 6
SCRIPT = preset("instant")


def made_plan(**protocol: Any) -> Plan:
    def arm(name: Arm) -> ArmPlan:
        return ArmPlan(
            arm=name, kind="url", argv=None, env={}, url="http://x", model="", checkpoint="m", checkpoint_digest=None
        )

    recipe = recipes.parse(
        {
            "schema_version": 1,
            "name": "small",
            "checkpoint": {"path": "m"},
            "workload": {"prompt_tokens": 8, "output_tokens": OUTPUT},
            "protocol": {"concurrency": (1, 2), "repetitions": 2, **protocol},
        },
        "t",
    )
    return make_plan(
        recipe,
        coin="oracle",
        seed=0,
        candidate=arm("candidate"),
        oracle=arm("oracle"),
        vocabulary=Vocabulary(size=500),
    )


def answered(plan: Plan) -> tuple[RequestRow, ...]:
    return tuple(
        RequestRow(
            leg_id=leg.leg_id,
            arm=leg.arm,
            concurrency=leg.concurrency,
            repetition=leg.repetition,
            index=prompt.index,
            prompt_sha256=prompt.sha256,
            expected_prompt_tokens=8,
            expected_output_tokens=OUTPUT,
            sent_ns=0,
            token_ids=tuple(generate(SCRIPT, prompt.token_ids, OUTPUT)),
        )
        for leg in plan.legs
        for prompt in leg_prompts(plan, leg, "timed")
    )


def made_run(**protocol: Any) -> RunData:
    plan = made_plan(**protocol)
    return RunData(plan=plan, run_id="r", host="h", started_at="x", requests=answered(plan))


def changed(run: RunData, arm: Arm, concurrency: int, repetition: int, index: int, **fields: Any) -> RunData:
    at = (arm, concurrency, repetition, index)
    rows = tuple(
        row.model_copy(update=fields) if (row.arm, row.concurrency, row.repetition, row.index) == at else row
        for row in run.requests
    )
    return dataclasses.replace(run, requests=rows)


def on_disk(folder: Path, run: RunData) -> store.Store:
    place = store.Store(folder / "run")
    place.create(run.plan, store.RunFile(run_id="r", host="h", started_at="2026-01-01T00:00:00Z"))
    for leg in run.plan.legs:
        rows = [row for row in run.requests if row.leg_id == leg.leg_id]
        row = LegRow(
            leg_id=leg.leg_id,
            order=leg.order,
            arm=leg.arm,
            concurrency=leg.concurrency,
            repetition=leg.repetition,
            started_at="x",
            start_ns=0,
            end_ns=1,
            requests=len(rows),
            failed=0,
            server_start_id="s",
            identity_before="i",
            identity_after="i",
            lock_held=True,
        )
        place.append_leg(row, rows, [])
    return place


WRONG = (1, 2, 3, 4, 5, 6)


def test_equal_tokens_need_no_question() -> None:
    assert margins.to_judge(made_run()) == {}


def test_the_whole_answer_goes_back_with_its_own_prompt() -> None:
    run = changed(made_run(), "candidate", 2, 1, 3, token_ids=WRONG)
    ((name, (question,)),) = margins.to_judge(run).items()
    leg = next(leg for leg in run.plan.legs if (leg.concurrency, leg.repetition) == (2, 1))
    assert name == "forced-candidate-c2-r1"
    assert question.prompt == leg_prompts(run.plan, leg, "timed")[3].token_ids
    assert (question.output, question.arm, question.place.index) == (WRONG, "candidate", 3)


@pytest.mark.parametrize("fields", [{"token_ids": None}, {"token_ids": (1, 9)}, {"prompt_sha256": "other"}])
def test_what_cannot_be_compared_is_not_asked(fields: dict[str, Any]) -> None:
    assert margins.to_judge(changed(made_run(), "candidate", 1, 0, 0, **fields)) == {}


def test_the_oracles_own_answers_are_those_of_every_level_and_repetition() -> None:
    found = margins.own_answers(made_run())
    assert {name: len(questions) for name, questions in found.items()} == {
        "forced-oracle-c1-r0": 2,
        "forced-oracle-c1-r1": 2,
        "forced-oracle-c2-r0": 4,
        "forced-oracle-c2-r1": 4,
    }
    assert margins.other_answers(made_run()) == {}


def test_a_request_that_the_oracle_did_not_answer_has_no_own_answer() -> None:
    found = margins.own_answers(changed(made_run(), "oracle", 1, 0, 0, token_ids=None))
    assert [question.place.index for question in found["forced-oracle-c1-r0"]] == [1]


def repeat(run: RunData, concurrency: int, index: int, token_ids: tuple[int, ...]) -> SequenceRow:
    """What the oracle answered when a prompt of the first repetition came again."""
    at = ("oracle", concurrency, 0, index)
    timed = next(row for row in run.requests if (row.arm, row.concurrency, row.repetition, row.index) == at)
    return margins._untimed(timed.model_copy(update={"token_ids": token_ids}), 1)


def test_its_own_answers_are_the_timed_ones_and_what_a_repeat_brought_comes_apart() -> None:
    run = made_run()
    timed = margins.own_answers(run)
    run = dataclasses.replace(run, repeats=(repeat(run, 1, 0, WRONG),))
    assert margins.own_answers(run) == timed
    ((name, (other,)),) = margins.other_answers(run).items()
    assert (name, other.arm, other.place.index, other.output) == ("forced-repeats-c1", "oracle", 0, WRONG)


def test_the_oracle_repeats_its_own_first_legs_and_only_those_that_were_measured(tmp_path: Path) -> None:
    read = store.read_run(on_disk(tmp_path, made_run()).folder)
    legs = margins._repeatable(read)
    assert sorted((leg.arm, leg.concurrency, leg.repetition) for leg in legs) == [("oracle", 1, 0), ("oracle", 2, 0)]
    left = dataclasses.replace(read, legs=tuple(row for row in read.legs if row.leg_id != legs[0].leg_id))
    assert margins._repeatable(left) == legs[1:]


def test_a_repeat_that_fails_says_why() -> None:
    plan = made_plan()
    leg = next(leg for leg in plan.legs if (leg.arm, leg.concurrency) == ("oracle", 1))
    with FakeServer(preset("instant", fault="http-500")) as fake:
        rows = margins.again(plan, leg, fake.url, "fake", 1)
    assert len(rows) == leg.requests
    assert all("500" in (row.error or "") for row in rows)


def test_look_again_asks_everything_once_and_puts_it_on_disk(tmp_path: Path) -> None:
    run = changed(made_run(oracle_repeats=2), "candidate", 1, 1, 0, token_ids=WRONG)
    place, said = on_disk(tmp_path, run), []
    with FakeServer(SCRIPT) as fake:
        margins.look_again(place, fake.url, "fake", said.append)
        asked = len(fake.requests)
        margins.look_again(place, fake.url, "fake", said.append)  # as a resumed run does
        assert len(fake.requests) == asked
    read = store.read_run(place.folder)
    assert asked == 1 + 2 * (2 + 4) + 2 * (2 + 4)
    assert [row.take for row in read.repeats].count(2) == 6
    assert all(row.error is None for row in (*read.repeats, *read.forced))
    assert sorted((row.arm, len(row.gaps_nats)) for row in read.forced) == [("candidate", 6), *[("oracle", 6)] * 12]
    assert said == []


def test_an_oracle_that_disagrees_with_itself_has_each_answer_judged(tmp_path: Path) -> None:
    run = changed(made_run(), "candidate", 1, 1, 0, token_ids=WRONG)
    place = on_disk(tmp_path, run)
    with FakeServer(preset("flaky", token_ms=0.0)) as fake:
        margins.look_again(place, fake.url, "fake", lambda _: None)
    read = store.read_run(place.folder)
    own = [row for row in read.forced if row.arm == "oracle"]
    assert len(own) == 12 + sum(row.token_ids != generated(read, row) for row in read.repeats) > 12
    assert max(gap or 0 for row in own for gap in row.gaps_nats) == pytest.approx(0.05)


def generated(run: RunData, row: Any) -> tuple[int, ...] | None:
    place = (row.concurrency, row.repetition, row.index)
    return next(
        one.token_ids
        for one in run.requests
        if one.arm == "oracle" and (one.concurrency, one.repetition, one.index) == place
    )


def all_wrong(run: RunData) -> RunData:
    """Every answer of the candidate differs."""
    rows = tuple(row.model_copy(update={"token_ids": WRONG}) if row.arm == "candidate" else row for row in run.requests)
    return dataclasses.replace(run, requests=rows)


def test_without_time_nothing_is_asked_and_the_candidates_answers_say_why(tmp_path: Path) -> None:
    place, said = on_disk(tmp_path, changed(made_run(second_look_s=0.0), "candidate", 1, 1, 0, token_ids=WRONG)), []
    with FakeServer(SCRIPT) as fake:
        margins.look_again(place, fake.url, "fake", said.append)
        assert fake.requests == []
    read = store.read_run(place.folder)
    assert [(row.arm, row.error) for row in read.forced] == [("candidate", NOT_ASKED)]
    assert read.repeats == ()
    assert said == [
        "1 of the candidate's answers were not sent back to the oracle: second_look_s was over",
        "12 of the oracle's own answers were not sent back to the oracle: second_look_s was over",
    ]
    found = compare([pair for pair in margins.pairs(read) if pair.place.concurrency == 1], read.forced, 0.25)
    assert (found.unjudged, found.unjudged_why) == (1, NOT_ASKED)


def test_what_the_repeats_brought_and_was_not_asked_is_counted_too(tmp_path: Path) -> None:
    run = made_run(second_look_s=0.0)
    place, said = on_disk(tmp_path, run), list[str]()
    place.write_part("repeats-c1-t1", SequenceRow, [repeat(run, 1, 0, WRONG)])
    with FakeServer(SCRIPT) as fake:
        margins.look_again(place, fake.url, "fake", said.append)
    assert said == ["13 of the oracle's own answers were not sent back to the oracle: second_look_s was over"]


class Clock:
    """Stands still but for what is asked."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("budget_s", "told", "repeats"), [(8.0, 8, 0), (14.0, 14, 0), (24.0, 24, 0), (25.0, 24, 1), (28.0, 24, 2)]
)
def test_what_the_budget_ends_it_ends_for_both_arms_and_all_levels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget_s: float, told: int, repeats: int
) -> None:
    """An opinion takes a second, a repeat three. Twelve answers of each arm: 2 + 4 in each of two repetitions."""
    run = all_wrong(made_run(second_look_s=budget_s))
    place, clock, ask, again = on_disk(tmp_path, run), Clock(), Asker._ask, margins.again

    async def asked(asker: Asker, client: Any, question: forcing.Question) -> Any:
        clock.now += 1
        return await ask(asker, client, question)

    def repeated(*arguments: Any) -> Any:
        clock.now += 3
        return again(*arguments)

    monkeypatch.setattr(margins, "time", clock)
    monkeypatch.setattr(forcing, "time", clock)
    monkeypatch.setattr(Asker, "_ask", asked)
    monkeypatch.setattr(margins, "again", repeated)
    with FakeServer(SCRIPT) as fake:
        margins.look_again(place, fake.url, "fake", lambda _: None)
    read = store.read_run(place.folder)
    answered = [row for row in read.forced if row.error is None]
    assert len(answered) == told
    for concurrency in (1, 2):
        for repetition in (0, 1):
            mine = [row for row in answered if (row.concurrency, row.repetition) == (concurrency, repetition)]
            arms = [row.arm for row in mine]
            assert abs(arms.count("candidate") - arms.count("oracle")) <= 1
            assert len(mine) >= min(told // 4, 4)
    assert len({row.concurrency for row in read.repeats}) == repeats


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ({"prompt_logprobs": "missing"}, "no prompt_logprobs"),
        ({"prompt_logprobs": "short"}, "returned 13 prompt_logprobs"),
        ({"prompt_logprobs": "nan"}, "no completion"),
        ({"prompt_logprobs": "null"}, "gave no log-prob"),
        ({"prompt_logprobs": "other-ids"}, "gave no log-prob"),
        ({"fault": "http-500"}, "answered 500"),
    ],
)
def test_an_oracle_without_a_usable_opinion_says_why(script: dict[str, Any], why: str) -> None:
    run = changed(made_run(), "candidate", 1, 1, 0, token_ids=WRONG)
    ((question,),) = margins.to_judge(run).values()
    with FakeServer(preset("instant", **script)) as fake, Asker(fake.url, "fake", 10) as asker:
        (row,) = asker.answers([question])
    assert (row.gaps_nats, row.outside_top, row.best_ids) == ((), (), ())
    assert why in (row.error or "")


def test_absent_oracle_is_no_opinion() -> None:
    run = changed(made_run(), "candidate", 1, 1, 0, token_ids=WRONG)
    ((question,),) = margins.to_judge(run).values()
    with Asker("http://127.0.0.1:9", "fake", 1) as asker:
        assert asker.answers([question])[0].error


def test_beyond_enough_of_its_own_the_candidates_answers_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five of its own are enough here: one of each leg and one more; seven wait for the candidate's twelve."""
    monkeypatch.setattr(margins, "OWN_FIRST", 5)
    run = all_wrong(made_run())
    parts = {**margins.to_judge(run), **margins.own_answers(run)}
    order = margins._ordered(parts)
    assert "".join(one.arm[0] for one in order) == "cccc" + "oooo" + "cccc" + "o" + "cccc" + "o" * 7
    assert sorted(map(repr, order)) == sorted(repr(one) for questions in parts.values() for one in questions)
    early = [(one.place.concurrency, one.place.repetition) for one in order[4:8]]
    assert sorted(early) == [(1, 0), (1, 1), (2, 0), (2, 1)]


def test_128_of_its_own_are_enough() -> None:
    """As many as told engines apart in a run on an H200."""
    places = [Place(kind="leg", concurrency=1, repetition=0, index=index) for index in range(130)]
    arms: tuple[Arm, ...] = ("candidate", "oracle")
    order = margins._ordered({arm: [forcing.Question(place, arm, (), ()) for place in places] for arm in arms})
    assert "".join(one.arm[0] for one in order) == "co" * 128 + "cc" + "oo"
