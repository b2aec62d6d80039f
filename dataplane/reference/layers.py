"""Leaf modules: quantization-aware linear layers, RMS norm, rotary tables."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from reference import numerics

_WEIGHT_ROUND_TRIP = {
    "fp8": numerics.fp8_weight,
    "fp4": numerics.fp4_weight,
    "rows": numerics.fp8_rows,
    "bf16": numerics.round_bf16,
    "f32": None,
}


def quantized_weight(weight, kind, options):
    """The weight as served: rounded to its storage format when the options ask for it."""
    round_trip = _WEIGHT_ROUND_TRIP[kind]
    if not options.weight_quant or round_trip is None:
        return weight
    return numerics.straight_through(weight, round_trip)


def matmul(x, weight, options, promote=False):
    """x . weight^T with a float32 result; `promote` marks products that stay fp32 when served."""
    if options.matmul_bf16:
        return F.linear(x.to(torch.bfloat16), weight.to(torch.bfloat16)).to(torch.float32)
    y = F.linear(x, weight)
    return y if promote else options.round(y)


class Linear(nn.Module):
    """y = x . W^T, no bias. `kind` is the storage format of the weight: fp8, fp4, bf16 or f32."""

    def __init__(self, inputs, outputs, kind):
        super().__init__()
        self.kind = kind
        self.weight = nn.Parameter(torch.empty(outputs, inputs))

    def forward(self, x, options, promote=False, act_quant=True):
        if act_quant and options.act_quant and self.kind in ("fp8", "fp4"):
            x = numerics.straight_through(x, numerics.q8)
        return matmul(x, quantized_weight(self.weight, self.kind, options), options, promote)


class Table(nn.Module):
    """Lookup table [rows, width]."""

    def __init__(self, rows, width, kind):
        super().__init__()
        self.kind = kind
        self.weight = nn.Parameter(torch.empty(rows, width))

    def forward(self, ids, options):
        return quantized_weight(F.embedding(ids, self.weight), self.kind, options)


class RmsNorm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.eps = eps
        self.kind = "bf16"
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x, options):
        weight = quantized_weight(self.weight, "bf16", options)
        return options.round(weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)))


def rope_frequencies(config, compressed):
    """float32 [rope_dim / 2]; `compressed` selects the YaRN table of layers that read global KV.

    Computed in float64 and rounded once.
    """
    d = config.qk_rope_head_dim
    theta = float(config.compress_rope_theta if compressed else config.rope_theta)
    i = torch.arange(d // 2, dtype=torch.float64)
    f = theta ** (-2 * i / d)
    if compressed:
        scaling = config.rope_scaling

        def correction(rotations):
            length = scaling["original_max_position_embeddings"]
            return d * math.log(length / (2 * math.pi * rotations)) / (2 * math.log(theta))
        low = max(math.floor(correction(scaling["beta_fast"])), 0)
        high = min(math.ceil(correction(scaling["beta_slow"])), d - 1)
        ramp = ((i - low) / max(high - low, 1e-3)).clamp(0, 1)
        f = f * (1 - ramp) + f / scaling["factor"] * ramp
    return f.to(torch.float32)


def rope_table(frequencies, positions):
    """(cos, sin) [..., rope_dim / 2] float32: the angle is a float32 product, its functions exact."""
    angle = (positions.to(torch.float32)[..., None] * frequencies.to(positions.device)).to(torch.float64)
    return angle.cos().to(torch.float32), angle.sin().to(torch.float32)


def rotate(x, table, options, inverse=False):
    """Rotates adjacent pairs of the last rope_dim channels of x [..., width]."""
    cos, sin = table
    d = cos.shape[-1] * 2
    plain, roped = x.split((x.shape[-1] - d, d), -1)
    even, odd = roped.unflatten(-1, (d // 2, 2)).unbind(-1)
    if inverse:
        sin = -sin
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)
    return options.round(torch.cat((plain, turned), -1))
