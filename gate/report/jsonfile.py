"""Report -> report.json, and the JSON schema it is published under."""

from __future__ import annotations

import json
from typing import Any

from gate.report.model import SCHEMA_VERSION, Report

SCHEMA_FILE = f"results/schema/report-v{SCHEMA_VERSION}.json"
"""Written by `python tools/docs.py`; a test proves that it is current."""


def render(report: Report) -> str:
    """Keys in the model's order; numbers in full; None as null, never NaN."""
    return json.dumps(report.model_dump(mode="json"), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def parse(text: str) -> Report:
    """The inverse of render.

    Raises:
        pydantic.ValidationError: not a report of this schema version.
    """
    return Report.model_validate_json(text)


def schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of report.json."""
    made = Report.model_json_schema(mode="serialization")
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"report-v{SCHEMA_VERSION}.json",
    }
    return head | made
