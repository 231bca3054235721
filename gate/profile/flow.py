"""0 `gate profile` on one screen: recipe, tools, lock and preflight, both arms one at a time, then what they left."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from gate import shown
from gate.arm.process import GUARD
from gate.errors import UsageError
from gate.inputs import Asked, levels, plan_for, recipe_for
from gate.lock import hold
from gate.observe import ended, fresh
from gate.observe.machine import host, machine
from gate.observe.residency import residency
from gate.observe.rows import Arm
from gate.observe.source import source
from gate.plan import Plan
from gate.preflight import preflight
from gate.profile import census, store, tools
from gate.profile.capture import Captured, Setting, capture
from gate.profile.conclude import compare, conclude, exit_code, show
from gate.profile.rows import LONG_TOKENS, SHORT_TOKENS, Traced
from gate.progress import Ui


@dataclasses.dataclass(frozen=True, slots=True)
class ProfileAsked:
    """What the command line adds to Asked."""

    backend: str | None = None
    prompt_tokens: int | None = None
    rounds: int = 1
    roof_gb_per_s: float | None = None
    control: bool = True
    keep_traces: bool = False


def profile(asked: Asked, more: ProfileAsked, out: Path, ui: Ui) -> int:
    """Profile both arms and attribute the delta. Returns the exit code; raises GateError in one line."""
    batch = _batch(asked)
    backend, nsys = tools.choose(more.backend)  # 3 first, since nothing else is worth a look without them
    tools.check_recipe(recipe_for(asked))  # 1
    plan = plan_for(dataclasses.replace(asked, concurrency=str(batch), repetitions=1, residency="alternate"))  # 2
    prompt_tokens = more.prompt_tokens or plan.recipe.workload.prompt_tokens
    if prompt_tokens + LONG_TOKENS > plan.recipe.max_model_len:
        raise UsageError(
            f"{prompt_tokens} prompt and {LONG_TOKENS} output tokens",
            expected=f"at most max_model_len {plan.recipe.max_model_len}",
            hint="--prompt-tokens takes fewer",
        )
    with hold(plan):  # 3
        findings = preflight(plan, out)
        setting = Setting(plan, backend, nsys, batch, prompt_tokens, more.rounds, more.keep_traces)
        order = _order(plan.coin, control=more.control)
        place = _begin(setting, more, order, out)
        ui.begun(place.folder.name, findings)
        arms: list[store.ArmRecord] = []
        captured: list[Captured] = []
        try:
            with ended.noted(place):
                for one in order:  # 4
                    made = capture(setting, one.arm, one.role, place.folder.resolve(), ui.say)
                    captured.append(made)
                    arms.append(_record(plan, one, made))
                    # At once: a control that fails, or a Ctrl-C, then costs no more than itself.
                    windows = tuple(window for one in captured for window in one.windows)
                    place.write_raw(tuple(arms), windows, _census(plan, setting, arms))
        except BaseException:
            if arms:
                ui.say(f"kept {' and '.join(f'{a.arm} ({a.role})' for a in arms)}: gate profile {place.folder.name}")
            raise
        finally:
            GUARD.close()
    return conclude(place.folder)  # 5 to 8


def command(name: str | None, other: str | None, asked: Asked, more: ProfileAsked, out: Path, ui: Ui) -> int:
    """A profile that is named is shown or compared; without a name one is made. Raises UsageError for both at once."""
    if name is None and other is None:
        return profile(asked, more, out, ui)
    if name is None:
        raise UsageError(f"--diff {other} alone", expected="the profile to compare it with: gate profile NAME --diff")
    given = dataclasses.asdict(asked) | dataclasses.asdict(more)
    plain = dataclasses.asdict(Asked()) | dataclasses.asdict(ProfileAsked())
    wanted = [option for option, value in given.items() if value != plain[option]]
    if wanted:
        raise UsageError(
            f"profile {name} and {wanted[0]} {given[wanted[0]]}",
            expected="a recorded profile, or what to profile, not both",
        )
    return again(name, other, out)


def again(name: str | None, other: str | None, out: Path) -> int:
    """Show a profile anew from its records, or compare two; the newest where none is named."""
    folder = store.require(name, out)
    if other is None:
        return shown.again(folder)
    beside = store.require(other, out)
    if beside.samefile(folder):
        raise UsageError(f"{folder.name} twice", expected="two profiles", hint="gate list shows them")
    report = compare(store.read(folder), store.read(beside))
    show(report)
    return exit_code(report)


def _batch(asked: Asked) -> int:
    """One concurrency: the declared, fixed batch of every step."""
    found = levels(asked.concurrency or "1")
    if len(found) != 1 or found[0] < 1:
        raise UsageError(f"--conc {asked.concurrency}", expected="one number: a step has one batch size")
    return found[0]


def _order(first: Arm, *, control: bool) -> tuple[Traced, ...]:
    """The arm that opens is profiled once more at the end: what it moved by in between is the drift."""
    second: Arm = "oracle" if first == "candidate" else "candidate"
    both = (Traced(arm=first, role="measured"), Traced(arm=second, role="measured"))
    return (*both, Traced(arm=first, role="control")) if control else both


def _begin(setting: Setting, more: ProfileAsked, order: tuple[Traced, ...], out: Path) -> store.ProfileStore:
    recipe = setting.plan.recipe
    started, folder = fresh.folder(out / host(), f"{recipe.name}-profile-{setting.plan.plan_id[:8]}")
    place = store.ProfileStore(folder)
    place.begin(
        store.ProfileFile(
            run_id=folder.name,
            recipe=recipe.name,
            host=host(),
            started_at=started.isoformat(timespec="seconds"),
            backend=setting.backend,
            nsys=tools.nsys_version(setting.nsys) if setting.nsys else None,
            concurrency=setting.concurrency,
            prompt_tokens=setting.prompt_tokens,
            rounds=setting.rounds,
            roof_bytes_per_s=None if more.roof_gb_per_s is None else more.roof_gb_per_s * 1e9,
            planned=order,
            sealed=True,
            machine=machine(),
            gate=source(),
        )
    )
    return place


def _record(plan: Plan, traced: Traced, made: Captured) -> store.ArmRecord:
    planned, identity = plan.arm(traced.arm), made.identity
    held = residency(identity)
    return store.ArmRecord(
        arm=traced.arm,
        role=traced.role,
        name=planned.kind if planned.kind != "command" else Path((planned.argv or ("command",))[0]).name,
        argv=planned.argv or (),
        version=identity.version,
        kv_cache_dtype=identity.kv_cache_dtype,
        resident_bytes=None if held is None else held.resident_bytes,
        wall=made.wall,
    )


def _census(plan: Plan, setting: Setting, arms: list[store.ArmRecord]) -> tuple[census.Module, ...]:
    config, tensors = census.read_headers(Path(plan.candidate.checkpoint))
    is_fp8 = any("fp8" in (arm.kv_cache_dtype or "") for arm in arms)
    context = setting.prompt_tokens + (SHORT_TOKENS + LONG_TOKENS) // 2
    return tuple(
        census.modules(config, tensors, batch=setting.concurrency, context=context, kv_bytes=1 if is_fp8 else 2)
    )
