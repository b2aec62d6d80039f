"""Hyper-connections: the residual stream of n copies and the mixes that read and write it.

`Kernels` collects the operations that a trainer may want to replace by compiled ones: assign another
object with the same methods to `Model.kernels`.
"""

import torch
from torch import nn

from reference.attention_core import attend


class Kernels:
    """Plain torch implementations. X [B, T, n, D]; A, P [B, T, n]; C [B, T, n, n] (source, target)."""

    def mix(self, stream, fn, base, scale, config):
        """The (A, P, C) of one site, computed from the stream that enters it."""
        n = config.hc_mult
        flat = stream.flatten(-2)
        z = flat @ fn.t() * torch.rsqrt(flat.square().mean(-1, keepdim=True) + config.rms_norm_eps)
        za, zp, zc = z.split((n, n, n * n), -1)
        base_a, base_p, base_c = base.split((n, n, n * n))
        a = torch.sigmoid(za * scale[0] + base_a) + config.hc_eps
        p = 2 * torch.sigmoid(zp * scale[1] + base_p)
        c = sinkhorn(zc * scale[2] + base_c, n, config.hc_sinkhorn_iters, config.hc_eps)
        return a, p, c

    def collapse(self, a, stream):
        """sum_k A[k] X[k] -> [B, T, D]."""
        return (a[..., None] * stream).sum(-2)

    def expand(self, p, o, c, stream):
        """X'[k] = P[k] o + sum_j C[j][k] X[j]."""
        copies = stream.unbind(-2)
        rows = c.unbind(-2)
        result = p[..., None] * o[..., None, :]
        for row, copy in zip(rows, copies):
            result = result + row[..., None] * copy[..., None, :]
        return result

    def attend(self, *arguments, **named):
        return attend(*arguments, **named)


def sinkhorn(logits, n, iterations, eps):
    """[..., n*n] -> [..., n, n] (source j, target k): the columns sum to 1, rows nearly so.

    Works on [n, n, rows], where the short sums run over whole vectors.
    """
    shape = logits.shape[:-1]
    c = logits.reshape(-1, n * n).t().reshape(n, n, -1)
    c = torch.softmax(c, 1) + eps
    c = c / (c.sum(0, keepdim=True) + eps)
    for _ in range(iterations - 1):
        c = c / (c.sum(1, keepdim=True) + eps)
        c = c / (c.sum(0, keepdim=True) + eps)
    return c.reshape(n * n, -1).t().reshape(*shape, n, n)


class HyperConnection(nn.Module):
    """Mixin of a block: holds the six official parameters `hc_{attn,ffn}_{fn,base,scale}`."""

    def __init__(self, config):
        super().__init__()
        n = config.hc_mult
        for site in ("attn", "ffn"):
            self.register_parameter(f"hc_{site}_fn", nn.Parameter(
                torch.empty((2 + n) * n, n * config.hidden_size)))
            self.register_parameter(f"hc_{site}_base", nn.Parameter(torch.empty((2 + n) * n)))
            self.register_parameter(f"hc_{site}_scale", nn.Parameter(torch.empty(3)))

    def site_mix(self, site, stream, kernels, config):
        return kernels.mix(stream, getattr(self, f"hc_{site}_fn"), getattr(self, f"hc_{site}_base"),
                           getattr(self, f"hc_{site}_scale"), config)
