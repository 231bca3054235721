"""Shown names: short, never a namespace alone, and different wherever the kernels of a step are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gate.profile import markdown, names, store
from gate.profile.conclude import derive
from gate.profile.names import NAME_CHARS, short, shown
from tests.gate.profile.tables import FIXTURES, RUN_27B, RUN_35B, fixture, recorded

TABLES = sorted(path.stem for path in FIXTURES.glob("*-h200-*.json"))
ENGINE = "void engine::(anonymous namespace)::"
LAMBDAS = (
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::"
    "{lambda()#3}::operator()() const::{lambda()#7}::operator()() const::{lambda(float)#1}, std::array<char*, 2ul>, 4>"
    "(int, std::array<char*, 2ul>)"
)


@pytest.mark.parametrize("table", TABLES)
def test_kernels_of_a_recorded_step_are_told_apart(table: str) -> None:
    whole = [kernel.name for kernel in recorded(table).kernels]
    found = shown(whole)
    assert set(found) == set(whole)
    assert len(set(found.values())) == len(whole)
    for name, text in found.items():
        assert not text.endswith(("::", " ")), name
        assert "anonymous" not in text
        assert "#" not in text, "what tells them apart is in the name"
        assert len(text) <= NAME_CHARS + len(" [grid 192x1x1]")


def test_the_tables_are_all_of_them() -> None:
    assert len(TABLES) == 7
    assert all(fixture(name)["rows"] for name in TABLES)


@pytest.mark.parametrize("run", [RUN_27B, RUN_35B], ids=["27b", "35b"])
def test_a_run_s_page_shows_each_kernel_once(run: Path) -> None:
    """Records from before names were told apart, those of the 35B, are shown right as well: they hold whole names."""
    report = derive(store.read(run))
    page = markdown.render(report)
    for arm in ("candidate", "oracle"):
        rows = page.partition(f"## {arm}: kernels of a step")[2].partition("\n## ")[0].splitlines()
        cells = [row.split(" | ")[0] for row in rows if row.startswith("| ") and not row.startswith("| kernel")]
        cells = [cell for cell in cells if not cell.startswith("| ---")]
        assert len(cells) == len(set(cells)) == len(getattr(report, arm).kernels)
        assert not any(re.search(r"::\s*$", cell) for cell in cells)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("void marlin::Marlin<1125899906909960l, 256>(int4 const*)", "marlin::Marlin"),
        ("triton_poi_fused_0", "triton_poi_fused_0"),
        ("void cutlass::device_kernel<vllm::cutlass_3x_gemm_sm90_fp8<float> >(P)", "vllm::cutlass_3x_gemm_sm90_fp8"),
        ("void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashFwd<2>>>(P)", "flash::FlashFwd"),
        ("void skinny_kernel<W4A16>(SkinnyArgs) [grid 132x1x1]", "skinny_kernel [grid 132x1x1]"),
        ("Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD (Pinned -> Device)"),
        (f"{ENGINE}grouped_kernel<(engine::Output)0>(engine::GroupedArgs)", "engine::grouped_kernel"),
        ("engine::(anonymous namespace)::gdn_kernel(engine::(anonymous namespace)::GdnArgs)", "engine::gdn_kernel"),
        ("void (anonymous namespace)::softmax<float>(float*)", "softmax"),
        ("void ns::<unnamed>::softmax<float>(float*)", "ns::softmax"),
        ("void ns::apply(int)::{lambda(float*)#1}::operator()<4>(float*) const", "ns::apply"),
        ("ns::{lambda(int)#2}::operator()(int) const", "ns::{lambda(int)#2}::operator()"),
        (LAMBDAS, "at::native::unrolled_elementwise_kernel"),
        ("(kernels that ran equally often in both windows)", "(kernels that ran equally often in both windows)"),
        ("x" * 100, "x" * 47 + "…" + "x" * 32),
    ],
)  # fmt: skip
def test_short_names(name: str, expected: str) -> None:
    assert short(name) == expected


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        (
            [f"{ENGINE}grouped_kernel<(engine::Output){k}>(engine::GroupedArgs)" for k in (0, 1)],
            ["engine::grouped_kernel<Output 0>", "engine::grouped_kernel<Output 1>"],
        ),
        (
            ["void m::Marlin<8l, 128, 1, 4>(int)", "void m::Marlin<8l, 256, 1, 8>(int)"],
            ["m::Marlin<…, 128, …>", "m::Marlin<…, 256, …>"],
        ),
        (
            ["void k<4, a::Mul<float> >(int)", "void k<2, b::Add<float> >(int)", "void k<1, b::Add<float> >(int)"],
            ["k<4, Mul<float>>", "k<2, Add<float>>", "k<1, Add<float>>"],
        ),
        (
            [LAMBDAS, LAMBDAS.replace("lambda(float)", "lambda(long)")],
            [
                "at::native::unrolled_elementwise_kernel<direct_copy_kernel_cuda (float), …>",
                "at::native::unrolled_elementwise_kernel<direct_copy_kernel_cuda (long), …>",
            ],
        ),
        (["void k<1>(int)", "void k<1, 2>(int)"], ["k<…>", "k<…, 2>"]),
        (["k(int)", "k(float)"], ["k #1", "k #2"]),
        (["k<1>(int) [grid 1x1x1]", "k<1>(int) [grid 2x1x1]"], ["k [grid 1x1x1]", "k [grid 2x1x1]"]),
        (["k<1>(int) [grid 1x1x1]", "k<2>(int) [grid 1x1x1]"], ["k<1> [grid 1x1x1]", "k<2> [grid 1x1x1]"]),
        (["f<n::T[4], 2>()", "f<n::T[8], 2>()"], ["f<T[4], …>", "f<T[8], …>"]),
        (["same", "same"], ["same", "same"]),
    ],
)
def test_names_that_are_short_alike(group: list[str], expected: list[str]) -> None:
    found = shown(group)
    assert [found[name] for name in group] == expected


def test_inductor_s_last_number_is_never_cut() -> None:
    one, other = (f"triton_red_fused_{'add_' * 30}{k}" for k in (2, 3))
    found = names.shown([one, other])
    assert found[one].endswith("add_2")
    assert found[other].endswith("add_3")
