"""6 Both arms' greedy ids at one concurrency -> what each sequence is, and what it rests on. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gate.observe.rows import MarginRow, RequestRow
from gate.observe.tokenrows import ForcedRow, Place, SequenceRow
from gate.report.model import Divergence, Noise, OwnSpread
from gate.tokens.first_divergence import first_divergence
from gate.tokens.foreign import foreign
from gate.tokens.marks import Bounds, Mark, bounds, mark
from gate.tokens.near_tie import Kind, classify
from gate.tokens.noise import noise
from gate.tokens.own import Own, own, usable

Ids = tuple[int, ...]
Opinions = Mapping[tuple[str, Place, Ids], ForcedRow]

NOT_ASKED = "it was not asked: second_look_s was over"
"""Stands as the error of an opinion that the time did not suffice for."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One prompt, and what both arms answered."""

    place: Place
    expected: int
    """Ids that were asked for; any other number cannot be compared."""
    candidate: Ids | None
    oracle: tuple[Ids | None, ...]
    """One per run of this prompt at this concurrency, the first one first."""

    @property
    def comparable(self) -> bool:
        """Both arms answered with as many ids as were asked for; of the oracle's runs the first counts."""
        return self.candidate is not None and len(self.candidate) == self.expected and bool(self.takes)

    @property
    def takes(self) -> tuple[Ids, ...]:
        """The oracle's whole answers; none where its first run has none."""
        whole = tuple(ids for ids in self.oracle if ids is not None and len(ids) == self.expected)
        return whole if whole and self.oracle[0] == whole[0] else ()

    @property
    def agrees(self) -> bool | None:
        """Whether the oracle's runs are equal; None where there is only one."""
        return None if len(self.takes) < 2 else len(set(self.takes)) == 1


@dataclass(frozen=True, slots=True)
class Comparison:
    sequences: int
    """Prompts of which both arms' answers could be compared."""
    exact: int
    """Equal to one of the oracle's own runs, id by id."""
    near_tie: int
    undecided: int
    diverged: int
    unjudged: int
    unjudged_why: str | None
    """What the oracle answered instead of an opinion, of the first that has none; None where it was not asked."""
    uncompared: int
    """Pairs in which an arm returned no ids, or ids of another length."""
    max_margin_nats: float | None
    near_nats: float
    """Largest bound that was applied."""
    wrong_nats: float | None
    """Above it a gap is wrong; None: no gap is, the oracle's own ids are outside its own top."""
    repeated: int
    """Prompts that the oracle ran more than once."""
    agreeing: int
    """Of them, those in which all its runs are equal."""
    own: Own
    """At these prompts. The bounds rest on the oracle's own answers of the whole run."""
    noise: Noise | None
    """Of all sequences of which there are gaps, beside the oracle's own of the whole run."""
    run_noise: Noise | None
    """The same of all levels together."""
    divergences: tuple[Divergence, ...]


def pair_up(
    candidate: Iterable[RequestRow], oracle: Iterable[RequestRow], repeats: Iterable[SequenceRow] = ()
) -> tuple[Pair, ...]:
    """Requests of timed legs with equal repetition, index and prompt, and the oracle's untimed runs of them."""
    theirs = {(row.concurrency, row.repetition, row.index): row for row in oracle}
    again: dict[Place, list[SequenceRow]] = {}
    for row in sorted(repeats, key=lambda row: row.take):
        again.setdefault(row.place, []).append(row)
    pairs = []
    for ours in candidate:
        other = theirs.get((ours.concurrency, ours.repetition, ours.index))
        if other is None or other.prompt_sha256 != ours.prompt_sha256:
            continue
        place = Place(kind="leg", concurrency=ours.concurrency, repetition=ours.repetition, index=ours.index)
        takes = [row.token_ids for row in again.get(place, ()) if row.prompt_sha256 == ours.prompt_sha256]
        answers = tuple(None if ids is None else tuple(ids) for ids in (ours.token_ids, other.token_ids, *takes))
        pairs.append(Pair(place, ours.expected_output_tokens, answers[0], answers[1:]))
    return tuple(pairs)


def differs(pair: Pair) -> bool:
    """Comparable, and equal to none of the oracle's runs."""
    return pair.comparable and pair.candidate not in pair.takes


def divergence(pair: Pair) -> Divergence | None:
    """Where it parts from the oracle's run that it follows longest, not yet judged; None when it equals one.

    Raises:
        ValueError: not comparable.
    """
    if not pair.comparable or pair.candidate is None:
        raise ValueError("an answer without token ids, or with another number of them than was asked for")
    if pair.candidate in pair.takes:
        return None
    parted = [(at, take) for take in pair.takes if (at := first_divergence(pair.candidate, take)) is not None]
    position, take = max(parted, key=lambda item: item[0])
    return Divergence(
        kind=pair.place.kind,
        concurrency=pair.place.concurrency,
        repetition=pair.place.repetition,
        index=pair.place.index,
        position=position,
        candidate_id=pair.candidate[position],
        oracle_id=take[position],
        margin_nats=None,
    )


def noise_of(pairs: Iterable[Pair], forced: Iterable[ForcedRow]) -> Noise | None:
    """Of the candidate's answers in these pairs, beside all of the oracle's own that it was asked about."""
    opinions = _by_answer(forced)
    return noise(_gaps([pair for pair in pairs if pair.comparable], opinions), _own_rows(opinions))


def compare(
    pairs: Sequence[Pair],
    forced: Iterable[ForcedRow],
    floor_nats: float,
    margins: Iterable[MarginRow] = (),
    run_noise: Noise | None = None,
) -> Comparison:
    """Count what the pairs of one concurrency are.

    forced: the oracle's opinions of both arms' ids in the whole run. Of the candidate's those of other prompts are left
    out; the oracle's own are taken together, so that no level rests on the few that were asked there. margins: of runs
    that have no such opinions. floor_nats: near_tie_nats of the recipe. run_noise: noise_of all levels.
    """
    places = {pair.place for pair in pairs}
    every = _by_answer(forced)
    opinions = {key: row for key, row in every.items() if row.place in places}
    spread = own([row for (arm, _, _), row in opinions.items() if arm == "oracle"])
    theirs = _own_rows(every)
    whole = own(theirs)
    known = {(m.concurrency, m.repetition, m.index, m.position, m.candidate_id, m.oracle_id): m for m in margins}
    comparable = [pair for pair in pairs if pair.comparable]
    kinds: list[Kind] = []
    found: list[Divergence] = []
    limits = [bounds(floor_nats, whole.largest_nats, whole.outside_top, pair.agrees) for pair in comparable]
    for pair, limit in zip(comparable, limits, strict=True):
        split = divergence(pair)
        if split is None:
            continue
        opinion = opinions.get(("candidate", pair.place, pair.candidate or ()))
        if opinion is not None and usable(opinion):
            judged = _by_gaps(split, opinion, limit)
        else:
            key = (split.concurrency, split.repetition, split.index, split.position)
            judged = _by_margin(split, known.get((*key, split.candidate_id, split.oracle_id)), floor_nats)
        if judged.judged == Kind.DIVERGED:
            at = judged.position if judged.wrong_position is None else judged.wrong_position
            judged = judged.model_copy(update={"foreign_index": _foreign(pair, at, comparable)})
        kinds.append(Kind(judged.judged))
        found.append(judged)
    worst = [d.margin_nats if d.worst_nats is None else d.worst_nats for d in found]
    wrong = max((limit.wrong_nats for limit in limits), default=floor_nats)
    return Comparison(
        sequences=len(comparable),
        exact=len(comparable) - len(found),
        near_tie=kinds.count(Kind.NEAR_TIE),
        undecided=kinds.count(Kind.UNDECIDED),
        diverged=kinds.count(Kind.DIVERGED),
        unjudged=kinds.count(Kind.UNJUDGED),
        unjudged_why=next((row.error for row in opinions.values() if row.arm == "candidate" and row.error), None),
        uncompared=len(pairs) - len(comparable),
        max_margin_nats=max((nats for nats in worst if nats is not None), default=None),
        near_nats=max((limit.near_nats for limit in limits), default=floor_nats),
        wrong_nats=None if whole.outside_top else wrong,
        repeated=sum(pair.agrees is not None for pair in comparable),
        agreeing=sum(pair.agrees is True for pair in comparable),
        own=spread,
        noise=noise(_gaps(comparable, opinions), theirs),
        run_noise=run_noise,
        divergences=tuple(found),
    )


def _by_answer(forced: Iterable[ForcedRow]) -> Opinions:
    return {(row.arm, row.place, row.token_ids): row for row in forced}


def _own_rows(opinions: Opinions) -> list[ForcedRow]:
    return [row for (arm, _, _), row in opinions.items() if arm == "oracle" and usable(row)]


def _gaps(pairs: Sequence[Pair], opinions: Opinions) -> list[ForcedRow]:
    """One a sequence of the candidate; of one that equals the oracle's, the opinion of the oracle's."""
    found = (
        opinions.get(("candidate" if differs(pair) else "oracle", pair.place, pair.candidate or ())) for pair in pairs
    )
    return [row for row in found if row is not None and usable(row)]


def _by_gaps(split: Divergence, opinion: ForcedRow, limits: Bounds) -> Divergence:
    """Every position by its own gap: the sequence is what its worst position is."""
    marks = [mark(gap, limits) for gap in opinion.gaps_nats]
    figures = [gap for gap in opinion.gaps_nats if gap is not None]
    first_wrong = marks.index(Mark.WRONG) if Mark.WRONG in marks else None
    kind = Kind.DIVERGED if first_wrong is not None else Kind.NEAR_TIE
    if first_wrong is None and Mark.UNDECIDED in marks:
        kind = Kind.UNDECIDED
    return split.model_copy(
        update={
            "judged": kind.value,
            "margin_nats": opinion.gaps_nats[split.position],
            "worst_nats": max(figures, default=None),
            "wrong_position": first_wrong,
            "wrong_positions": marks.count(Mark.WRONG),
            "outside_top": any(opinion.outside_top),
        }
    )


def _by_margin(split: Divergence, margin: MarginRow | None, floor_nats: float) -> Divergence:
    """By its first difference alone: an older run, or no opinion at all."""
    return split.model_copy(
        update={
            "judged": classify(margin, floor_nats).value,
            "margin_nats": None if margin is None else margin.margin_nats,
            "outside_top": margin is not None and margin.outside_top,
        }
    )


def _foreign(pair: Pair, position: int, pairs: Sequence[Pair]) -> int | None:
    others: Mapping[int, Ids] = {
        other.place.index: other.takes[0]
        for other in pairs
        if other.place.repetition == pair.place.repetition and other.place != pair.place
    }
    return foreign(pair.candidate or (), position, pair.takes, others)


def own_spread(found: Comparison) -> OwnSpread | None:
    """What the oracle does by its own measure, for the report; None where nobody asked it."""
    if not found.repeated and not found.own.sequences:
        return None
    return OwnSpread(
        repeated=found.repeated,
        agreeing=found.agreeing,
        sequences=found.own.sequences,
        positions=found.own.positions,
        largest_nats=found.own.largest_nats,
        outside_top=found.own.outside_top,
        undecided=found.own.undecided,
    )
