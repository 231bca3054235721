"""6 `gate calibrate`: the A/A gates that are missing, then the band of all of them. Each gate is an ordinary run."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

from gate import messages
from gate.calibration import history, key
from gate.calibration.fit import fit
from gate.calibration.record import BandKey, BandRecord
from gate.calibration.table import text
from gate.errors import INTERRUPTED, PASS, PreconditionError, UsageError
from gate.inputs import Asked, plan_for, recipe_for
from gate.judge import judge
from gate.observe.machine import host, machine
from gate.observe.rows import Arm
from gate.progress import Ui
from gate.run import resume, run

FEWEST = 2
"""One gate alone knows nothing of the next."""


def calibrate(asked: Asked, arm: Arm, gates: int, out: Path, ui: Ui) -> int:
    """Run until there are `gates` complete A/A gates of `arm`, write the band, print it.

    An unfinished one is gone on with first. Returns 0, or 130 when interrupted: the same command goes on then.

    Raises:
        UsageError: fewer than two gates, or an attached server, which the gate cannot start twice.
        GateError: whatever keeps a run from starting.
    """
    if gates < FEWEST:
        raise UsageError(f"--gates {gates}", expected=f"{FEWEST} or more", hint="8 make a band that binds")
    both = replace(asked, both=arm)
    if "://" in (kind := recipe_for(both).oracle.kind).split(" ", 1)[0]:
        raise UsageError(f"the {arm} is {kind}", expected="a server that the gate can start once for each arm")
    plan, folder = plan_for(both), out / host()
    levels = set(plan.recipe.protocol.concurrency)
    wanted = key.key_of(plan, folder.name, machine(), None)
    told: set[str] = set()

    def say_once(text: str) -> None:
        if text not in told:
            told.add(text)
            ui.say(text)

    for _ in range(gates):
        # One of other levels would be gone on with, and not count.
        found = [
            gate
            for gate in history.gates(folder, wanted, say_once)
            if levels <= set(gate.run.plan.recipe.protocol.concurrency)
        ]
        complete = [gate for gate in found if gate.complete]
        if len(complete) >= gates:
            break
        ui.say(messages.calibrating(len(complete) + 1, gates))
        unfinished = [gate.folder for gate in found if not gate.complete]
        if (resume(unfinished[0], ui) if unfinished else run(both, out, ui)) == INTERRUPTED:
            return INTERRUPTED
    record = fit_history(plan.recipe.name, folder, wanted)
    path = history.path_of(folder, plan.recipe.name, record.key)
    history.write(record, path)
    print(text(record, path))
    return PASS


def fit_history(recipe: str, folder: Path, wanted: BandKey) -> BandRecord:
    """The band of all complete gates with the version of the oracle that most of them, of equals the last, ran.

    Raises:
        PreconditionError: there is none.
    """
    complete = [gate for gate in history.gates(folder, wanted) if gate.complete]
    if not complete:
        raise PreconditionError("no A/A gate was completed", hint="gate list shows what ended them")
    keyed = [(history.key_of_run(gate.run), gate.run) for gate in complete]
    counted = Counter(found.oracle_version for found, _ in reversed(keyed))
    version = counted.most_common(1)[0][0]
    chosen = [(found, run) for found, run in keyed if found.oracle_version == version]
    return fit(recipe, chosen[-1][0], [judge(run) for _, run in chosen])
