"""Number formats of the architecture: E4M3, E2M1, E8M0 and the block formats built from them.

Every function takes and returns float32 tensors (or uint8 codes) on any device and is bit exact:
the same input gives the same codes as a scalar loop over the definitions.

  Q8   32 channels, E4M3 codes, one E8M0 scale        window latents, activations
  Q4i  32 channels, E2M1 codes, one E8M0 scale        indexer queries and keys
  Q4g  16 channels, E2M1 codes, one E4M3 scale        global KV entries
  FP8 weight  32x32 blocks, E4M3 codes, E8M0 scales
  FP4 weight  32 inputs of one row, E2M1 codes, E8M0 scales

Packed E2M1 bytes hold the even element in the low nibble.
"""

import torch

E4M3_MAX = 448.0
E2M1_MAX = 6.0
_INV_448 = torch.tensor(1.0 / 448.0, dtype=torch.float32).item()
_INV_6 = torch.tensor(1.0 / 6.0, dtype=torch.float32).item()
# Smallest weight scale; keeps the scale of an all-zero block a normal number.
_MIN_SCALE = 2.0 ** -126


def exponent_of(x):
    """Unbiased exponent field of |x| (float32), int32. Zero and subnormals give -127."""
    return ((x.contiguous().view(torch.int32) >> 23) & 0xFF) - 127


def pow2(exponent):
    """2**exponent as float32 for int32 exponents in [-126, 127]."""
    return ((exponent + 127) << 23).to(torch.int32).view(torch.float32)


def p2ceil_exponent(t):
    """Exponent e of the smallest power of two 2**e >= t, for normal positive float32 t."""
    bits = t.contiguous().view(torch.int32)
    return (((bits >> 23) & 0xFF) - 127) + ((bits & 0x7FFFFF) != 0).to(torch.int32)


def p2ceil(t):
    """Smallest power of two that is not below t (t > 0, normal)."""
    return pow2(p2ceil_exponent(t))


def round_e4m3(x):
    """Nearest E4M3 (OCP, e4m3fn) value, ties to even, saturating at +-448. Keeps the sign of zero."""
    magnitude = x.abs().clamp(max=E4M3_MAX)
    step = pow2(exponent_of(magnitude).clamp(min=-6) - 3)
    return torch.copysign(torch.round(magnitude / step) * step, x)


def encode_e4m3(x):
    """uint8 codes of values that are already E4M3."""
    magnitude = x.abs()
    exponent = exponent_of(magnitude).clamp(min=-6)
    mantissa = (magnitude / pow2(exponent - 3)).to(torch.int32)  # 0..15, 8.. when normal
    code = torch.where(mantissa >= 8, ((exponent + 7) << 3) + (mantissa - 8), mantissa)
    return (code + torch.signbit(x).to(torch.int32) * 128).to(torch.uint8)


def _e4m3_table():
    values = []
    for code in range(256):
        exponent, mantissa = (code >> 3) & 15, code & 7
        if code & 127 == 127:
            value = float("nan")
        elif exponent == 0:
            value = mantissa * 2.0 ** -9
        else:
            value = (1 + mantissa / 8) * 2.0 ** (exponent - 7)
        values.append(-value if code & 128 else value)
    return torch.tensor(values, dtype=torch.float32)


_E4M3 = _e4m3_table()
_E2M1 = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6, -0.0, -.5, -1, -1.5, -2, -3, -4, -6])


def decode_e4m3(codes):
    return _E4M3.to(codes.device)[codes.long()]


def decode_e8m0(codes):
    """2**(byte-127); byte 0 would be the subnormal 2**-127, byte 255 is NaN."""
    return torch.ldexp(torch.ones((), device=codes.device), codes.to(torch.int32) - 127)


def round_e2m1(x):
    """Nearest E2M1 value, ties to the even code, saturating at +-6. Keeps the sign of zero."""
    magnitude = x.abs().clamp(max=E2M1_MAX)
    step = pow2(exponent_of(magnitude).clamp(min=0) - 1)
    return torch.copysign(torch.round(magnitude / step) * step, x)


def encode_e2m1(x):
    """uint8 codes 0..15 (one per element) of values that are already E2M1."""
    magnitude = x.abs()
    exponent = exponent_of(magnitude).clamp(min=0)
    steps = (magnitude / pow2(exponent - 1)).to(torch.int32)  # 0,1 | 2,3 in every binade
    code = torch.where(steps >= 2, 2 * exponent + steps, steps)
    return (code + torch.signbit(x).to(torch.int32) * 8).to(torch.uint8)


def decode_e2m1(codes):
    return _E2M1.to(codes.device)[codes.long()]


def pack_nibbles(codes):
    """[..., n] codes 0..15 -> [..., n/2] bytes, even element in the low nibble."""
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack_nibbles(packed):
    return torch.stack((packed & 15, packed >> 4), -1).flatten(-2)


def round_bf16(x):
    return x.to(torch.bfloat16).to(torch.float32)


def _blocks(x, size):
    if x.shape[-1] % size:
        raise ValueError(f"last dimension {x.shape[-1]} is not a multiple of the block size {size}")
    return x.reshape(*x.shape[:-1], x.shape[-1] // size, size)


def _q8(x):
    blocks = _blocks(x, 32)
    exponent = p2ceil_exponent(blocks.abs().amax(-1, keepdim=True).clamp(min=1e-4) * _INV_448)
    scale = pow2(exponent)
    return round_e4m3(blocks / scale), scale, exponent


def q8(x):
    """Q8 round trip."""
    code, scale, _ = _q8(x)
    return (code * scale).reshape(x.shape)


def q8_pack(x):
    """(codes uint8 [..., n], scales uint8 [..., n/32])."""
    code, _, exponent = _q8(x)
    return encode_e4m3(code).reshape(x.shape), (exponent + 127).to(torch.uint8).squeeze(-1)


def q8_unpack(codes, scales):
    return (_blocks(decode_e4m3(codes), 32) * decode_e8m0(scales)[..., None]).reshape(codes.shape)


def _q4i(x):
    blocks = _blocks(x, 32)
    exponent = p2ceil_exponent(blocks.abs().amax(-1, keepdim=True).clamp(min=6 * 2.0 ** -126) * _INV_6)
    scale = pow2(exponent)
    return round_e2m1(blocks / scale), scale, exponent


def q4i(x):
    """Q4i round trip."""
    code, scale, _ = _q4i(x)
    return (code * scale).reshape(x.shape)


def q4i_pack(x):
    """(packed uint8 [..., n/2], scales uint8 [..., n/32])."""
    code, _, exponent = _q4i(x)
    return pack_nibbles(encode_e2m1(code).reshape(x.shape)), (exponent + 127).to(torch.uint8).squeeze(-1)


def q4i_unpack(packed, scales):
    values = decode_e2m1(unpack_nibbles(packed))
    return (_blocks(values, 32) * decode_e8m0(scales)[..., None]).reshape(values.shape)


def _q4g(x):
    blocks = _blocks(x, 16)
    scale = round_e4m3(blocks.abs().amax(-1, keepdim=True).clamp(min=6 * 2.0 ** -9) / 6.0)
    return round_e2m1(blocks / scale), scale


def q4g(x):
    """Q4g round trip."""
    code, scale = _q4g(x)
    return (code * scale).reshape(x.shape)


def q4g_pack(x):
    """(packed uint8 [..., n/2], scales uint8 [..., n/16])."""
    code, scale = _q4g(x)
    return pack_nibbles(encode_e2m1(code).reshape(x.shape)), encode_e4m3(scale).squeeze(-1)


def q4g_unpack(packed, scales):
    values = decode_e2m1(unpack_nibbles(packed))
    return (_blocks(values, 16) * decode_e4m3(scales)[..., None]).reshape(values.shape)


def _fp8_weight_scale(w):
    """Exponents [ceil(o/32), ceil(i/32)] and the same spread over the elements of w."""
    rows, columns = w.shape
    padded = torch.nn.functional.pad(w.abs(), (0, -columns % 32, 0, -rows % 32))
    tiles = padded.reshape(padded.shape[0] // 32, 32, padded.shape[1] // 32, 32)
    largest = tiles.amax((1, 3)).clamp(min=E4M3_MAX * _MIN_SCALE)
    exponent = p2ceil_exponent(largest * _INV_448)
    spread = exponent.repeat_interleave(32, 0)[:rows].repeat_interleave(32, 1)[:, :columns]
    return exponent, pow2(spread)


def fp8_weight(w):
    """Round trip of an FP8 weight [o, i]."""
    _, scale = _fp8_weight_scale(w)
    return round_e4m3(w / scale) * scale


def fp8_weight_pack(w):
    """(codes uint8 [o, i], scales uint8 [ceil(o/32), ceil(i/32)])."""
    exponent, scale = _fp8_weight_scale(w)
    return encode_e4m3(round_e4m3(w / scale)), (exponent + 127).to(torch.uint8)


def fp8_weight_unpack(codes, scales):
    rows, columns = codes.shape
    scale = decode_e8m0(scales).repeat_interleave(32, 0)[:rows].repeat_interleave(32, 1)
    return decode_e4m3(codes) * scale[:, :columns]


def fp4_weight(w):
    """Round trip of an FP4 weight [o, i]; the arithmetic is that of Q4i."""
    return q4i(w)


fp4_weight_pack = q4i_pack
fp4_weight_unpack = q4i_unpack


def _fp8_rows(w):
    """Like Q8 but without the 1e-4 floor of activations: scales follow the stored rows."""
    blocks = _blocks(w, 32)
    largest = blocks.abs().amax(-1, keepdim=True).clamp(min=E4M3_MAX * _MIN_SCALE)
    exponent = p2ceil_exponent(largest * _INV_448)
    return round_e4m3(blocks / pow2(exponent)), exponent


def fp8_rows(w):
    """Round trip of Engram table rows (E4M3, one E8M0 scale per 32 channels)."""
    code, exponent = _fp8_rows(w)
    return (code * pow2(exponent)).reshape(w.shape)


def fp8_rows_pack(w):
    code, exponent = _fp8_rows(w)
    return encode_e4m3(code).reshape(w.shape), (exponent + 127).to(torch.uint8).squeeze(-1)


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, function):
        return function(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def straight_through(x, function):
    """function(x) going forward, the identity going backward."""
    return _StraightThrough.apply(x, function)
