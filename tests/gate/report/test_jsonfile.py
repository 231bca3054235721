"""report.json: valid under its published schema, and nothing is lost on the way."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pydantic
import pytest

from gate.judge import judge
from gate.report import jsonfile

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def report(build: Any) -> Any:
    run = build.run(lambda leg: 0.9 if leg.arm == "candidate" and leg.concurrency == 1 else 1.0)
    return judge(build.alter_leg(run, build.leg_id(run), lock_held=False))


@pytest.fixture
def validator() -> jsonschema.Draft202012Validator:
    schema = json.loads((ROOT / jsonfile.SCHEMA_FILE).read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_a_report_is_valid_under_the_published_schema(report: Any, validator: Any) -> None:
    validator.validate(json.loads(jsonfile.render(report)))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda r: r["cells"][0].pop("axis"),
        lambda r: r["cells"][0].update(verdict="MAYBE"),
        lambda r: r.update(schema_version=2),
        lambda r: r.update(surprise=1),
    ],
    ids=["no axis", "unknown verdict", "another version", "unknown key"],
)
def test_the_schema_refuses_what_is_not_a_report(report: Any, validator: Any, spoil: Any) -> None:
    made = json.loads(jsonfile.render(report))
    spoil(made)
    with pytest.raises(jsonschema.ValidationError):
        validator.validate(made)
    with pytest.raises(pydantic.ValidationError):
        jsonfile.parse(json.dumps(made))


def test_parse_is_the_inverse_of_render(report: Any) -> None:
    assert jsonfile.parse(jsonfile.render(report)) == report


def test_a_void_cell_has_null_where_a_ratio_would_be(report: Any) -> None:
    void = [c for c in json.loads(jsonfile.render(report))["cells"] if c["verdict"] == "VOID"]
    assert void
    for cell in void:
        assert cell["ratio"] is None
        assert cell["ratio_low"] is None
        assert cell["reasons"]


def test_no_nan_and_no_infinity(report: Any) -> None:
    assert not re.search(r"\b(NaN|-?Infinity)\b", jsonfile.render(report))
