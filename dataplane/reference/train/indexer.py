"""Indexers in training: distilled from the attention they will replace, then used for selection.

Inputs are detached, so the indexer learns without disturbing the model. The teacher is the
head-summed global attention of all layers that share a selection; every query counts by the mass
it gives to global entries at all.
"""
from __future__ import annotations

import torch

from .kernels import call

BF = torch.bfloat16
TAUGHT_SHARE = 0.25  # of the query blocks


def _rotate(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Rotates the last dims of x [n, heads, d] by (cos, sin) rows [n, 2 * pairs]."""
    pairs = rows.shape[1] // 2
    plain, turned = x[..., :-2 * pairs], x[..., -2 * pairs:].unflatten(-1, (pairs, 2))
    cos, sin = rows[:, None, 0::2], rows[:, None, 1::2]
    a, b = turned[..., 0], turned[..., 1]
    return torch.cat((plain, torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)), -1)


class _Quantized(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.to(BF).contiguous()
        call("quant_q4i", y, y.shape[0], y.numel() // y.shape[0])
        return y.float()

    @staticmethod
    def backward(ctx, g):
        return g


class Indexers:
    """The selection state of one forward pass. `chosen` and `mass` belong to the current source."""

    def __init__(self, network):
        self.network, self.config = network, network.config
        self.chosen: dict[int, torch.Tensor] = {}
        self.mass: dict[int, torch.Tensor] = {}
        self._lessons: list = []

    def source(self, layer: int, qr, xn, lat, plan, batch) -> None:
        """Enters the sharing group of an index source: selects entries and opens its lessons."""
        net = self.network
        self.chosen, self.mass = {}, {}
        if net.distil is not None:
            taught = [b for b, (_, _, _, _, g0, g1, _) in enumerate(plan.blocks)
                      if g1 > g0 and net.distil.random() < TAUGHT_SHARE]
            for b in taught:
                q0, q1, _, _, g0, g1, _ = plan.blocks[b]
                self.mass[b] = torch.zeros(q1 - q0, g1 - g0)
            self._lessons.append((layer, qr, xn, lat, plan, batch, self.mass))
        if net.sparse:
            with torch.no_grad():
                self._select(layer, qr, xn, lat, plan, batch)

    def _queries(self, layer: int, qr, xn, pos):
        net, c, a = self.network, self.config, f"layers.{layer}.attn.indexer."
        q = qr.float() @ net.leaf(a + "wq_b.weight").t()
        q = _rotate(q.view(-1, c.index_n_heads, c.index_head_dim), net.rope[True][pos.long()])
        weight = xn.float() @ net.leaf(a + "weights_proj.weight").t()
        weight = weight * (c.index_head_dim ** -0.5 * c.index_n_heads ** -0.5)
        return (_Quantized.apply(q) if net.quantized else q), weight

    def _keys(self, layer: int, lat, batch):
        net, c = self.network, self.config
        source = c.kv_source_of(layer)
        a = f"layers.{source}.attn.indexer."
        k = lat.float() @ net.leaf(a + "wk.weight").t()
        k = k * torch.rsqrt(k.square().mean(-1, keepdim=True) + c.rms_norm_eps) * net.leaf(a + "k_norm.weight")
        k = _rotate(k[:, None, :], net.rope[True][batch.entry_pos[c.ratio(layer)].long()])[:, 0]
        return _Quantized.apply(k) if net.quantized else k

    def _select(self, layer: int, qr, xn, lat, plan, batch) -> None:
        c = self.config
        crowded = [b for b, block in enumerate(plan.blocks)
                   if block[5] > block[4] and int((block[6][:, 3] - block[6][:, 2]).max()) > c.index_topk]
        if not crowded:
            return
        keys = self._keys(layer, lat, batch).to(BF)
        for b in crowded:
            q0, q1, _, _, g0, g1, local = plan.blocks[b]
            q, weight = self._queries(layer, qr[q0:q1], xn[q0:q1], batch.pos[q0:q1])
            scores = torch.mm(q.to(BF).reshape(-1, c.index_head_dim), keys[g0:g1].t())
            chosen = torch.empty(q1 - q0, g1 - g0, dtype=torch.uint8)
            call("select_top", scores, weight.contiguous(), local, chosen, q1 - q0, c.index_n_heads, g1 - g0,
                 c.index_topk)
            self.chosen[b] = chosen

    def loss(self) -> torch.Tensor | None:
        """Mean over taught queries of the cross entropy against the teacher's mass."""
        total, queries = None, 0
        for layer, qr, xn, lat, plan, batch, mass in self._lessons:
            if not mass:
                continue
            keys = self._keys(layer, lat, batch)
            for b, teacher in mass.items():
                q0, q1, _, _, g0, g1, local = plan.blocks[b]
                q, weight = self._queries(layer, qr[q0:q1], xn[q0:q1], batch.pos[q0:q1])
                products = torch.relu(torch.matmul(q, keys[g0:g1].t()))
                scores = (weight[..., None] * products).sum(1)
                column = torch.arange(g1 - g0)
                visible = (column >= local[:, 2:3]) & (column < local[:, 3:4])
                logs = torch.log_softmax(scores.masked_fill(~visible, -1e30), -1)
                part = -(teacher * logs).sum() / self.config.num_attention_heads
                total = part if total is None else total + part
                queries += q1 - q0
        return None if total is None else total / queries
