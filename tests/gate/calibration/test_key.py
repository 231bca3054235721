"""What a history is valid for, and what makes two arms the same."""

from __future__ import annotations

from typing import Any

import pytest

from gate import recipe as recipes
from gate.calibration import key
from gate.calibration.record import BandRecord
from gate.plan import ArmPlan, Plan

MACHINE = {"cpu": "Made-up 9000", "kernel": "6.1", "gpu_driver": "570.1", "gpu0": "H200, 139 GiB", "boot_id": "b1"}


def equal_arms(build: Any, **oracle: Any) -> Plan:
    plan: Plan = build.run().plan
    ours = plan.oracle.model_copy(
        update={"arm": "candidate", "url": "http://127.0.0.1:8000", "argv": ("serve", "--port", "8000", "--x=8000")}
    )
    theirs = plan.oracle.model_copy(
        update={"url": "http://127.0.0.1:8001", "argv": ("serve", "--port", "8001", "--x=8001")} | oracle
    )
    return plan.model_copy(update={"candidate": ours, "oracle": theirs})


def made(plan: Plan, machine: dict[str, str] = MACHINE, version: str | None = "1.0") -> key.BandKey:
    return key.key_of(plan, "box", machine, version)


def test_arms_that_differ_by_their_ports_alone_are_equal(build: Any) -> None:
    assert key.is_aa(equal_arms(build))


@pytest.mark.parametrize(
    "changes",
    [
        {"argv": ("serve", "--port", "8001", "--x=8001", "--enforce-eager")},
        {"argv": None},
        {"kind": "engine"},
        {"checkpoint_digest": "d2"},
        {"env": {"PATH": "/usr/bin", "OMP_NUM_THREADS": "1"}},
    ],
)
def test_anything_else_makes_them_two(build: Any, changes: Any) -> None:
    assert not key.is_aa(equal_arms(build, **changes))


def test_two_urls_are_nobodys_equals(build: Any) -> None:
    plan = equal_arms(build, argv=None)
    assert not key.is_aa(plan.model_copy(update={"candidate": plan.candidate.model_copy(update={"argv": None})}))


def test_a_port_inside_a_word_is_no_port() -> None:
    arm = ArmPlan(
        arm="oracle",
        kind="command",
        argv=("serve-8001", "8001", "--bind=0.0.0.0:8001", "--tokens=18001"),
        env={},
        url="http://127.0.0.1:8001",
        model="",
        checkpoint="c",
        checkpoint_digest=None,
    )
    assert key.portless(arm) == ("serve-8001", "{port}", "--bind=0.0.0.0:{port}", "--tokens=18001")


def test_who_started_it_and_when_do_not_matter(build: Any) -> None:
    plan = equal_arms(build)
    elsewhere = plan.oracle.model_copy(update={"env": {"PATH": "/opt/bin", "HOME": "/home/somebody"}})
    later = plan.model_copy(update={"oracle": elsewhere, "seed": 7, "coin": "oracle"})
    assert key.differences(made(plan), made(later, {**MACHINE, "boot_id": "b2", "memory": "1 GiB"})) == ()


def test_the_version_is_compared_once_it_is_known(build: Any) -> None:
    plan = equal_arms(build)
    assert key.differences(made(plan), made(plan, version=None)) == ()
    assert key.differences(made(plan), made(plan, version="1.1")) == ("oracle_version is 1.1 here, 1.0 in the band",)
    assert key.digest(made(plan)) == key.digest(made(plan, version=None))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("gpu_driver", "580.2", "gpu_driver is 580.2 here, 570.1 in the band"),
        ("gpu0", "H100, 79 GiB", "gpu0 is H100, 79 GiB here, H200, 139 GiB in the band"),
        ("gpu1", "H200", "gpu1 is H200 here, – in the band"),
        ("kernel", "6.2", "kernel is 6.2 here, 6.1 in the band"),
    ],
)
def test_a_changed_machine_is_named(build: Any, name: str, value: str, said: str) -> None:
    plan = equal_arms(build)
    assert key.differences(made(plan), made(plan, {**MACHINE, name: value})) == (said,)


GOVERNED = {**MACHINE, "cpu_governor": "performance"}
LIMITED = {**MACHINE, "power_limit_gpu0": "700 W", "clock_limit_gpu0": "at most 1980 and 2619 MHz"}


def arms_of(build: Any, *, gpu: bool) -> Plan:
    plan = equal_arms(build)
    return plan.model_copy(update={"recipe": plan.recipe.model_copy(update={"gpu": gpu})})


def test_a_changed_setting_is_named(build: Any) -> None:
    plan, on_gpu = arms_of(build, gpu=False), arms_of(build, gpu=True)
    saving = made(plan, {**MACHINE, "cpu_governor": "powersave"})
    assert key.differences(made(plan, GOVERNED), saving) == ("cpu_governor is powersave here, performance in the band",)
    assert key.digest(saving) != key.digest(made(plan, GOVERNED))
    capped = made(on_gpu, {**LIMITED, "power_limit_gpu0": "400 W"})
    assert key.differences(made(on_gpu, LIMITED), capped) == ("power_limit_gpu0 is 400 W here, 700 W in the band",)
    assert key.unknown(made(on_gpu, LIMITED), capped) == ()


def test_the_governor_is_of_runs_without_a_gpu_and_limits_of_those_with(build: Any) -> None:
    plan, on_gpu = arms_of(build, gpu=False), arms_of(build, gpu=True)
    everything = {**GOVERNED, **LIMITED}
    assert made(plan, everything) == made(plan, GOVERNED)
    assert made(on_gpu, everything) == made(on_gpu, LIMITED)


def test_a_setting_that_one_side_does_not_know_is_no_difference_and_is_told(build: Any) -> None:
    plan, on_gpu = arms_of(build, gpu=False), arms_of(build, gpu=True)
    old, new = made(plan), made(plan, GOVERNED)
    assert key.differences(old, new) == key.differences(new, old) == ()
    assert key.unknown(old, new) == ("cpu_governor is performance here, unknown in the band",)
    assert key.unknown(new, old) == ("cpu_governor is unknown here, performance in the band",)
    assert key.unknown(old, old) == key.unknown(new, new) == ()
    assert key.unknown(made(on_gpu), made(on_gpu, LIMITED)) == (
        "clock_limit_gpu0 is at most 1980 and 2619 MHz here, unknown in the band",
        "power_limit_gpu0 is 700 W here, unknown in the band",
    )


def test_the_band_of_the_project_is_read_with_its_governor_unknown() -> None:
    (path,) = (recipes.ROOT / "results" / "vm" / "bands").glob("tiny-*.json")
    band = BandRecord.model_validate_json(path.read_bytes())
    today = band.key.model_copy(update={"machine": {**band.key.machine, "cpu_governor": "performance"}})
    assert key.differences(band.key, today) == ()
    assert key.unknown(band.key, today) == ("cpu_governor is performance here, unknown in the band",)
    assert path.stem.endswith(key.digest(band.key)[:12])


def test_an_engine_is_known_by_its_sources(build: Any) -> None:
    old, new = (equal_arms(build, source_sha256=digest) for digest in ("a1", "b2"))
    assert key.differences(made(old), made(new)) == ("oracle_source_sha256 is b2 here, a1 in the band",)


def test_a_changed_workload_or_command_line_is_named(build: Any) -> None:
    plan = equal_arms(build)
    other = equal_arms(build, argv=("serve", "--port", "8001", "--x=8001", "-y"))
    assert key.differences(made(plan), made(other)) == (
        "oracle_argv is serve --port {port} --x={port} -y here, serve --port {port} --x={port} in the band",
    )
    workload = plan.recipe.workload.model_copy(update={"prompt_tokens": 99})
    longer = plan.model_copy(update={"recipe": plan.recipe.model_copy(update={"workload": workload})})
    assert key.differences(made(plan), made(longer)) == ("workload.prompt_tokens is 99 here, 16 in the band",)


def test_a_staggered_start_is_another_load_and_the_other_is_the_old_one(build: Any) -> None:
    plan = equal_arms(build)
    staggered = plan.recipe.workload.model_copy(update={"start": "staggered"})
    other = plan.model_copy(update={"recipe": plan.recipe.model_copy(update={"workload": staggered})})
    assert "start" not in made(plan).workload
    assert key.differences(made(plan), made(other)) == ("workload.start is staggered here, – in the band",)


def test_a_minimum_of_requests_counts_and_its_absence_is_the_old_load(build: Any) -> None:
    plan = equal_arms(build)
    least = plan.recipe.workload.model_copy(update={"min_requests_per_leg": 16})
    more = plan.model_copy(update={"recipe": plan.recipe.model_copy(update={"workload": least})})
    assert "min_requests_per_leg" not in made(plan).workload
    said = ("workload.min_requests_per_leg is 16 here, – in the band",)
    assert key.differences(made(plan), made(more)) == said
