"""docs/kernels.md's tables for a GB10: each function of ours has a row, or a reason; times are bytes over bandwidth."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from engine.kernels.build import ENGINE, exported, sources
from engine.ops.moe import cuda as moe
from engine.ops.moe import cuda_prefill
from engine.ops.w4a16 import wide

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "kernels.md").read_text()
PART = PAGE.split("\n## GB10: expected, not run\n")[1].split("\n## ")[0]
ROW_OF = {
    "add_norm": "add + norm + E4M3",
    "add_norm_route": "add + norm + router + routing",
    "argmax": "argmax of 248320",
    "attention_decode": "attention, 1152 tokens",
    "attention_gate": "attention's gate + E4M3",
    "gdn_conv": "GDN convolution",
    "gdn_decode": "GDN step",
    "gdn_gated_norm": "GDN gated norm + E4M3",
    "moe_grouped": "experts, gate_up + SwiGLU",
    "moe_grouped_many": "experts of many tokens, gate_up + SwiGLU",
    "moe_route_many": "routing of many tokens",
    "moe_router": "router + routing",
    "qk_norm_rope": "qk-norm + rope + KV write",
    "quantize": "x to E4M3",
    "swiglu": "SwiGLU of gate_up's product",
    "w4a16_argmax": "W4A16 lm_head, argmax in it",
    "w4a16_rows": "W4A16 weights to rows",
    "w4a16_skinny": "W4A16 down",
    "w8a8_rows": "W8A8 weights to rows",
    "w8a8_skinny": "W8A8 qkv_proj",
}
"""Function without `engine_` -> how a row begins."""
HOPPERS = {"gdn_chunks", "gdn_scan", "moe_combine", "moe_grouped_wide", "moe_spread", "w4a16_wide"}
"""No GB10 launches them; of two of them, what is launched in their place has rows too."""
OTHERWISE = {
    "moe_grouped_fp8": "in FP8 1.77 times their bytes",
    "moe_grouped_many_fp8": "in FP8 1.77 times their bytes",
    "moe_route": "The routing of few tokens is in `router + routing`",
}
"""What the text says in place of a row."""


def rows() -> list[tuple[str, list[str]]]:
    """(title, cells) of every row with figures."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in PART.splitlines() if line[:1] == "|"]
    return [(title, figures) for title, *figures in cells if re.fullmatch(r"[\d.]+", figures[0])]


def test_every_function_has_a_row_or_a_reason() -> None:
    named = [*ROW_OF, *HOPPERS, *OTHERWISE]
    assert sorted(named) == sorted(name.removeprefix("engine_") for path in sources() for name in exported(path))
    titles = [title for title, _ in rows()]
    for start in ROW_OF.values():
        assert any(title.startswith(start) for title in titles), start
    for text in OTHERWISE.values():
        assert text in PART.replace("\n", " "), text


def test_what_is_called_hopper_s_alone_is() -> None:
    for archs in (wide.WIDE_ARCHS, moe.WIDE_ARCHS, cuda_prefill.LIBRARY_ARCHS):
        assert archs == ("90a",)
    assert '\nSCAN_ARCHS = ("90a",)\n' in (ENGINE / "ops/gdn/chunked.py").read_text()  # to import it needs Triton


@pytest.mark.parametrize(("title", "figures"), rows(), ids=[f"{i}-{title[:40]}" for i, (title, _) in enumerate(rows())])
def test_times_are_bytes_over_bandwidth(title: str, figures: list[str]) -> None:
    """As far as megabytes of one decimal say."""
    assert len(figures) % 3 == 0
    for first in range(0, len(figures), 3):
        megabytes, *times = figures[first : first + 3]
        for time, gbps in zip(times, (273, 232), strict=True):
            unit = 1 if title.endswith(", ms") else 1e3
            decimals = len(time.partition(".")[2])
            found, slack = float(megabytes) * unit / gbps, 0.05 * unit / gbps + 0.51 * 10**-decimals
            assert abs(float(time) - found) <= slack, (title, time, found)


def test_new_rows_have_the_bytes_of_their_shapes() -> None:
    """27B: hidden 5120, inter 17408; 35B: 2048, 512, 256 experts and 8 of them, and the shared one; 1,024 tokens."""
    tokens, slots = 1024, 9
    x, inner, by_pair = tokens * 2048 * 2, tokens * slots * 512 * 2, tokens * slots * 2048 * 2
    held = [257 * (n * k * 9 // 16 + n * 4) for n, k in ((1024, 2048), (2048, 512))]
    per_pair = tokens * slots * 4
    routed = tokens * 257 * 2 + (257 + tokens * slots // 64) * 16 + 4 + 3 * per_pair + tokens * 8 * 4 + 257 * 4
    expected = {
        "argmax of 248320, of other logits and not in the sum": 248320 * 2,
        "W8A8 weights to rows, in_proj_qkvz": 2 * 16384 * 5120,
        "W8A8 weights to rows, qkv_proj": 2 * 14336 * 5120,
        "W8A8 weights to rows, out_proj, o_proj": 2 * 5120 * 6144,
        "SwiGLU of gate_up's product": tokens * (34816 + 17408) * 2,
        "routing of many tokens, two launches": routed,
        "experts of many tokens, gate_up + SwiGLU": held[0] + x + inner,
        "experts of many tokens, down": held[1] + inner + by_pair,
        "x to E4M3 for FP8 experts, gate_up's": x * 3 // 2 + tokens * 4,
        "x to E4M3 for FP8 experts, down's": inner * 3 // 2 + per_pair,
        "add + norm of the weighted pairs": by_pair + per_pair + 3 * x,
    }
    eight = [257 * (n * k + n * 4) for n, k in ((1024, 2048), (2048, 512))]
    assert f"in FP8 {sum(eight) / sum(held):.2f} times their bytes" in PART
    found = {title: figures[0] for title, figures in rows()}
    assert {title: found.get(title) for title in expected} == {t: f"{n / 1e6:.1f}" for t, n in expected.items()}
