"""2 What a plan takes from this machine: the recipe as asked for, checkpoint folders, vocabulary, ports, the coin."""

from __future__ import annotations

import difflib
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from gate.arm import Seat, allowed, plan_arm
from gate.errors import OracleError, UsageError
from gate.lock import keys
from gate.metrics import AXIS_NAMES
from gate.observe.rows import ARMS, Arm
from gate.observe.source import engine_sha256, source
from gate.plan import ArmPlan, OraclePin, Plan, Vocabulary, make_plan
from gate.preflight import checkpoint
from gate.recipe import Recipe, find, load, override
from gate.workload import vocabulary
from oracle import environment, pins

DEFAULT_PORT = 18101
STAND_IN = Vocabulary(size=2**15)
"""Where no checkpoint tells its own; nothing that is made of it is shown."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A command line, as typed; None is "as the recipe says"."""

    recipe: str | None = None
    model: str | None = None
    concurrency: str | None = None
    repetitions: int | None = None
    candidate: str | None = None
    oracle: str | None = None
    residency: str | None = None
    seed: int | None = None
    coin: str | None = None
    port: int = DEFAULT_PORT
    """The candidate's; the oracle gets the next one."""
    both: Arm | None = None
    """An A/A run: both arms are this one of the recipe, with its arguments and environment."""


def declared(asked: Asked) -> Recipe:
    """The recipe as its file has it.

    Raises:
        UsageError: neither or both of recipe and model, or an unknown one.
    """
    if (asked.recipe is None) == (asked.model is None):
        raise UsageError("--recipe and --model: exactly one is needed", hint="gate recipe list shows the recipes")
    return load(asked.recipe) if asked.recipe is not None else find(asked.model or "")


def recipe_for(asked: Asked) -> Recipe:
    """The recipe with the command line's choices in it.

    Raises:
        UsageError: as declared, or a value out of range.
    """
    recipe = override(
        declared(asked),
        concurrency=None if asked.concurrency is None else levels(asked.concurrency),
        repetitions=asked.repetitions,
        residency=asked.residency,
        candidate=asked.candidate,
        oracle=asked.oracle,
        seed=asked.seed,
        both=asked.both,
    )
    for name in recipe.protocol.primary:
        if name not in AXIS_NAMES:
            near = difflib.get_close_matches(name, AXIS_NAMES, 1)
            raise UsageError(f"primary axis {name!r} does not exist", hint=f"did you mean {near[0]!r}?" if near else "")
    return recipe


def again(asked: Asked, plan: Plan) -> tuple[str, ...]:
    """The command line that makes this very plan: what was typed, with the coin and the seed that it came to."""
    options: tuple[tuple[str, object], ...] = (
        ("--recipe", asked.recipe),
        ("--model", asked.model),
        ("--conc", asked.concurrency),
        ("--reps", asked.repetitions),
        ("--candidate", asked.candidate),
        ("--oracle", asked.oracle),
        ("--residency", asked.residency),
        ("--coin", plan.coin),
        ("--seed", plan.seed),
        ("--port", None if asked.port == DEFAULT_PORT else asked.port),
    )
    return ("gate", "run", *(word for name, value in options if value is not None for word in (name, str(value))))


def levels(text: str) -> tuple[int, ...]:
    """ "1,2,4" -> (1, 2, 4)."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise UsageError(f"--conc {text!r}", expected="numbers with commas between, such as 1,2,4,8") from error


def coin_for(asked: str | None) -> Arm:
    """The arm that opens: tossed, unless it is given to repeat an order."""
    return secrets.choice(ARMS) if asked is None else arm_for("--coin", asked)


def arm_for(option: str, asked: str) -> Arm:
    for arm in ARMS:
        if asked == arm:
            return arm
    raise UsageError(f"{option} {asked!r}", expected=" or ".join(ARMS))


def from_here(arm: ArmPlan) -> ArmPlan:
    """Paths inside the working directory, where the servers start too, as seen from it.

    A plan then says nothing about where on a machine the project lies, and hashes alike wherever that is.
    """
    prefix = f"{Path.cwd()}/"
    return arm.model_copy(
        update={
            "argv": None if arm.argv is None else tuple(word.removeprefix(prefix) for word in arm.argv),
            "env": {name: value if ":" in value else value.removeprefix(prefix) for name, value in arm.env.items()},
            "checkpoint": arm.checkpoint.removeprefix(prefix),
        }
    )


def plan_for(asked: Asked) -> Plan:
    """Recipe, checkpoints and vocabulary of this machine -> Plan, to be carried out here. Nothing is started.

    Raises:
        UsageError, CheckpointError, OracleError, PreconditionError (no GPU for a recipe that needs one): one line each.
    """
    recipe = recipe_for(asked)
    keys(recipe)  # at once: no checkpoint of 20 GB is fetched for a machine without the device
    return plan_of(recipe, asked)


def plan_to_show(asked: Asked) -> tuple[Plan, tuple[str, ...]]:
    """The plan, and what it lacks, without a GPU, a checkpoint or an installed oracle.

    Where the checkpoint has to be fetched or made first, or the pinned vLLM is not installed, the plan has no id: a run
    could not begin with it. Without the checkpoint its digests are empty too. Raises as plan_for, but for these.
    """
    recipe = recipe_for(asked)
    absent, uninstalled = checkpoint.absent(recipe), _uninstalled(recipe)
    if absent is None:
        made = plan_of(recipe, asked, oracle_installed=uninstalled is None)
    else:
        folders = checkpoint.unread(recipe)
        made = _planned(recipe, asked, folders, STAND_IN, oracle_installed=uninstalled is None)
        blank = {"prompts_sha256": "", "warmup_sha256": ""}
        legs, extra = (tuple(leg.model_copy(update=blank) for leg in some) for some in (made.legs, made.extra_legs))
        made = made.model_copy(update={"vocabulary": Vocabulary(size=0), "legs": legs, "extra_legs": extra})
    lacks = []
    if absent is not None:
        what, until = absent
        lacks.append(f"{what}: the plan's id and its digests are known once {until}")
    if uninstalled is not None:
        lacks.append(f"{uninstalled}; the plan has no id before that")
    return (made.model_copy(update={"plan_id": ""}) if lacks else made), tuple(lacks)


def _uninstalled(recipe: Recipe) -> str | None:
    """What a start of the pinned vLLM would say first; None where it is installed, or no arm is it."""
    if "vllm" not in (recipe.candidate.kind, recipe.oracle.kind):
        return None
    try:
        environment.require(recipe.oracle.platform)
    except OracleError as error:
        return str(error)
    return None


def plan_of(recipe: Recipe, asked: Asked, *, oracle_installed: bool = True) -> Plan:
    """The plan of a recipe that the caller looked at or changed; wherever its devices are."""
    _check_port(asked)
    coin_for(asked.coin)
    shipped, copy = checkpoint.resolve(recipe)
    size, reserved = vocabulary(shipped.path)
    words = Vocabulary(size=size, reserved=tuple(sorted(reserved)))
    return _planned(recipe, asked, (shipped, copy), words, oracle_installed=oracle_installed)


def _check_port(asked: Asked) -> None:
    if not 1 <= asked.port < 65535:
        raise UsageError(f"--port {asked.port}", expected="1 to 65534; the oracle gets the next one")


def _planned(
    recipe: Recipe,
    asked: Asked,
    folders: tuple[checkpoint.Folder, checkpoint.Folder],
    words: Vocabulary,
    *,
    oracle_installed: bool,
) -> Plan:
    """folders: as shipped, and the oracle's copy."""
    _check_port(asked)
    coin, (shipped, copy) = coin_for(asked.coin), folders

    def arm_plan(arm: Arm, port: int) -> ArmPlan:
        table = recipe.candidate if arm == "candidate" else recipe.oracle
        # vLLM as candidate is an A/A run: it needs the copy that its platform can run, as the oracle does.
        folder = copy if (asked.both or arm) == "oracle" or table.kind == "vllm" else shipped
        seat = Seat(
            arm=arm,
            port=port,
            checkpoint=str(folder.path),
            digest=folder.digest or None,
            args=table.args,
            inherited=allowed(os.environ),
            own_env=table.env,
            oracle_installed=oracle_installed,
        )
        planned = plan_arm(table.kind, seat, recipe)
        return planned.model_copy(update={"source_sha256": engine_sha256()}) if planned.kind == "engine" else planned

    candidate, oracle = (from_here(arm_plan(arm, asked.port + k)) for k, arm in enumerate(ARMS))
    if candidate.url == oracle.url:
        raise UsageError(f"both arms are {oracle.url}", expected="two servers", hint="one server has no opponent")
    return make_plan(
        recipe,
        coin=coin,
        seed=recipe.workload.seed,
        candidate=candidate,
        oracle=oracle,
        vocabulary=words,
        declared=declared(asked),
        gate=source(),
        pin=pin_of(recipe) if "vllm" in (candidate.kind, oracle.kind) else None,
    )


def pin_of(recipe: Recipe) -> OraclePin:
    """Raises OracleError when oracle/pin.toml cannot be read."""
    pin = pins.load(recipe.oracle.platform)
    return OraclePin(
        platform=pin.platform,
        runtime_version=pin.runtime_version,
        distributions={name: pin.lock[name] for name in pin.identity},
        digest=pin.digest,
    )
