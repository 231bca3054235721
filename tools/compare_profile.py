"""Does a profile come out as a recorded table did? One arm's step beside it, family by family.

    .venv/bin/python tools/compare_profile.py PROFILE tests/gate/profile/fixtures/vllm-0.25.0-h200-27b-b1.json
    .venv/bin/python tools/compare_profile.py PROFILE TABLE --arm candidate --tolerance 0.1

PROFILE is a folder that `gate profile` wrote, refused or not; TABLE is JSON with "rows" of [µs a step, launches a step,
kernel name]. Both go through the families of gate/profile/families.py. What decides, each within --tolerance: the sum,
the number of launches, and every family that has --least-share of the table's time. A family of matrix products must
have exactly the table's launches, however small it is: one launch less is a product that did not run. Kernels that only
one side has are listed: a compiler does not fuse the same ones every time.

Exit codes: 0 within the tolerance, 1 not, 64 usage, 69 unreadable.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

from gate.errors import GateError, StorageError, UsageError
from gate.profile import store
from gate.profile.checks.launches_not_whole import TOLERANCE as WHOLE
from gate.profile.difference import step_kernels
from gate.profile.families import PRODUCTS, TITLES, rule_of
from gate.profile.names import shown

Rows = tuple[tuple[float, float, str], ...]
"""(µs a step, launches a step, kernel name)."""
SHOWN = 12
"""Kernels of one side alone, the slowest ones."""


def profiled(folder: Path, arm: str) -> tuple[int, Rows]:
    """(batch, rows) of an arm's measured windows. Raises GateError: no profile, or none of that arm."""
    data = store.read(folder)
    made = sorted((w for w in data.windows if w.arm == arm and w.role == "measured"), key=lambda w: w.output_tokens)
    if len(made) != 2:
        raise UsageError(f"{folder.name} has {len(made)} windows of the {arm}", expected="2")
    return data.file.concurrency, tuple((k.us, k.launches, k.name) for k in step_kernels(*made) if k.launches)


def recorded(path: Path) -> tuple[int, Rows]:
    """(batch, rows). Raises StorageError."""
    try:
        data = json.loads(path.read_bytes())
        return int(data["batch"]), tuple((float(us), float(n), str(name)) for us, n, name in data["rows"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{path} is no table: {error}", expected='JSON with "batch" and "rows"') from error


def by_family(rows: Rows) -> dict[str, tuple[float, float]]:
    """Family -> (µs, launches)."""
    made: dict[str, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for us, launches, name in rows:
        family = rule_of(name).family
        made[family] = (made[family][0] + us, made[family][1] + launches)
    return made


def compare(ours: Rows, theirs: Rows, tolerance: float, least_share: float) -> tuple[list[str], bool]:
    """(lines to print, whether it is within the tolerance). ours: the profile's; theirs: the table's."""
    here, there = by_family(ours), by_family(theirs)
    sums = [tuple(sum(row[k] for row in side) for k in (0, 1)) for side in (ours, theirs)]
    products = {TITLES[family] for family in PRODUCTS}
    entries = [
        (TITLES[f], here.get(f, (0.0, 0.0)), there.get(f, (0.0, 0.0)))
        for f in sorted({*here, *there}, key=lambda f: -max(here.get(f, (0, 0))[0], there.get(f, (0, 0))[0]))
    ]
    lines = [f"{'family':34} {'launches':>9} {'table':>7} {'µs':>9} {'table':>9} {'ratio':>6}"]
    good = True
    for title, (us, n), (table_us, table_n) in [*entries, ("sum", sums[0], sums[1])]:
        decides = max(us, table_us) >= least_share * sums[1][0]
        off = _off(us, table_us, tolerance)
        launches_off = title in products and abs(n - table_n) >= WHOLE
        bad = (decides and off) or launches_off or (title == "sum" and _off(n, table_n, tolerance))
        good = good and not bad
        ratio = f"{us / table_us:6.3f}" if table_us else "     –"
        mark = "  <- launches" if launches_off else "  <-" if bad else "  (small)" if off else ""
        lines.append(f"{title:34} {n:9g} {table_n:7g} {us:9.1f} {table_us:9.1f} {ratio}{mark}")
    return [*lines, *_alone("profile", ours, theirs), *_alone("table", theirs, ours)], good


def _off(here: float, there: float, tolerance: float) -> bool:
    return not there or abs(here / there - 1) > tolerance


def _alone(side: str, mine: Rows, others: Rows) -> Iterable[str]:
    """A name that runs in several shapes carries its grid in a profile; the table's never do."""
    names = {_plain(name) for _, _, name in others}
    rows = sorted((row for row in mine if _plain(row[2]) not in names), reverse=True)
    texts = shown(name for _, _, name in (*mine, *others))
    if rows:
        yield f"only in the {side}: {len(rows)} kernels, {sum(us for us, _, _ in rows):.1f} µs"
    for us, launches, name in rows[:SHOWN]:
        yield f"  {us:9.1f} µs {launches:6g}  {rule_of(name).family:15} {texts[name]}"


def _plain(name: str) -> str:
    return name.partition(" [grid ")[0]


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Its own code, 2, is a verdict's."""
        self.exit(UsageError.exit_code, f"{self.format_usage()}compare_profile: {message}\n")


def main(argv: list[str] | None = None) -> int:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile", type=Path)
    parser.add_argument("table", type=Path)
    parser.add_argument("--arm", choices=("candidate", "oracle"), default="oracle")
    parser.add_argument(
        "--tolerance",
        type=float,
        default=0.05,
        help="of times, and of all launches together, a share; 0.05 if left out",
    )
    parser.add_argument(
        "--least-share", type=float, default=0.02, help="of the step, below which a family decides nothing"
    )
    asked = parser.parse_args(argv)
    try:
        batch, ours = profiled(asked.profile, asked.arm)
        table_batch, theirs = recorded(asked.table)
        if batch != table_batch:
            raise UsageError(f"the profile is of batch {batch}, the table of {table_batch}", expected="the same batch")
    except GateError as error:
        print(f"compare_profile: {error}", file=sys.stderr)
        return error.exit_code
    lines, good = compare(ours, theirs, asked.tolerance, asked.least_share)
    print(f"{asked.arm} of {asked.profile.name} beside {asked.table.name}, batch {batch}, µs a step", *lines, sep="\n")
    print(f"{'within' if good else 'NOT within'} {100 * asked.tolerance:g} %")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
