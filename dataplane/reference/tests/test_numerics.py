"""Number formats against their definitions: brute force over all codes, scalar loops over blocks."""

import math
import struct

import numpy as np
import pytest
import torch

from reference import config as presets
from reference import numerics
from reference.layers import rope_frequencies, rope_table, rotate
from reference.options import Options

E2M1 = [0, .5, 1, 1.5, 2, 3, 4, 6]


def _e4m3_values():
    """Non-negative finite values by code, from the bit layout s eeee mmm, bias 7."""
    return [(m / 8 * 2.0 ** -6 if e == 0 else (1 + m / 8) * 2.0 ** (e - 7))
            for e in range(16) for m in range(8) if (e, m) != (15, 7)]


def _nearest_code(x, values):
    """Code of the value nearest to |x|, ties to the even code, saturating."""
    best = min(range(len(values)), key=lambda c: (abs(values[c] - min(abs(x), values[-1])), c % 2))
    return best


def _probes(values):
    """All values, all midpoints, and the float32 neighbours of the midpoints."""
    mid = [(a + b) / 2 for a, b in zip(values, values[1:])]
    mid = np.array(mid, np.float32)
    around = np.concatenate((mid, np.nextafter(mid, np.float32(0)), np.nextafter(mid, np.float32(1e9))))
    return np.concatenate((np.array(values, np.float32), around, np.array([values[-1] * 3], np.float32)))


@pytest.mark.parametrize("values, round_, encode, decode, sign", [
    (_e4m3_values(), numerics.round_e4m3, numerics.encode_e4m3, numerics.decode_e4m3, 128),
    (E2M1, numerics.round_e2m1, numerics.encode_e2m1, numerics.decode_e2m1, 8),
])
def test_rounding_and_codes_agree_with_brute_force(values, round_, encode, decode, sign):
    positive = _probes(values)
    rng = np.random.default_rng(0)
    positive = np.concatenate((positive, np.abs(rng.normal(size=500)).astype(np.float32) * values[-1] / 3))
    expected = [_nearest_code(float(x), values) for x in positive]
    for factor, offset in ((1, 0), (-1, sign)):
        x = torch.from_numpy(positive * np.float32(factor))
        rounded = round_(x)
        assert encode(rounded).tolist() == [c + offset for c in expected]
        assert torch.equal(decode(encode(rounded)), rounded)
        assert torch.equal(torch.signbit(rounded), torch.full_like(x, factor < 0, dtype=torch.bool))


def test_e2m1_ties():
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    assert numerics.round_e2m1(ties).tolist() == [0, 1, 1, 2, 2, 4, 4]
    assert numerics.encode_e2m1(numerics.round_e2m1(torch.tensor([-0.25]))).tolist() == [8]


def test_e4m3_table_has_the_published_extremes():
    assert float(numerics.decode_e4m3(torch.tensor([0x7E], dtype=torch.uint8))) == 448
    assert float(numerics.decode_e4m3(torch.tensor([1], dtype=torch.uint8))) == 2.0 ** -9
    assert math.isnan(float(numerics.decode_e4m3(torch.tensor([0x7F], dtype=torch.uint8))))


@pytest.mark.parametrize("x, power", [(1.0, 0), (1.0000001, 1), (2.0, 1), (3.0, 2), (0.25, -2), (0.26, -1),
                                      (2.0 ** -126, -126)])
def test_p2ceil_keeps_powers_of_two_and_rounds_others_up(x, power):
    assert float(numerics.p2ceil(torch.tensor([x]))) == 2.0 ** power


def test_nibbles_hold_the_even_element_low():
    assert numerics.pack_nibbles(torch.tensor([1, 2, 15, 0], dtype=torch.uint8)).tolist() == [0x21, 0x0F]
    codes = torch.arange(16, dtype=torch.uint8)
    assert torch.equal(numerics.unpack_nibbles(numerics.pack_nibbles(codes)), codes)


def _p2ceil_exponent(t):
    bits = struct.unpack("<I", struct.pack("<f", t))[0]
    return ((bits >> 23) & 255) - 127 + (1 if bits & 0x7FFFFF else 0)


def _scalar_block(block, values, floor, factor):
    """(signed codes as values, exponent) of a block with an E8M0 scale, in float32 steps."""
    a = max(max(abs(float(x)) for x in block), floor)
    exponent = _p2ceil_exponent(np.float32(a) * np.float32(factor))
    scaled = [float(np.float32(x) / np.float32(2.0 ** exponent)) for x in block]
    return [math.copysign(values[_nearest_code(x, values)], x) for x in scaled], exponent


def _samples():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(24, 64)).astype(np.float32) * np.exp(rng.normal(size=(24, 1)) * 6).astype(np.float32)
    x[0], x[1, :32], x[2] = 0, 1e-6, 448.0
    x[3, 0] = -0.0
    return x


@pytest.mark.parametrize("pack, unpack, values, floor, factor", [
    (numerics.q8_pack, numerics.q8_unpack, _e4m3_values(), 1e-4, 1 / 448),
    (numerics.q4i_pack, numerics.q4i_unpack, E2M1, 6 * 2.0 ** -126, 1 / 6),
])
def test_e8m0_blocks_agree_with_scalar_loops(pack, unpack, values, floor, factor):
    x = _samples()
    codes, scales = pack(torch.from_numpy(x))
    got = unpack(codes, scales).numpy()
    for r in range(len(x)):
        for b in range(2):
            expected, exponent = _scalar_block(x[r, b * 32:b * 32 + 32], values, floor, factor)
            assert int(scales[r, b]) == exponent + 127
            assert got[r, b * 32:b * 32 + 32].tolist() == [v * 2.0 ** exponent for v in expected]
    assert torch.equal(torch.from_numpy(got), (numerics.q8 if values != E2M1 else numerics.q4i)(torch.from_numpy(x)))


def test_q4g_agrees_with_scalar_loops():
    x, table = _samples(), _e4m3_values()
    packed, scales = numerics.q4g_pack(torch.from_numpy(x))
    got = numerics.q4g_unpack(packed, scales).numpy()
    for r in range(len(x)):
        for b in range(4):
            block = x[r, b * 16:b * 16 + 16]
            a = max(float(np.abs(block).max()), 6 * 2.0 ** -9)
            code = _nearest_code(float(np.float32(a) / np.float32(6)), table)
            assert int(scales[r, b]) == code
            scaled = [float(v / np.float32(table[code])) for v in block]
            expected = [math.copysign(E2M1[_nearest_code(v, E2M1)], v) * table[code] for v in scaled]
            assert got[r, b * 16:b * 16 + 16].tolist() == expected
    assert np.array_equal(numerics.q4g(torch.from_numpy(x)).numpy(), got)
    assert torch.equal(torch.from_numpy(got).bfloat16().float(), torch.from_numpy(got))


def test_q4g_clamps_when_the_scale_is_rounded_down():
    x = torch.zeros(16)
    x[0] = 6.3 * 1.0  # 6.3 / 6 rounds to the scale 1
    assert float(numerics.q4g(x)[0]) == 6.0


def test_q8_is_exact_in_bf16_and_idempotent():
    y = numerics.q8(torch.from_numpy(_samples()))
    assert torch.equal(y.bfloat16().float(), y)
    assert torch.equal(numerics.q8(y)[4:], y[4:])


def test_fp8_weights_use_tiles_of_32_by_32_with_ragged_edges():
    w = torch.from_numpy(np.random.default_rng(2).normal(size=(40, 72)).astype(np.float32))
    w[:32, :32] *= 1000
    codes, scales = numerics.fp8_weight_pack(w)
    assert scales.shape == (2, 3) and codes.shape == w.shape
    back = numerics.fp8_weight_unpack(codes, scales)
    assert torch.equal(back, numerics.fp8_weight(w))
    for i in range(2):
        for j in range(3):
            tile = w[i * 32:i * 32 + 32, j * 32:j * 32 + 32]
            assert int(scales[i, j]) - 127 == _p2ceil_exponent(np.float32(tile.abs().max()) * np.float32(1 / 448))
    assert ((back - w).abs() <= w.abs() * 2.0 ** -4 + 1e-3).all()


def test_fp4_weights_have_one_scale_per_32_inputs_of_a_row():
    w = torch.from_numpy(np.random.default_rng(3).normal(size=(5, 64)).astype(np.float32))
    packed, scales = numerics.fp4_weight_pack(w)
    assert packed.shape == (5, 32) and scales.shape == (5, 2)
    assert torch.equal(numerics.fp4_weight_unpack(packed, scales), numerics.fp4_weight(w))


def test_storage_rounding_is_idempotent():
    w = torch.from_numpy(np.random.default_rng(4).normal(size=(64, 64)).astype(np.float32))
    w[0] = 0
    for round_trip in (numerics.fp8_weight, numerics.fp4_weight, numerics.fp8_rows):
        assert torch.equal(round_trip(round_trip(w)), round_trip(w))


def test_widths_that_are_no_multiple_of_the_block_are_refused():
    with pytest.raises(ValueError, match="48"):
        numerics.q8(torch.zeros(48))


def test_straight_through_passes_gradients_unchanged():
    x = torch.randn(32, requires_grad=True)
    y = numerics.straight_through(x, numerics.q8)
    assert torch.equal(y.detach(), numerics.q8(x.detach()))
    (y * torch.arange(32.)).sum().backward()
    assert torch.equal(x.grad, torch.arange(32.))


def test_yarn_frequencies_of_the_released_model():
    f = rope_frequencies(presets.official(), compressed=True)
    published = {0: 1.0, 15: 3.635539e-3, 16: 2.265625e-3, 20: 2.969778e-4, 24: 1.953125e-5,
                 25: 5.372313e-6, 31: 5.680529e-7}
    for i, value in published.items():
        assert float(f[i]) == pytest.approx(value, rel=2e-7 if i else 0), i
    main = rope_frequencies(presets.official(), compressed=False)
    assert [float(x) for x in main] == pytest.approx([10000 ** (-2 * i / 64) for i in range(32)], rel=1e-7)


def test_rotation_turns_adjacent_pairs_of_the_last_channels_and_back():
    x = torch.zeros(1, 1, 6)
    x[0, 0, 2:] = torch.tensor([1.0, 0.0, 0.0, 2.0])
    table = rope_table(torch.tensor([1.0, 0.5]), torch.tensor([[3]]))
    y = rotate(x, table, Options.exact())
    assert y[0, 0].tolist() == pytest.approx(
        [0, 0, math.cos(3), math.sin(3), -2 * math.sin(1.5), 2 * math.cos(1.5)], abs=1e-6)
    assert torch.allclose(rotate(y, table, Options.exact(), inverse=True), x, atol=1e-6)
