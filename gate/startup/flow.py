"""0 `gate startup`: start each arm a few times, in turns, and judge how long it takes to the first token."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from gate import messages
from gate.arm import Server
from gate.arm.pair import Pair
from gate.client import drive, openai
from gate.errors import VOID, UsageError
from gate.inputs import Asked, plan_for
from gate.lock import Lock, hold
from gate.observe import ended, fresh, pagecache, parquet, seals
from gate.observe.documents import read_model
from gate.observe.kinds import PLANS, RECORDS, REPORTS, Kind
from gate.observe.machine import host, machine
from gate.observe.pagecache import Residency
from gate.observe.rows import Arm, CacheState, RequestRow, StartRow
from gate.observe.server import served_model
from gate.observe.store import Store
from gate.plan import Plan, PlannedLeg, leg_prompts
from gate.preflight import preflight
from gate.progress import Ui
from gate.runs import require_records
from gate.startup import report
from gate.startup.judge import judge
from gate.startup.record import StartupPlan

OUTPUT_TOKENS = 1
FOLDER: Kind = "startup"


def run(asked: Asked, wanted: CacheState | None, out: Path, ui: Ui) -> int:
    """
    Returns the exit code, which is the verdict. What was measured before an arm died, or Ctrl-C, is reported.

    wanted: cold or warm, of the checkpoint's files before each spawn; None leaves the page cache as it is found.
    Raises GateError for what keeps it from starting, and ArmError for a server that does not get ready.
    """
    plan = plan_for(dataclasses.replace(asked, residency="alternate", concurrency="1"))
    for arm in (plan.candidate, plan.oracle):
        if arm.argv is None:
            raise UsageError(
                f"the {arm.arm} is an attached URL", hint="name a command that starts it, ending in {port}"
            )
    ui.say(messages.planned(plan.plan_id, len(plan.legs), plan.coin))
    with hold(plan) as lock:
        findings = preflight(plan, out)
        started, folder = fresh.folder(out / host() / FOLDER, f"{plan.recipe.name}-{wanted or 'as-found'}")
        place = Store(folder)
        place.logs.mkdir()
        about = StartupPlan(
            name=folder.name,
            host=host(),
            started_at=started.isoformat(timespec="seconds"),
            machine=machine(),
            wanted_cache=wanted,
            plan=plan,
            findings=findings,
            sealed=True,
        )
        place.write_text(PLANS[FOLDER], about.model_dump_json(indent=1) + "\n")
        ui.begun(folder.name, findings)
        try:
            with ended.noted(place):
                measure(plan, wanted, place, lock, ui)
        finally:  # an arm that died, or Ctrl-C: what was measured is reported, and the cause goes its way
            code = conclude(place) if (place.folder / RECORDS[FOLDER]).is_file() else VOID
    return code


def measure(plan: Plan, wanted: CacheState | None, place: Store, lock: Lock, ui: Ui) -> None:
    """One start for each planned leg, its record on disk before the next."""
    rows: list[StartRow] = []
    seen: list[StartRow] = []
    answers: list[RequestRow] = []
    with Pair(
        plan,
        place.logs,
        ui.say,
        lock.descriptors(),
        note_start=seen.append,
        on_ready=lambda arm, server: answers.append(_first_answer(plan, arm, server)),
    ) as pair:
        for leg in plan.legs:
            pair.stop_all()
            held = _prepare(plan, leg, wanted)
            ui.say(messages.start_of(leg.order, len(plan.legs), leg.arm, held.state, held.resident_bytes))
            pair.ready(leg)
            told = {"first_token_ns": answers[-1].first_token_ns, "error": answers[-1].error, "wanted_cache": wanted}
            rows.append(seen[-1].model_copy(update=told))
            place.write_rows("starts", StartRow, rows)


def conclude(place: Store) -> int:
    """From the records on disk; prints the table. Raises StorageError where there are none, or they cannot be read."""
    about = read_model(StartupPlan, place.folder / PLANS[FOLDER])
    seals.check_records(place.folder)
    require_records(place.folder)
    starts = parquet.read(StartRow, place.folder / RECORDS[FOLDER])
    made = judge(about, starts, about.findings, ended.why(place.folder))
    place.write_text(REPORTS[FOLDER], made.model_dump_json(indent=1) + "\n")
    place.write_text("startup.md", report.markdown(made))
    place.seal_report()
    report.show(made, place.folder)
    return made.exit_code


def _prepare(plan: Plan, leg: PlannedLeg, wanted: CacheState | None) -> Residency:
    files = pagecache.files_of(Path(plan.arm(leg.arm).checkpoint))
    change = {"cold": pagecache.drop, "warm": pagecache.read_in}.get(wanted or "", pagecache.residency)
    return change(files)


def _first_answer(plan: Plan, arm: Arm, server: Server) -> RequestRow:
    """One request with a prompt of the recipe's length, at once; the same prompt for both arms."""
    leg, planned = next(leg for leg in plan.legs if leg.arm == arm), plan.arm(arm).model
    spec = drive.LoadSpec(
        url=server.url,
        model=planned or served_model(server.url, planned),
        prompts=leg_prompts(plan, leg, "timed")[:1],
        output_tokens=OUTPUT_TOKENS,
        concurrency=1,
        timeout_s=plan.recipe.protocol.request_timeout_s,
    )
    (row,) = openai.to_rows(drive.run_leg(spec), spec, leg)
    return row
