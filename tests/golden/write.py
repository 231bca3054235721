"""Write the golden files: `python tests/golden/write.py`. Read the diff before committing it.

report.json is a report with one cell of every kind, hostile text where servers and users supply text, and round
figures; the others are what the printers make of it.
"""

from __future__ import annotations

from pathlib import Path

from gate.observe.rows import Finding, Verdict
from gate.report import jsonfile, markdown, terminal
from gate.report.model import (
    ArmSummary,
    Cell,
    ClientCost,
    Direction,
    Divergence,
    OwnSpread,
    Reason,
    Report,
    TokenCell,
)

HERE = Path(__file__).parent

STRADDLES = Reason(
    code="interval-straddles",
    message="ratio 0.995, interval 0.985–1.005, needed 0.990",
    hint="add repetitions, or quieten the host",
)
BELOW = Reason(
    code="below-floor",
    message="ratio 0.900, interval 0.890–0.910, needed 0.990",
    hint="worse by more than the band: compare the arms' step times at this concurrency",
)
BROKE = Reason(
    code="error-after-tokens",
    message="1 of 4 requests broke off (#1: \x1b[31m<b>boom</b>|`x`); expected 0",
    hint="read the server's log of this leg for the error it sent mid-stream",
)
UNMEASURED = Reason(
    code="unmeasured",
    message="no repetition has a value in both arms",
    hint="gate resume runs the legs that are missing",
)


def cell(
    axis: str, concurrency: int, verdict: Verdict, ratio: float | None, oracle: float, reasons: tuple[Reason, ...] = ()
) -> Cell:
    unit, direction = ("ms", "lower") if axis.endswith("_ms") else ("tok/s", "higher")
    candidate = None if ratio is None else (oracle * ratio if direction == "higher" else oracle / ratio)
    known: Direction = "lower" if direction == "lower" else "higher"
    return Cell(
        axis=axis,
        concurrency=concurrency,
        unit=unit,
        direction=known,
        primary=axis != "ttft_max_ms",
        candidate_values=(candidate,) * 3,
        oracle_values=(oracle,) * 3,
        candidate_median=candidate,
        oracle_median=None if ratio is None else oracle,
        ratio=ratio,
        ratio_low=None if ratio is None else ratio - 0.01,
        ratio_high=None if ratio is None else ratio + 0.01,
        band=0.01,
        floor=1.0,
        verdict=verdict,
        reasons=reasons,
    )


def arm(name: str, version: str) -> ArmSummary:
    return ArmSummary(
        name=name,
        version=version,
        argv=("serve", "--model", "it's here", "--port", "8000"),
        url="http://127.0.0.1:8000",
        checkpoint="checkpoints/tiny",
        checkpoint_digest="0123abcd",
        kv_cache_dtype="bfloat16",
    )


def tokens(concurrency: int, near_tie: int, diverged: int, verdict: Verdict, *reasons: Reason) -> TokenCell:
    return TokenCell(
        concurrency=concurrency,
        sequences=12,
        exact=12 - near_tie - diverged,
        near_tie=near_tie,
        diverged=diverged,
        unjudged=0,
        max_margin_nats=0.125 if near_tie else None,
        bound_nats=0.25,
        verdict=verdict,
        reasons=reasons,
        near_nats=0.25,
        own=None if verdict is Verdict.VOID else OWN,
    )


OWN = OwnSpread(
    repeated=4,
    agreeing=3,
    sequences=5,
    positions=40,
    largest_nats=0.0625,
    outside_top=0,
    undecided=(1, 1, 2, 5, 9, 12, 20),
)


def report() -> Report:
    """One cell of every kind."""
    cells = (
        cell("output_throughput", 1, Verdict.PASS, 1.25, 100.0),
        cell("tpot_median_ms", 1, Verdict.INCONCLUSIVE, 0.995, 10.0, (STRADDLES,)),
        cell("ttft_max_ms", 1, Verdict.PASS, 2.0, 50.0),
        cell("output_throughput", 2, Verdict.FAIL, 0.9, 200.0, (BELOW,)),
        cell("tpot_median_ms", 2, Verdict.INCONCLUSIVE, None, 10.0, (UNMEASURED,)),
        cell("ttft_max_ms", 2, Verdict.PASS, 1.0, 60.0),
        cell("output_throughput", 4, Verdict.VOID, None, 400.0, (BROKE,)),
        cell("tpot_median_ms", 4, Verdict.VOID, None, 10.0, (BROKE,)),
        cell("ttft_max_ms", 4, Verdict.VOID, None, 70.0, (BROKE,)),
    )
    return Report(
        run_id="20260101-000000-tiny",
        plan_id="plan-0123",
        recipe="tiny",
        host="box",
        started_at="2026-01-01T00:00:00Z",
        finished_at="2026-01-01T00:05:00Z",
        complete=True,
        binding=False,
        not_binding_because=("band of 1.0 % is assumed", "no GPU"),
        verdict=Verdict.FAIL,
        exit_code=1,
        candidate=arm("engine", "0.1.0 <script>alert(1)</script>"),
        oracle=arm("vllm", "0.25.0"),
        machine={"cpu": "Made-up 9000 | 2 cores", "kernel": "6.1"},
        client=ClientCost(cpu_us_per_event=40.0, skew_p50_ms=0.2, skew_p90_ms=0.5, streams=8, events=1000),
        concurrencies=(1, 2, 4),
        repetitions=3,
        order=("000-candidate-c1-r0", "001-oracle-c1-r0"),
        cells=cells,
        tokens=(
            tokens(1, 0, 0, Verdict.PASS),
            tokens(2, 2, 0, Verdict.PASS),
            tokens(4, 0, 0, Verdict.VOID, BROKE),
        ),
        divergences=(
            Divergence(
                concurrency=2, repetition=0, index=3, position=7, candidate_id=11, oracle_id=12, margin_nats=0.125
            ),
        ),
        findings=(
            Finding(
                code=BROKE.code,
                message=BROKE.message,
                hint=BROKE.hint,
                leg_id="007-candidate-c4-r0",
                arm="candidate",
                concurrency=4,
            ),
        ),
        counts={"PASS": 3, "FAIL": 1, "INCONCLUSIVE": 2, "VOID": 3},
        notes=("made up",),
    )


def rendered(made: Report) -> dict[str, str]:
    """File name -> text."""
    return {
        "report.json": jsonfile.render(made),
        "report.md": markdown.render(made),
        "terminal.txt": terminal.render(made, where="results/box/20260101-000000-tiny"),
        "terminal-all.txt": terminal.render(made, all_cells=True, width=100),
        "terminal-colour.txt": terminal.render(made, colour=True, width=100),
    }


if __name__ == "__main__":
    for name, text in rendered(report()).items():
        (HERE / name).write_text(text)
