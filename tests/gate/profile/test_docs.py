"""docs/profile.md's example is what the code prints for its fixtures; run as a module, this writes it."""

from __future__ import annotations

from pathlib import Path

from gate.profile import table
from gate.profile.levers import attribute, drift_of
from gate.profile.modules import with_modules
from gate.profile.rows import ProfileReport
from tests.gate.profile.tables import census, recorded

PAGE = Path(__file__).resolve().parents[3] / "docs" / "profile.md"
BEGIN, END = "<!-- example: ", "<!-- end -->"


def report() -> ProfileReport:
    candidate, oracle = (
        with_modules(recorded(name, arm=arm), census("27b", 1)).model_copy(update={"name": label, "busy_us": None})
        for name, arm, label in (
            ("engine-h200-27b-b1-composed", "candidate", "engine (composed)"),
            ("vllm-0.25.0-h200-27b-b1", "oracle", "vllm"),
        )
    )
    drift = drift_of(candidate, oracle, "both arms, no control")
    found = attribute(candidate, oracle, drift)
    return ProfileReport(
        run_id="example",
        recipe="27B",
        host="H200",
        started_at="",
        candidate=candidate,
        oracle=oracle,
        attribution=found,
        refused=False,
    )


def example() -> str:
    text = table.render(report(), width=118)
    return "```\n" + text + "```\n"


def test_the_page_shows_what_the_code_prints() -> None:
    page = PAGE.read_text()
    shown = page[page.index(BEGIN) :].partition("\n")[2].partition(END)[0]
    assert shown == example()


def test_the_words_below_the_example_fit_it() -> None:
    found = report()
    assert found.attribution is not None
    assert {lever.proof for lever in found.attribution.levers} == {"unproven"}
    w4a16 = next(lever for lever in found.attribution.levers if lever.families == ("w4a16",))
    assert round(100 * w4a16.delta_us / found.attribution.delta_us) == 57


if __name__ == "__main__":
    page = PAGE.read_text()
    head, _, rest = page.partition(BEGIN)
    first, _, rest = rest.partition("\n")
    PAGE.write_text(head + BEGIN + first + "\n" + example() + END + rest.partition(END)[2])
