"""arms-are-one: two arms are two servers, and the engine is not the oracle."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gate.checks.arms_are_one import address, started_s
from tests.gate.checks.test_oracle_handicapped import planned

CODE = "arms-are-one"


def started(build: Any, run: Any, arm: str, start_id: str) -> Any:
    for leg in [leg for leg in run.legs if leg.arm == arm]:
        run = build.alter_leg(run, leg.leg_id, server_start_id=start_id, server_start_id_after=start_id)
    return run


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("http://127.0.0.1:8000", "http://localhost:8000", True),
        ("http://[::1]:8000", "http://127.0.0.1:8000", True),
        ("http://127.0.0.1:8000", "http://127.0.0.1:8001", False),
        ("http://0.0.0.0:8000", "http://127.0.0.1:8000", True),
        ("http://box:8000", "http://BOX:8000", True),
        ("http://box:8000", "http://127.0.0.1:8000", False),
        ("http://box", "http://box:80", True),
        ("https://box", "https://box:443", True),
        ("https://box", "http://box", False),
    ],
)
def test_one_address_under_many_names(one: str, other: str, same: bool) -> None:
    assert (address(one) == address(other)) is same


def test_both_arms_on_one_port(build: Any, found: Any) -> None:
    (finding,) = found(planned(build.run(), "candidate", url="http://localhost:8001"))
    assert (finding.code, finding.arm, finding.leg_id) == (CODE, None, None)
    assert "both arms are at http://127.0.0.1:8001" in finding.message


def test_both_arms_one_process(build: Any, found: Any) -> None:
    run = started(build, build.run(), "candidate", "7@100.00")
    (finding,) = found(started(build, run, "oracle", "7@100.00"))
    assert "both arms were the process 7@100.00" in finding.message


@pytest.mark.parametrize(("apart_s", "faults"), [(0.0, 1), (0.05, 1), (0.051, 0), (3.0, 0)])
def test_a_proxy_has_the_oracles_start_time(build: Any, found: Any, apart_s: float, faults: int) -> None:
    run = started(build, build.run(), "candidate", f"attached@{apart_s:.3f}")
    run = started(build, run, "oracle", "7@0.00")
    assert found(run) == []  # two versions: two servers
    run = build.alter_identity(run, "candidate", version="1.0")
    assert len(found(run)) == faults
    assert all("both arms say version 1.0 and started within" in finding.message for finding in found(run))


def test_attached_servers_that_tell_no_start_time_are_not_one(build: Any, found: Any) -> None:
    run = started(build, build.run(), "candidate", "attached")
    assert found(started(build, run, "oracle", "attached")) == []
    assert started_s("attached") is None
    assert started_s("attached@1.5") == 1.5


def test_versions_that_are_not_told_are_not_equal(build: Any, found: Any) -> None:
    run = started(build, started(build, build.run(), "candidate", "1@5.00"), "oracle", "2@5.00")
    for arm in ("candidate", "oracle"):
        run = build.alter_identity(run, arm, version=None)
    assert found(run) == []


def test_the_oracle_behind_the_engines_name(build: Any, found: Any) -> None:
    run = build.alter_identity(build.run(), "candidate", version="1.0", extra={})
    (finding,) = found(run, CODE)
    assert "does not say that it is the engine, and has the oracle's version 1.0" in finding.message
    assert found(planned(run, "candidate", kind="vllm"), CODE) == []  # A/A: equal by plan


@pytest.mark.parametrize(
    "changes",
    [{"version": "1.0"}, {"extra": {}}, {"version": None, "extra": {}}],
    ids=["says engine", "own version", "no version"],
)
def test_one_sign_alone_is_not_enough(build: Any, found: Any, changes: dict[str, Any]) -> None:
    assert found(build.alter_identity(build.run(), "candidate", **changes), CODE) == []


def test_an_address_is_a_host_and_a_port() -> None:
    assert address("http://localhost:8000") == ("loopback", 8000)
    assert address("https://box") == ("box", 443)


def test_start_times_are_compared_and_not_added(build: Any, found: Any) -> None:
    run = started(build, started(build, build.run(), "candidate", "1@100.00"), "oracle", "2@100.04")
    (finding,) = found(build.alter_identity(run, "candidate", version="1.0"))
    assert "started within 0.04 s" in finding.message


@pytest.mark.parametrize("silent", ["candidate", "oracle"])
def test_one_start_time_is_nothing_to_compare(build: Any, found: Any, silent: str) -> None:
    run = started(build, started(build, build.run(), "candidate", "1@100.00"), "oracle", "2@100.00")
    run = build.alter_identity(started(build, run, silent, "attached"), "candidate", version="1.0")
    assert found(run, CODE) == []


@pytest.mark.parametrize("arm", ["candidate", "oracle"])
def test_an_arm_without_an_identity_is_nobody(build: Any, found: Any, arm: str) -> None:
    run = build.alter_identity(build.run(), "candidate", version="1.0", extra={})
    run = dataclasses.replace(run, identities=tuple(one for one in run.identities if one.arm != arm))
    assert found(run, CODE) == []


def test_two_versions_that_are_not_told_are_not_one(build: Any, found: Any) -> None:
    run = build.alter_identity(build.run(), "candidate", version=None, extra={})
    assert found(build.alter_identity(run, "oracle", version=None), CODE) == []
