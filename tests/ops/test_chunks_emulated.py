"""ops/gdn/{chunks,scan}.cu in the emulator, against float64: T beta, Q Kᵀ ∘ D, factors of rows; a run and its state."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from engine.kernels.library import KernelError
from tests.ops import emulator
from tests.ops.poison import relative_error

pytestmark = pytest.mark.skipif(emulator.compiler() is None, reason="needs g++ to compile kernels for the CPU")

CHUNK, DIM = 64, 128
ERROR = 2**-16
"""Two bfloat16 terms hold a number to 2⁻¹⁷ of its size; as much again for sums in fp32 and the exponentials."""
STATE_ERROR = 5e-5
"""A tenth of what the GPU tests allow."""
ROUNDED_OTHERWISE = 0.02
"""Share of a run's outputs that are not the reference rounded to bfloat16: at most 0.005; 0.03 without a low term."""
EQUAL_KEYS_ERROR = 1e-4
"""There entries of T are differences of larger ones."""


def run(mixed, ba, rate, bias, heads, repeat, poison, swizzled=0, count=None):
    tokens, channels = mixed.shape
    chunks = -(-tokens // CHUNK)
    squares = poison.empty(heads, chunks, 4, CHUNK, CHUNK, dtype=torch.bfloat16)
    factors = poison.empty(heads, chunks, 4, CHUNK, dtype=torch.float32)
    sizes = (tokens, heads, repeat, heads // repeat * DIM, channels, ba.stride(0), DIM**-0.5, swizzled)
    tensors = (mixed, ba, rate, bias, squares, factors, count)
    emulator.build("gdn", "chunks")("engine_gdn_chunks", mixed.device, *tensors, *sizes)
    return squares, factors


def expected(mixed, ba, rate, bias, heads, repeat):
    """[heads][chunks]: (T beta, Q Kᵀ ∘ D, factors [4, 64])."""
    tokens = mixed.shape[0]
    padded = F.pad(mixed, (0, 0, 0, -tokens % CHUNK)).double()
    width = heads // repeat * DIM
    made = []
    for head in range(heads):
        key_head = head // repeat
        beta = F.pad(ba[:, head].double().sigmoid(), (0, -tokens % CHUNK))
        log_decay = F.softplus(ba[:, heads + head].double() + bias[head].double()) * rate[head].double()
        log_decay = F.pad(log_decay, (0, -tokens % CHUNK))
        rows = []
        for start in range(0, padded.shape[0], CHUNK):
            part = slice(start, start + CHUNK)
            q = padded[part, key_head * DIM : (key_head + 1) * DIM]
            k = padded[part, width + key_head * DIM : width + (key_head + 1) * DIM]
            q_norm = torch.rsqrt((q * q).sum(1) + 1e-6) * DIM**-0.5
            k_norm = torch.rsqrt((k * k).sum(1) + 1e-6)
            total = log_decay[part].cumsum(0)
            decay = (total[:, None] - total[None]).clamp(max=0).exp()
            system = ((k * k_norm[:, None]) @ (k * k_norm[:, None]).T * decay * beta[part, None]).tril(-1)
            inverse = torch.linalg.inv(torch.eye(CHUNK, dtype=torch.float64) + system) * beta[part]
            scores = ((q * q_norm[:, None]) @ (k * k_norm[:, None]).T * decay).tril()
            whole = total[-1]
            factors = torch.stack(
                (k_norm * total.exp(), q_norm * total.exp(), k_norm * (whole - total).exp(), whole.exp().expand(CHUNK))
            )
            rows.append((inverse, scores, factors))
        made.append(rows)
    return made


def check(squares, factors, wanted, error):
    for head, chunks in enumerate(wanted):
        for chunk, (inverse, scores, rows) in enumerate(chunks):
            found = squares[head, chunk].double()
            for high, low in ((0, 1), (2, 3)):  # the scan leaves the product of two low terms out
                assert (found[low].abs() <= 2**-8 * found[high].abs() + 2**-133).all()
            assert relative_error(found[0] + found[1], inverse) < error
            assert relative_error(found[2] + found[3], scores) < error
            assert not found.triu(1).any()
            assert relative_error(factors[head, chunk], rows) < ERROR


@pytest.mark.parametrize("tokens", [1, 16, 63, 64, 65, 150])
@pytest.mark.parametrize(("key_heads", "repeat"), [(1, 1), (2, 2), (1, 3)])
def test_random_rows(tokens, key_heads, repeat, generator, poison):
    heads = key_heads * repeat
    mixed = torch.randn(tokens, (2 * key_heads + heads) * DIM, generator=generator).bfloat16()
    ba = torch.randn(tokens, 2 * heads + 8, generator=generator).bfloat16()[:, : 2 * heads]  # rows further apart
    rate, bias = -torch.rand(heads, generator=generator) * 2, torch.rand(heads, generator=generator) * 2 - 1
    squares, factors = run(mixed, ba, rate, bias, heads, repeat, poison)
    check(squares, factors, expected(mixed, ba, rate, bias, heads, repeat), ERROR)


@pytest.mark.parametrize("decays", [0.0, -1e-3, -30.0])
def test_equal_keys_and_extreme_gates(decays, generator, poison):
    """Powers of such a system grow: a series over 64 rows fails on it. Strong decays underflow, and only that."""
    mixed = torch.randn(1, 3 * DIM, generator=generator).bfloat16().expand(CHUNK, -1).contiguous()
    ba = torch.stack((torch.full((CHUNK,), 8.0), torch.linspace(-30, 100, CHUNK)), 1).bfloat16()
    rate, bias = torch.tensor([decays]), torch.zeros(1)
    squares, factors = run(mixed, ba, rate, bias, 1, 1, poison)
    check(squares, factors, expected(mixed, ba, rate, bias, 1, 1), EQUAL_KEYS_ERROR)


def test_tokens_behind_the_last_have_no_influence(generator, poison):
    mixed = torch.randn(CHUNK, 3 * DIM, generator=generator).bfloat16()
    ba = torch.randn(CHUNK, 2, generator=generator).bfloat16()
    rate, bias = torch.tensor([-0.5]), torch.zeros(1)
    whole = run(mixed, ba, rate, bias, 1, 1, poison)[0][0, 0]
    part = run(mixed[:20].clone(), ba[:20].clone(), rate, bias, 1, 1, poison)[0][0, 0]
    assert torch.equal(part[:, :20, :20], whole[:, :20, :20])
    assert not part[:, :, 20:].any()
    assert not part[:2, 20:].any()  # a row that is not there writes nothing; its q is zero


@pytest.mark.parametrize("change", [{"tokens": 0}, {"heads": 3}, {"key_width": 256}, {"channels": 388}])
def test_shapes_outside_the_contract_are_refused(change):
    sizes = {"tokens": 2, "heads": 2, "repeat": 2, "key_width": 128, "channels": 512, "ba_stride": 4} | change
    with pytest.raises(KernelError, match="CUDA error 1"):
        emulator.build("gdn", "chunks")("engine_gdn_chunks", torch.device("cpu"), *[None] * 7, *sizes.values(), 1.0, 0)


def scan(mixed, squares, factors, state, heads, repeat, poison, *, count=None, slot=None, **build):
    tokens, channels = mixed.shape
    out = poison.empty(tokens, heads * DIM, dtype=torch.bfloat16)
    sizes = (tokens, heads, repeat, heads // repeat * DIM, channels, 0 if slot is None else state.stride(0))
    call = emulator.build("gdn", "scan", **build)
    call("engine_gdn_scan", mixed.device, mixed, squares, factors, state, out, count, slot, *sizes)
    return out


def recurrent(mixed, ba, rate, bias, heads, repeat, state):
    """Token by token in float64 -> [tokens, heads, 128]; replaces the state."""
    width, rows = heads // repeat * DIM, mixed.double()
    outs = []
    for token, row in enumerate(rows):
        for head in range(heads):
            key = head // repeat * DIM
            q, k, v = row[key : key + DIM], row[width + key : width + key + DIM], row[2 * width + head * DIM :][:DIM]
            q, k = q * torch.rsqrt((q * q).sum() + 1e-6) * DIM**-0.5, k * torch.rsqrt((k * k).sum() + 1e-6)
            gate = F.softplus(ba[token, heads + head].double() + bias[head].double()) * rate[head].double()
            state[head] *= gate.exp()
            error = (v - state[head] @ k) * ba[token, head].double().sigmoid()
            state[head] += torch.outer(error, k)
            outs.append(state[head] @ q)
    return torch.stack(outs).view(len(rows), heads, DIM)


def gates(tokens, heads, generator):
    ba = torch.randn(tokens, 2 * heads, generator=generator).bfloat16()
    return ba, -torch.rand(heads, generator=generator) * 2, torch.rand(heads, generator=generator) * 2 - 1


@pytest.mark.parametrize("tokens", [1, 63, 64, 65, 200])
@pytest.mark.parametrize(("key_heads", "repeat"), [(1, 1), (2, 2), (1, 3)])
def test_a_run_from_any_state(tokens, key_heads, repeat, generator, poison):
    heads = key_heads * repeat
    mixed = torch.randn(tokens, (2 * key_heads + heads) * DIM, generator=generator).bfloat16()
    ba, rate, bias = gates(tokens, heads, generator)
    state = torch.randn(heads, DIM, DIM, generator=generator) * 0.1
    wanted = state.double()
    outputs = recurrent(mixed, ba, rate, bias, heads, repeat, wanted)
    squares, factors = run(mixed, ba, rate, bias, heads, repeat, poison, swizzled=1)
    out = scan(mixed, squares, factors, state, heads, repeat, poison)
    assert relative_error(out.view_as(outputs), outputs) < 2**-8
    assert (out.view_as(outputs) != outputs.bfloat16()).float().mean() < ROUNDED_OTHERWISE
    for head in range(heads):
        assert relative_error(state[head], wanted[head]) < STATE_ERROR


def test_a_run_that_forgets_little(generator, poison):
    """All of the first state is read, and remembered: its low terms too. Each stage is used four times."""
    tokens = 8 * CHUNK + 2
    mixed = torch.randn(tokens, 3 * DIM, generator=generator).bfloat16()
    ba, _, bias = gates(tokens, 1, generator)
    rate, state = torch.tensor([-1e-3]), torch.randn(1, DIM, DIM, generator=generator)
    wanted = state.double()
    outputs = recurrent(mixed, ba, rate, bias, 1, 1, wanted)
    squares, factors = run(mixed, ba, rate, bias, 1, 1, poison, swizzled=1)
    out = scan(mixed, squares, factors, state, 1, 1, poison)
    assert (out.view_as(outputs) != outputs.bfloat16()).float().mean() < ROUNDED_OTHERWISE
    assert relative_error(state[0], wanted[0]) < STATE_ERROR


def test_a_run_of_equal_keys(generator, poison):
    mixed = torch.randn(1, 3 * DIM, generator=generator).bfloat16().expand(130, -1).contiguous()
    ba = torch.tensor([9.0, -20.0]).bfloat16().expand(130, -1).contiguous()
    rate, bias, state = torch.tensor([-1.0]), torch.zeros(1), torch.randn(1, DIM, DIM, generator=generator) * 0.1
    wanted = state.double()
    recurrent(mixed, ba, rate, bias, 1, 1, wanted)
    squares, factors = run(mixed, ba, rate, bias, 1, 1, poison, swizzled=1)
    scan(mixed, squares, factors, state, 1, 1, poison)
    assert relative_error(state[0], wanted[0]) < 4 * STATE_ERROR


def test_a_run_in_two_halves_is_the_run(generator, poison):
    """The state is all that passes between them, to the bit."""
    mixed = torch.randn(128, 3 * DIM, generator=generator).bfloat16()
    ba, rate, bias = gates(128, 1, generator)
    first = torch.randn(1, DIM, DIM, generator=generator)
    states = [first.clone(), first.clone()]
    whole = scan(mixed, *run(mixed, ba, rate, bias, 1, 1, poison, swizzled=1), states[0], 1, 1, poison)
    halves = []
    for part in (slice(0, 64), slice(64, 128)):
        rows, own = mixed[part].contiguous(), ba[part].contiguous()
        halves.append(scan(rows, *run(rows, own, rate, bias, 1, 1, poison, swizzled=1), states[1], 1, 1, poison))
    assert torch.equal(torch.cat(halves), whole)
    assert torch.equal(*states)


@pytest.mark.parametrize("change", [{"tokens": 0}, {"heads": 3}, {"key_width": 256}, {"channels": 388}])
def test_the_scan_refuses_shapes_outside_the_contract(change):
    sizes = {"tokens": 2, "heads": 2, "repeat": 2, "key_width": 128, "channels": 512} | change
    with pytest.raises(KernelError, match="CUDA error 1"):
        emulator.build("gdn", "scan")("engine_gdn_scan", torch.device("cpu"), *[None] * 7, *sizes.values(), 0)


def test_the_scan_of_a_smaller_device_is_refused(poison):
    with pytest.raises(KernelError, match="CUDA error 9"):
        scan(torch.zeros(2, 384).bfloat16(), *[None] * 3, 1, 1, poison, max_shared_bytes=99 * 1024)
