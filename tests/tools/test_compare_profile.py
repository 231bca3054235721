"""A profile beside a recorded table: what is within, what is not, what cannot be compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import compare_profile
import pytest

from gate.profile.store import ProfileFile, ProfileStore
from tests.gate.profile.tables import FIXTURES, fixture, windows

NAME = "vllm-0.25.0-h200-27b-b1"


def profile(folder: Path, rows: list[Any], batch: int = 1) -> Path:
    """A profile of the oracle alone, whose step has these rows."""
    place = ProfileStore(folder)
    place.begin(
        ProfileFile(
            run_id="r", recipe="27b", host="h", started_at="2026-11-30T00:00:00+00:00", backend="cupti", nsys=None,
            concurrency=batch, prompt_tokens=1024, rounds=1,
        )
    )  # fmt: skip
    place.write_raw((), windows(rows, batch=batch), ())
    return folder


def run(folder: Path, *more: str, table: str = NAME) -> int:
    return compare_profile.main([str(folder), str(FIXTURES / f"{table}.json"), *more])


def test_the_table_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(profile(tmp_path / "p", fixture(NAME)["rows"])) == 0
    shown = capsys.readouterr().out
    assert "W4A16 products                           129     129    4861.1    4861.1  1.000\n" in shown
    assert "sum                                     1010    1010    8996.4    8996.4  1.000\n" in shown
    assert "only in" not in shown
    assert shown.endswith("within 5 %\n")


@pytest.mark.parametrize(
    ("family", "factor", "code"),
    [("marlin::Marlin<", 1.04, 0), ("marlin::Marlin<", 1.06, 1), ("marlin::Marlin<", 0.94, 1), ("reshape_and", 1.5, 0)],
)
def test_a_family_decides_where_it_is_large(tmp_path: Path, family: str, factor: float, code: int) -> None:
    rows = [[us * (factor if family in name else 1), n, name] for us, n, name in fixture(NAME)["rows"]]
    assert run(profile(tmp_path / "p", rows)) == code


@pytest.mark.parametrize(("more", "code"), [(50, 0), (51, 1), (61, 1), (-50, 0), (-51, 1)])
def test_the_step_s_launches_are_within_the_tolerance_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: int, code: int
) -> None:
    """50 of 1,010 are 4.95 %, 51 are 5.05 %; no time is another."""
    rows = [[us, n + more * (name == "triton_poi_fused_0"), name] for us, n, name in fixture(NAME)["rows"]]
    assert run(profile(tmp_path / "p", rows)) == code
    shown = capsys.readouterr().out
    assert f"{1010 + more:9}    1010    8996.4    8996.4  1.000{'  <-' * code}\n" in shown
    assert shown.count("<-") == code


PRODUCTS = {
    # a family's row: a kernel of it in the table of each name
    "W4A16 products": (NAME, "marlin::Marlin<"),
    "FP8 W8A8 products": (NAME, "cutlass_3x_gemm"),
    "BF16 products, split-K": (NAME, "nvjet"),
    "routed experts, W4A16": ("vllm-0.25.0-h200-35b-b1", "marlin_moe_wna16"),
}


@pytest.mark.parametrize("change", [-1, 1])
@pytest.mark.parametrize("title", PRODUCTS)
@pytest.mark.parametrize("more", [(), ("--tolerance", "0.5", "--least-share", "0.5")])
def test_a_product_that_did_not_run_is_seen_whatever_its_family_s_size(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], title: str, change: int, more: tuple[str, ...]
) -> None:
    """128 launches of W4A16 where 129 are recorded are 0.8 %; no time is another."""
    table, kernel = PRODUCTS[title]
    rows = fixture(table)["rows"]
    first = next(name for _, _, name in rows if kernel in name)
    changed = [[us, n + change * (name == first), name] for us, n, name in rows]
    assert run(profile(tmp_path / "p", changed), *more, table=table) == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "<-" in line]
    assert line.startswith(title)
    assert line.endswith("  <- launches")


@pytest.mark.parametrize(
    ("more", "without", "title"),
    [([[0.5, 1, "nvfp4_gemm"]], "no such name", "FP4 products"), ([], "split", "BF16 products, split-K")],
    ids=["profile", "table"],
)
def test_products_that_one_side_alone_has_are_seen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[Any], without: str, title: str
) -> None:
    rows = [row for row in (*fixture(NAME)["rows"], *more) if without not in row[2]]
    assert run(profile(tmp_path / "p", rows), "--tolerance", "0.5", "--least-share", "0.5") == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "<-" in line]
    assert line.startswith(title)


def test_a_tolerance_that_is_asked_for_is_of_launches_too(tmp_path: Path) -> None:
    rows = [[us, n + 61 * (name == "triton_poi_fused_0"), name] for us, n, name in fixture(NAME)["rows"]]
    assert run(profile(tmp_path / "p", rows), "--tolerance", "0.07") == 0


def test_one_launch_more_passes_and_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [*fixture(NAME)["rows"], [0.5, 1, "void some_new_kernel<2>(int)"]]
    assert run(profile(tmp_path / "p", rows)) == 0
    shown = capsys.readouterr().out
    assert "1011    1010" in shown
    assert "only in the profile: 1 kernels, 0.5 µs" in shown
    assert "some_new_kernel" in shown


def test_two_batches_are_two_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = profile(tmp_path / "p", fixture(NAME)["rows"], batch=8)
    assert run(folder) == 64
    assert "the profile is of batch 8, the table of 1" in capsys.readouterr().err


@pytest.mark.parametrize(("more", "code"), [(["--arm", "candidate"], 64), ([], 69)])
def test_what_cannot_be_compared(tmp_path: Path, more: list[str], code: int) -> None:
    folder = profile(tmp_path / "p", fixture(NAME)["rows"])
    assert run(folder, *more, table=NAME if more else "no-such-table") == code
    assert run(tmp_path / "nowhere") == 69


def test_a_mistake_in_the_command_line_has_no_verdicts_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        compare_profile.main(["one"])
    assert end.value.code == 64
    assert capsys.readouterr().err.splitlines()[-1].startswith("compare_profile: the following arguments are required")
