"""The run's folder: whole files or none, the marker last, and one readable line for whatever is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gate import recipe as recipes
from gate.errors import StorageError
from gate.observe import digests, parquet, store
from gate.observe.rows import Identity, LegRow, MarginRow, RequestRow, TelemetryRow
from gate.observe.tokenrows import ForcedRow
from gate.plan import ArmPlan, Plan, Vocabulary, make_plan
from tests.gate.announcing import announce_as_it_is


def a_plan() -> Plan:
    def arm(name: Any) -> ArmPlan:
        return ArmPlan(
            arm=name, kind="url", argv=None, env={}, url="http://x", model="m", checkpoint="/m", checkpoint_digest=None
        )

    data = {
        "schema_version": 1,
        "name": "small",
        "checkpoint": {"path": "m"},
        "workload": {"prompt_tokens": 8, "output_tokens": 4},
        "protocol": {"concurrency": [1], "repetitions": 2},
    }
    recipe = recipes.parse(data, "t")
    return make_plan(
        recipe, coin="oracle", seed=3, candidate=arm("candidate"), oracle=arm("oracle"), vocabulary=Vocabulary(size=99)
    )


def a_leg(plan: Plan, order: int, **changes: Any) -> LegRow:
    leg = plan.legs[order]
    fields: dict[str, Any] = {
        "leg_id": leg.leg_id,
        "order": order,
        "arm": leg.arm,
        "concurrency": 1,
        "repetition": leg.repetition,
        "started_at": "2026-01-01T00:00:00.000+00:00",
        "start_ns": 1,
        "end_ns": 2,
        "requests": 1,
        "failed": 0,
        "server_start_id": "1@1",
        "identity_before": "a",
        "identity_after": "a",
        "lock_held": True,
    }
    return LegRow(**(fields | changes))


def a_request(leg: LegRow, **changes: Any) -> RequestRow:
    fields: dict[str, Any] = {
        "leg_id": leg.leg_id,
        "arm": leg.arm,
        "concurrency": 1,
        "repetition": leg.repetition,
        "index": 0,
        "prompt_sha256": "0" * 64,
        "expected_prompt_tokens": 8,
        "expected_output_tokens": 4,
        "sent_ns": 1,
    }
    return RequestRow(**(fields | changes))


@pytest.fixture
def run(tmp_path: Path) -> tuple[store.Store, Plan]:
    plan, place = a_plan(), store.Store(tmp_path / "host" / "run")
    place.create(
        plan, store.RunFile(run_id="run", host="host", started_at="2026-01-01T00:00:00+00:00", machine={"cpu": "x"})
    )
    return place, plan


def test_what_was_written_is_read(run: tuple[store.Store, Plan]) -> None:
    place, plan = run
    leg = a_leg(plan, 0, client_cpu_s=0.5)
    request = a_request(leg, token_times_ns=(3, 4), tokens_per_event=(1, 1), token_ids=(5, 6), first_token_ns=3)
    sample = TelemetryRow(leg_id=leg.leg_id, t_ns=1, source="nvml", name="power_w", value=None)
    one = Identity(
        arm="oracle", version="1", model="m", max_model_len=9, prefix_caching=False, kv_cache_dtype=None, digest="a"
    )
    place.append_identities([one, one])
    place.append_identities([one])
    place.append_leg(leg, [request], [sample])
    place.write_rows(
        "margins",
        MarginRow,
        [MarginRow(concurrency=1, repetition=0, index=0, position=2, candidate_id=1, oracle_id=2, margin_nats=None)],
    )
    where = {"kind": "leg", "concurrency": 1, "repetition": 0, "index": 0}
    forced = ForcedRow(**where, arm="oracle", token_ids=(1, 2), gaps_nats=(0.5, None), outside_top=(False, True))
    assert not place.has_part("forced-oracle-c1")
    place.write_part("forced-oracle-c1", ForcedRow, [forced])
    assert place.has_part("forced-oracle-c1")
    data = store.read_run(place.folder)
    assert (data.plan, data.legs, data.requests, data.telemetry) == (plan, (leg,), (request,), (sample,))
    assert (data.identities, len(data.margins), data.machine) == ((one,), 1, {"cpu": "x"})
    assert (data.forced, data.repeats) == ((forced,), ())
    assert data.finished_at is None
    place.complete("2026-01-01T01:00:00+00:00", "PASS", 0)
    assert store.read_run(place.folder).finished_at == "2026-01-01T01:00:00+00:00"


def test_leg_without_its_own_row_does_not_count(run: tuple[store.Store, Plan]) -> None:
    place, plan = run
    leg = a_leg(plan, 0)
    place.append_leg(leg, [a_request(leg)], [])
    (place.folder / "legs" / leg.leg_id / "legs.parquet").unlink()
    assert store.read_run(place.folder).legs == ()


def test_existing_folder_is_never_reused(run: tuple[store.Store, Plan]) -> None:
    place, plan = run
    with pytest.raises(StorageError, match=r"cannot write .*File exists"):
        place.create(plan, store.RunFile(run_id="run", host="host", started_at="2026-01-01"))


def test_full_disk_leaves_the_old_file_whole(run: tuple[store.Store, Plan], monkeypatch: pytest.MonkeyPatch) -> None:
    place, _ = run
    before = (place.folder / "run.json").read_bytes()

    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store.os, "fsync", full)
    with pytest.raises(StorageError, match=r"cannot write .*run.json: No space left on device; free space or choose"):
        place.write_run(store.RunFile(run_id="other", host="host", started_at="2026-01-01"))
    assert (place.folder / "run.json").read_bytes() == before


def test_an_interrupt_leaves_nothing_beside_the_old_file(
    run: tuple[store.Store, Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, _ = run
    place.write_text("report.md", "before")
    before = {path.name: path.read_bytes() for path in place.folder.iterdir() if path.is_file()}

    def interrupted(_fd: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(store.os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        place.write_text("report.md", "after")
    assert {path.name: path.read_bytes() for path in place.folder.iterdir() if path.is_file()} == before


def damage(place: store.Store, plan: Plan, kind: str) -> None:
    leg = a_leg(plan, 0)
    place.append_leg(leg, [a_request(leg)], [])
    requests = place.folder / "legs" / leg.leg_id / "requests.parquet"
    if kind == "no plan":
        (place.folder / "plan.json").unlink()
    elif kind == "edited plan":
        data = json.loads((place.folder / "plan.json").read_text())
        data["seed"] += 1
        (place.folder / "plan.json").write_text(json.dumps(data))
    elif kind == "other version":
        (place.folder / "run.json").write_text('{"run_id": "a", "colour": 1}')
    elif kind == "newer schema":
        data = json.loads((place.folder / "run.json").read_text())
        (place.folder / "run.json").write_text(json.dumps(data | {"schema_version": 2}))
    elif kind == "older schema":
        data = json.loads((place.folder / "plan.json").read_text())
        (place.folder / "plan.json").write_text(json.dumps(data | {"schema_version": 0}))
    elif kind == "cut parquet":
        requests.write_bytes(requests.read_bytes()[:-20])
    elif kind == "foreign parquet":
        requests.write_bytes(parquet.to_bytes(LegRow, [leg]))
    elif kind == "missing parquet":
        requests.unlink()
    announce_as_it_is(place.folder)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("no plan", "is not a run; expected a folder with plan.json"),
        ("edited plan", "does not hash to its own plan_id"),
        ("other version", r"run.json cannot be read: \w+: "),
        ("newer schema", "run.json has schema version 2; expected 1, which this gate reads; read it with the version"),
        ("older schema", "plan.json has schema version 0; expected 1"),
        ("cut parquet", "cannot be read as parquet"),
        ("foreign parquet", "holds LegRow records; expected RequestRow"),
        ("missing parquet", "no file"),
    ],
)
def test_damage_is_told_in_one_line(run: tuple[store.Store, Plan], kind: str, said: str) -> None:
    damage(*run, kind)
    with pytest.raises(StorageError, match=said) as caught:
        store.read_run(run[0].folder)
    assert "\n" not in str(caught.value)


def test_an_unfinished_run_s_records_cannot_be_edited_unnoticed(run: tuple[store.Store, Plan]) -> None:
    place, plan = run
    for order in range(2):
        place.append_leg(a_leg(plan, order), [a_request(a_leg(plan, order))], [])
    for name in ("run.json", f"legs/{plan.legs[0].leg_id}/telemetry.parquet"):
        path = place.folder / name
        before = path.read_bytes()
        path.write_bytes(before + b" ")
        with pytest.raises(StorageError, match=f"{path.name} was changed after it was measured"):
            store.read_run(place.folder)
        path.write_bytes(before)
    (place.folder / "margins.parquet").write_bytes(parquet.to_bytes(MarginRow, []))
    with pytest.raises(StorageError, match=r"margins.parquet was added after"):
        store.read_run(place.folder)
    (place.folder / "margins.parquet").unlink()
    (place.folder / "legs" / plan.legs[0].leg_id / "legs.parquet").unlink()
    with pytest.raises(StorageError, match=r"legs.parquet is missing after"):
        store.read_run(place.folder)


def test_a_kill_between_note_and_file_is_no_change(run: tuple[store.Store, Plan]) -> None:
    place, plan = run
    digests.note(place.folder, "run.json", b"never written")
    with (place.folder / digests.RECORDS).open("ab") as file:
        file.write(b"0123 cut o")
    leg = a_leg(plan, 0)
    place.append_leg(leg, [a_request(leg)], [])
    assert [row.leg_id for row in store.read_run(place.folder).legs] == [leg.leg_id]


def test_an_edited_marker_is_found(run: tuple[store.Store, Plan]) -> None:
    place, _ = run
    place.complete("2026-01-01T01:00:00+00:00", "PASS", 0)
    path = place.folder / "complete.json"
    whole = path.read_text()
    path.write_text(whole.replace("T01:00", "T02:00"))
    with pytest.raises(StorageError, match=r"complete.json was changed after the run was finished"):
        store.read_run(place.folder)
    path.write_text(whole.replace('"sha256"', '"sha257"'))
    with pytest.raises(StorageError, match=r"complete.json cannot be read: sha256: Field required"):
        store.read_run(place.folder)


def test_a_cut_never_leaves_a_plan_without_its_run(
    run: tuple[store.Store, Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """plan.json is what makes a folder a run, so that it comes last."""
    place, plan = run
    about, broken = store.read_run_file(place.folder), tmp_path / "host" / "other"
    monkeypatch.setattr(store.Store, "write_run", lambda *_: pytest.fail("cut here"))
    with pytest.raises(pytest.fail.Exception):
        store.Store(broken).create(plan, about)
    assert not (broken / "plan.json").exists()
    monkeypatch.undo()
    store.Store(broken).create(plan, about)  # a run of the same second takes its place
    assert store.read_run(broken).plan == plan


INTS = st.integers(-(2**62), 2**62)
REQUESTS = st.builds(
    a_request,
    st.just(a_leg(a_plan(), 0)),
    sent_ns=INTS,
    end_ns=st.none() | INTS,
    token_times_ns=st.lists(INTS, max_size=4).map(tuple),
    token_ids=st.none() | st.lists(INTS, max_size=4).map(tuple),
    error=st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    saw_done=st.booleans(),
)


@given(st.lists(REQUESTS, max_size=4))
@settings(max_examples=40)
def test_any_rows_survive_parquet(tmp_path_factory: pytest.TempPathFactory, rows: list[RequestRow]) -> None:
    path = tmp_path_factory.mktemp("rows") / "x.parquet"
    path.write_bytes(parquet.to_bytes(RequestRow, rows))
    assert parquet.read(RequestRow, path) == tuple(rows)


def test_none_is_not_an_empty_list_or_zero() -> None:
    schema = parquet.schema(RequestRow)
    assert schema.field("token_ids").nullable
    assert not schema.field("sent_ns").nullable
    assert str(schema.field("token_times_ns").type).startswith("list<")


def test_a_leg_written_before_reads_had_the_kernels_stamps_says_nothing_of_them(tmp_path: Path) -> None:
    leg, path = a_leg(a_plan(), 0), tmp_path / "legs.parquet"
    path.write_bytes(parquet.to_bytes(LegRow, [leg.model_copy(update={"client_stamps": "kernel"})]))
    assert [row.client_stamps for row in parquet.read(LegRow, path)] == ["kernel"]
    pq.write_table(pq.read_table(path).drop_columns(["client_stamps"]), path)
    assert parquet.read(LegRow, path) == (leg,)
    assert leg.client_stamps is None
