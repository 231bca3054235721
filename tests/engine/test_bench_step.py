"""engine/bench_step without a GPU: kernel names to families, and the table."""

from __future__ import annotations

import pytest
import torch

from engine.bench_step import FAMILIES, Family, Measured, by_family, family_of
from engine.roofs import roof_of


@pytest.mark.parametrize(
    ("kernel", "family"),
    [
        (
            "void engine::skinny_kernel<engine::(anonymous namespace)::W4A16, 1, false, (engine::Epilogue)2>",
            "W4A16 product",
        ),
        (
            "void engine::skinny_kernel<engine::(anonymous namespace)::W8A8, 1, true, (engine::Epilogue)0>",
            "W8A8 product",
        ),
        ("void engine::(anonymous namespace)::add_norm_kernel<4>(engine::NormArgs)", "add, norm, quantise, b/a"),
        (
            "void engine::(anonymous namespace)::add_norm_kernel<(engine::(anonymous namespace)::Behind)0, 0>"
            "(engine::(anonymous namespace)::NormArgs)",
            "add, norm, quantise, b/a",
        ),
        (
            "void engine::(anonymous namespace)::add_norm_kernel<(engine::(anonymous namespace)::Behind)2, 5>"
            "(engine::(anonymous namespace)::NormArgs)",
            "add, norm, router, routing",
        ),
        ("engine::(anonymous namespace)::w4a16_rows_kernel(unsigned char const*)", "weights to rows"),
        ("void engine::(anonymous namespace)::grouped_kernel<(engine::Output)0>(engine::GroupedArgs)", "experts"),
        ("void engine::(anonymous namespace)::grouped_many_kernel<(engine::Output)2>(engine::GroupedArgs)", "experts"),
        ("void engine::(anonymous namespace)::grouped_wide_kernel<(engine::Output)2>(engine::GroupedArgs)", "experts"),
        (
            "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape<"
            "cute::tuple<int, int, int>>, cutlass::gemm::collective::CollectiveMma<",
            "experts (library)",
        ),
        (
            "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int>, ",
            "library products",
        ),
        ("void at::cuda::detail::prepare_grouped_gemm_data<cutlass::bfloat16_t, ", "experts (library)"),
        (
            "engine::(anonymous namespace)::combine_pairs_kernel(engine::(anonymous namespace)::CombineArgs)",
            "experts: x by pair, sums",
        ),
        ("engine::(anonymous namespace)::router_kernel(engine::(anonymous namespace)::RouterArgs)", "routing"),
        ("engine::(anonymous namespace)::route_chunk_kernel(engine::(anonymous namespace)::ManyRoutes)", "routing"),
        ("engine::(anonymous namespace)::route_layout_kernel(engine::(anonymous namespace)::ManyRoutes)", "routing"),
        ("_chunk_kernel", "GDN chunks"),
        ("engine::(anonymous namespace)::gdn_chunk_kernel(engine::(anonymous namespace)::ChunkArgs)", "GDN chunks"),
        ("engine::(anonymous namespace)::gdn_scan_kernel(engine::(anonymous namespace)::ScanArgs)", "GDN chunks"),
        ("nvjet_tst_256x128_64x4_2x1_v_bz_coopA_TNN", "library products"),
        ("Memcpy HtoD (Pinned -> Device)", "copies"),
        ("void at::native::vectorized_gather_kernel<16, long>", "torch"),
    ],
)
def test_kernels_belong_to_families(kernel, family):
    assert family_of(kernel) == family


def test_family_names_are_distinct():
    assert len({name for name, _ in FAMILIES}) == len(FAMILIES)


def test_table_puts_the_slowest_first_and_leaves_uncounted_bytes_out():
    families = (Family("argmax", 1, 10.0, 7.0), Family("W8A8 product", 128, 2000.0, 1900.0, 4_420_000_000))
    lines = list(Measured("decode", 2100.4, families, roof_bytes_per_s=4.42e12).lines())
    assert lines[0] == "decode: 2100 µs a step, 129 launches"
    assert lines[2].split() == ["W8A8", "product", "128.0", "2000.0", "1900.0", "4.420", "2210", "50%"]
    assert lines[3].split() == ["argmax", "1.0", "10.0", "7.0"]
    assert lines[4].split() == ["sum", "129.0", "2010.0", "1907.0"]


@pytest.mark.parametrize(("name", "roof"), [("NVIDIA H200", 4.42e12), ("NVIDIA GB10", None)])
def test_a_share_is_of_this_device_s_roof_or_of_none(monkeypatch, name, roof):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)
    assert roof_of(torch.device("cuda")) == roof
    families = (Family("W8A8 product", 128, 2000.0, 1900.0, 4_420_000_000),)
    line = list(Measured("decode", 2100.4, families, roof_bytes_per_s=roof).lines())[2]
    assert line.split()[-1] == ("50%" if roof else "–")


def test_own_time_is_what_puts_the_end_off():
    """Two steps: a norm under way while the product before it drains, a copy inside the norm, then a gap."""
    product, norm, copy = "skinny_kernel<W8A8>", "add_norm_kernel", "Memcpy HtoD"
    step = [(0.0, 10.0, product), (6.0, 13.0, norm), (7.0, 9.0, copy)]
    kernels = [*step, *((begin + 20, end + 20, name) for begin, end, name in step)]
    found = {f.name: f for f in by_family(kernels[::-1], 2)}
    assert found["W8A8 product"] == Family("W8A8 product", 1.0, 10.0, 10.0)
    assert found["add, norm, quantise, b/a"] == Family("add, norm, quantise, b/a", 1.0, 7.0, 3.0)
    assert found["copies"] == Family("copies", 1.0, 2.0, 0.0)
    assert sum(f.own_us for f in found.values()) == 13.0
