"""Plain text for `gate plan`, `gate list`, `gate recipe list` and `gate recipe show`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from gate import recipe as recipes
from gate.observe import ended
from gate.plan import ArmPlan, Plan
from gate.recipe import Recipe
from gate.report.table import plain
from gate.runs import Entry
from gate.units import DASH


def plan_text(plan: Plan, command: Sequence[str], notes: Sequence[str] = ()) -> str:
    """Both arms, the legs in order, the id, the command line that repeats it.

    notes: what the plan lacks, one line each.
    """
    workload, protocol = plan.recipe.workload, plan.recipe.protocol
    rows = [("leg", "arm", "conc", "rep", "requests", "prompts sha256")]
    rows += [
        (
            leg.leg_id,
            leg.arm,
            str(leg.concurrency),
            str(leg.repetition),
            str(leg.requests),
            leg.prompts_sha256[:12] or DASH,
        )
        for leg in plan.all_legs
    ]
    began = "staggered start, " if workload.start == "staggered" else ""
    extra = f"extra      the last {len(plan.extra_legs)} legs run only at levels that are undecided before them"
    return "\n".join(
        [
            f"plan       {plan.plan_id or DASH}",
            *(f"note       {note}" for note in notes),
            f"recipe     {plan.recipe.name}: {workload.prompt_tokens} in, {workload.output_tokens} out, "
            f"{workload.arrival} loop, {began}residency {protocol.residency}, seed {plan.seed}, the {plan.coin} opens",
            f"gate       {plan.gate.text() if plan.gate else 'no git commit'}",
            f"repeat     {shlex.join(command)}",
            *_arm(plan.candidate),
            *_arm(plan.oracle),
            *([extra] if plan.extra_legs else []),
            "",
            _columns(rows),
        ]
    )


def runs_text(entries: Sequence[Entry], out: Path) -> str:
    if not entries:
        return f"no runs under {out.resolve()}"
    rows: list[tuple[str, ...]] = [("run", "host", "verdict", "binding", "legs")]
    for entry in entries:
        binding = DASH if entry.binding is None else "binding" if entry.binding else "indicative"
        cells = (entry.run_id, entry.host, entry.verdict or DASH, binding, " ".join(_legs(entry)))
        rows.append(tuple(map(plain, cells)))
    return f"{_columns(rows)}\nin {out.resolve()}"


def recipes_text() -> str:
    rows = [("recipe", "checkpoint", "conc", "description")]
    for name in recipes.names():
        recipe = recipes.load(name)
        checkpoint = recipe.checkpoint
        source = f"{checkpoint.hub}@{(checkpoint.revision or '')[:12]}" if checkpoint.hub else str(checkpoint.path)
        levels = ",".join(map(str, recipe.protocol.concurrency))
        rows.append((name, source, levels, recipe.description))
    return _columns(rows)


def recipe_toml(recipe: Recipe) -> str:
    """TOML that reads back as the same recipe; keys that have no value are left out, as in a file."""
    values = recipe.model_dump()
    tables = {name: value for name, value in values.items() if isinstance(value, dict)}
    lines = [
        f"{name} = {toml_value(value)}" for name, value in values.items() if name not in tables and value is not None
    ]
    for name, table in tables.items():
        lines += [
            "",
            f"[{name}]",
            *(f"{key} = {toml_value(value)}" for key, value in table.items() if value is not None),
        ]
    return "\n".join(lines) + "\n"


def toml_value(value: object) -> str:
    """A value as TOML writes it. JSON's scalars are TOML's, but for one control character that JSON does not escape."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _arm(arm: ArmPlan) -> list[str]:
    command = shlex.join(arm.argv) if arm.argv is not None else f"attached, {arm.url}"
    return [
        f"{arm.arm:<10} {command}",
        f"           checkpoint {arm.checkpoint}, digest {arm.checkpoint_digest or DASH}",
        f"           environment {' '.join(f'{name}={value}' for name, value in sorted(arm.env.items())) or DASH}",
    ]


def _legs(entry: Entry) -> Iterator[str]:
    """Measured of planned, which a profile does not count; then all that is not plain about the folder."""
    yield f"{entry.legs}/{DASH if entry.planned is None else entry.planned}" if entry.kind != "profile" else DASH
    if entry.kind != "run":
        yield entry.kind
    if entry.holds:
        yield entry.holds
    if entry.changed:
        yield "report changed"
    elif entry.unsealed:
        yield f"{entry.unsealed} unsealed"
    elif not entry.complete:
        state = "incomplete" if entry.failure in (None, ended.INTERRUPTED) else "failed to start"
        yield f"{state}, no {entry.missing}" if entry.missing else state


def _columns(rows: Iterable[tuple[str, ...]]) -> str:
    table = list(rows)
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table
    )
