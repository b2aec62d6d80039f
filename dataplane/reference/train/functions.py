"""Autograd functions over the fused kernels.

Weights are not autograd leaves: each function adds their gradients straight to the flat fp32 buffer
(`Weights.grad` below), which two processes share. Activations between products are bf16, streams
and mixes fp32.
"""
from __future__ import annotations

import torch

from .kernels import call

BF = torch.bfloat16


class Weight:
    """One product's operand: fp32 gradient view and the bf16 copy of this step."""

    def __init__(self, value: torch.Tensor, grad: torch.Tensor, kind: str):
        self.value, self.grad, self.kind = value, grad, kind
        self.bf = value.to(BF)

    def refresh(self, quantized: bool) -> None:
        """Makes the bf16 copy from the master, through the storage format when asked."""
        rows, columns = self.value.shape
        if quantized and self.kind == "fp8":
            call("quant_weight_fp8", self.value, self.bf, rows, columns)
        elif quantized and self.kind == "fp4":
            call("quant_weight_fp4", self.value, self.bf, rows * columns)
        else:
            self.bf.copy_(self.value)


class Linear(torch.autograd.Function):
    """x [n, in] bf16 -> x . W^T [n, out] bf16."""

    @staticmethod
    def forward(ctx, x, weight: Weight):
        ctx.weight, ctx.x = weight, x
        return torch.mm(x, weight.bf.t())

    @staticmethod
    def backward(ctx, g):
        g = g.contiguous()
        ctx.weight.grad.add_(torch.mm(g.t(), ctx.x))
        ctx.x = None
        return torch.mm(g, ctx.weight.bf), None


class Quant(torch.autograd.Function):
    """Round trip through a number format (a kernel's name), the identity going back."""

    @staticmethod
    def forward(ctx, x, kernel):
        y = x.clone(memory_format=torch.contiguous_format)
        call(kernel, y, y.shape[0], y.numel() // y.shape[0])
        return y

    @staticmethod
    def backward(ctx, g):
        return g, None


class Site(torch.autograd.Function):
    """Between two sublayers: [expand the output into the stream] [mix] [collapse and norm].

    In: X [n, 4D], o [n, D] bf16 or None, P, C of the site being closed (None without o), A the mix
    that collapses. `fn` names the next site's mix parameters (fn, base, scale as (value, grad)
    pairs) or None. Out: X', xn, A', P', C' (what is not computed is an empty tensor).
    """

    @staticmethod
    def forward(ctx, X, o, P, C, A, mix, norm, rounds, hc_eps, eps):
        n, width = X.shape
        D = width // 4
        Y = X
        if o is not None:
            Y = torch.empty_like(X)
            call("hc_expand", X, o, P, C, Y, n, D)
        new = lambda *shape: torch.empty(shape, dtype=torch.float32)
        z = rs = ur = None
        A2, P2, C2, xn = new(0), new(0), new(0), new(0)
        if mix is not None:
            z, rs, A2, P2, C2 = torch.mm(Y, mix[0].value.t()), new(n), new(n, 4), new(n, 4), new(n, 16)
            call("hc_mix", Y, z, mix[1].value, mix[2].value, rs, A2, P2, C2, n, D, rounds, hc_eps, eps)
        if norm is not None:
            xn, ur = torch.empty(n, D, dtype=BF), new(n)
            call("hc_collapse", Y, A, norm.value, xn, ur, n, D, eps)
        ctx.saved = (X, o, P, C, A, Y, z, rs, ur)
        ctx.options = (mix, norm, rounds, hc_eps)
        ctx.set_materialize_grads(False)
        if Y is X:
            Y = X.view_as(X)
        return Y, xn, A2, P2, C2

    @staticmethod
    def backward(ctx, gY, gxn, gA, gP, gC):
        X, o, P, C, A, Y, z, rs, ur = ctx.saved
        ctx.saved = None  # breaks the cycle through saved outputs, so that memory is reused at once
        mix, norm, rounds, hc_eps = ctx.options
        n, D = X.shape[0], X.shape[1] // 4
        # Each stream has one reader, so its incoming gradient may be added to in place.
        G = torch.zeros_like(X) if gY is None else gY.contiguous()
        dA = None
        if norm is not None and gxn is not None:
            dA = torch.empty_like(A)
            call("hc_collapse_back", Y, A, norm.value, ur, gxn.contiguous(), G, dA, norm.grad, n, D)
        if mix is not None:
            zero = lambda g, like: torch.zeros_like(like) if g is None else g.contiguous()
            dz = torch.empty_like(z)
            call("hc_mix_back", Y, z, mix[1].value, mix[2].value, rs, zero(gA, rs.new_empty(n, 4)),
                 zero(gP, rs.new_empty(n, 4)), zero(gC, rs.new_empty(n, 16)), dz, G, mix[1].grad, mix[2].grad,
                 n, D, rounds, hc_eps)
            mix[0].grad.addmm_(dz.t(), Y)
            G.addmm_(dz, mix[0].value)
        if o is None:
            return G, None, None, None, dA, None, None, None, None, None
        dX, dO, dP, dC = torch.empty_like(X), torch.empty_like(o), torch.empty_like(P), torch.empty_like(C)
        call("hc_expand_back", X, o, P, C, G, dX, dO, dP, dC, n, D)
        return dX, dO, dP, dC, dA, None, None, None, None, None


class NormRope(torch.autograd.Function):
    """[RMS norm] then [rotary] of each head; x [n, heads*D] may be a column slice. `quant` rounds the
    result in place with the identity as its gradient."""

    @staticmethod
    def forward(ctx, x, norm, rope, heads, sign, eps, quant):
        n, D = x.shape[0], x.shape[1] // heads
        y = torch.empty(n, heads * D, dtype=BF)
        rs = torch.empty(n * heads) if norm is not None else None
        table, pos = rope if rope is not None else (None, None)
        pairs = table.shape[1] // 2 if table is not None else 0
        if x.stride(1) != 1:
            raise ValueError("rows must be dense")
        pointer = x.as_strided((1,), (1,))
        call("norm_rope", pointer, x.stride(0), None if norm is None else norm.value, table, pos, y, rs, n, heads, D,
             pairs, sign, eps)
        if quant:
            call(quant, y, n * heads, D)
        ctx.saved = (x, norm, table, pos, rs, heads, sign, D, pairs)
        return y

    @staticmethod
    def backward(ctx, g):
        x, norm, table, pos, rs, heads, sign, D, pairs = ctx.saved
        ctx.saved = None
        n = x.shape[0]
        dx = torch.empty(n, heads * D, dtype=BF)
        call("norm_rope_back", x.as_strided((1,), (1,)), x.stride(0), None if norm is None else norm.value, table, pos,
             rs, g.contiguous(), dx, None if norm is None else norm.grad, n, heads, D, pairs, sign)
        return dx, None, None, None, None, None, None


class Plan:
    """Where each query of a batch of packed rows may look, for one compress ratio.

    start, pos, floor [rows, T] int64 (numpy-like tensors): document start in the row, position in the
    document, lowest position of a window key. Blocks of 128 queries; each has its key columns.
    """

    BLOCK = 128

    def __init__(self, start, pos, floor, window: int, ratio: int):
        rows, T = start.shape
        i = torch.arange(T).expand(rows, T)
        self.ratio, self.length = ratio, T
        wlo = torch.maximum(start + floor, i - window + 1)
        glo = start // ratio if ratio else i * 0
        ghi = glo + (pos + 1) // ratio if ratio else i * 0
        absolute = torch.stack((wlo, i + 1, glo, ghi), -1).to(torch.int32)
        self.blocks = []
        for b in range(rows):
            for q0 in range(0, T, self.BLOCK):
                q1 = min(q0 + self.BLOCK, T)
                part = absolute[b, q0:q1]
                k0 = int(part[:, 0].min()) // 64 * 64
                g0 = int(part[:, 2].min()) // 64 * 64 if ratio else 0
                g1 = min((int(part[:, 3].max()) + 63) // 64 * 64, T // ratio) if ratio else 0
                g0 = min(g0, g1)
                local = (part - torch.tensor([k0, k0, g0, g0], dtype=torch.int32)).contiguous()
                local[:, 2:] = local[:, 2:].clamp(min=0)
                entries = b * T // ratio if ratio else 0
                self.blocks.append((b * T + q0, b * T + q1, b * T + k0, b * T + q1, entries + g0, entries + g1, local))


class Attend(torch.autograd.Function):
    """q [n, H*D], window latents k [n, D], entries G [n/ratio, D] (or None): o [n, H*D], all bf16.

    `chosen`: {block index: uint8 [queries, columns]} of blocks that attend to selected entries only.
    `mass`: {block index: fp32 [queries, columns]} to which the heads' attention is added.
    """

    @staticmethod
    def forward(ctx, q, k, G, sink, plan: Plan, scale, chosen, mass):
        n, wide = q.shape
        D = k.shape[1]
        H = wide // D
        out = torch.empty_like(q)
        saved = []
        none = torch.empty(0, dtype=BF)
        for index, (q0, q1, k0, k1, g0, g1, local) in enumerate(plan.blocks):
            qb = q[q0:q1].view(-1, D)
            pw = torch.mm(qb, k[k0:k1].t())
            pg = torch.mm(qb, G[g0:g1].t()) if g1 > g0 else none
            psink = torch.empty(qb.shape[0])
            call("attend_softmax", pw, pg, local, chosen.get(index), sink.value, scale, psink, mass.get(index),
                 q1 - q0, H, k1 - k0, g1 - g0)
            o = torch.mm(pw, k[k0:k1])
            if g1 > g0:
                o += torch.mm(pg, G[g0:g1])
            out[q0:q1] = o.view(q1 - q0, wide)
            saved.append((pw, pg, psink))
        ctx.saved = (q, k, G, sink, plan, scale, saved)
        return out

    @staticmethod
    def backward(ctx, g):
        q, k, G, sink, plan, scale, saved = ctx.saved
        ctx.saved = None
        D = k.shape[1]
        H = q.shape[1] // D
        g = g.contiguous()
        dq = torch.empty_like(q)
        dk = torch.zeros(k.shape)
        dG = torch.zeros(G.shape) if G is not None else None
        none = torch.empty(0, dtype=BF)
        for (q0, q1, k0, k1, g0, g1, local), (pw, pg, psink) in zip(plan.blocks, saved):
            qb, gb = q[q0:q1].view(-1, D), g[q0:q1].view(-1, D)
            kb = k[k0:k1]
            dpw = torch.mm(gb, kb.t())
            dpg = torch.mm(gb, G[g0:g1].t()) if g1 > g0 else none
            call("attend_softmax_back", pw, pg, dpw, dpg, local, scale, psink, sink.grad, q1 - q0, H, k1 - k0, g1 - g0)
            d = torch.mm(dpw, kb)
            dk[k0:k1] += torch.mm(dpw.t(), qb)
            dk[k0:k1] += torch.mm(pw.t(), gb)
            if g1 > g0:
                d += torch.mm(dpg, G[g0:g1])
                dG[g0:g1] += torch.mm(dpg.t(), qb)
                dG[g0:g1] += torch.mm(pg.t(), gb)
            dq[q0:q1] = d.view(q1 - q0, -1)
        return dq, dk.to(BF), None if dG is None else dG.to(BF), None, None, None, None, None


class Experts(torch.autograd.Function):
    """Routed and shared experts of x [n, D] bf16 -> [n, D] bf16.

    ids [n, k] int64, weights [n, k] fp32. Expert rows are padded to multiples of 128, so that the
    matrix library meets few shapes; padding has weight 0.
    """

    @staticmethod
    def forward(ctx, x, weights, ids, up: list[Weight], down: list[Weight], limit, quant):
        n, D = x.shape
        k, experts = ids.shape[1], len(up) - 1
        I = down[0].value.shape[1]
        flat = ids.reshape(-1)
        order = torch.argsort(flat, stable=True)
        counts = torch.bincount(flat, minlength=experts)
        padded = (counts + 127) // 128 * 128
        begin = torch.cumsum(padded, 0) - padded
        first = torch.cumsum(counts, 0) - counts
        sorted_ids = flat[order]
        place = begin[sorted_ids] + torch.arange(n * k) - first[sorted_ids]
        total = int(padded.sum())
        source = torch.zeros(total + n, dtype=torch.int64)
        source[place] = order // k
        source[total:] = torch.arange(n)
        row_weight = torch.zeros(total + n)
        row_weight[place] = weights.reshape(-1)[order]
        row_weight[total:] = 1
        index = torch.empty(n, k + 1, dtype=torch.int32)
        slots = torch.empty(n * k, dtype=torch.int32)
        slots[order] = place.to(torch.int32)
        index[:, :k] = slots.view(n, k)
        index[:, k] = torch.arange(total, total + n, dtype=torch.int32)
        spans = [(e, int(b), int(b + p)) for e, (b, p) in enumerate(zip(begin, padded)) if p]
        spans.append((experts, total, total + n))
        xg = x.index_select(0, source)
        h = torch.empty(total + n, 2 * I, dtype=BF)
        y = torch.empty(total + n, I, dtype=BF)
        rows = torch.empty(total + n, D, dtype=BF)
        for e, a, b in spans:
            torch.mm(xg[a:b], up[e].bf.t(), out=h[a:b])
        call("swiglu", h, row_weight, y, total + n, I, limit)
        if quant:
            call("quant_q8", y, total + n, I)
        for e, a, b in spans:
            torch.mm(y[a:b], down[e].bf.t(), out=rows[a:b])
        out = torch.empty_like(x)
        call("gather_sum", rows, index, out, n, k + 1, D)
        ctx.saved = (xg, h, y, row_weight, source, index, spans, up, down, limit, n, k, D, I, total)
        ctx.counts = counts
        return out

    @staticmethod
    def backward(ctx, g):
        xg, h, y, row_weight, source, index, spans, up, down, limit, n, k, D, I, total = ctx.saved
        ctx.saved = None
        gr = g.contiguous().index_select(0, source)
        dy = torch.empty_like(y)
        for e, a, b in spans:
            torch.mm(gr[a:b], down[e].bf, out=dy[a:b])
            down[e].grad.add_(torch.mm(gr[a:b].t(), y[a:b]))
        dh, dweight = torch.empty_like(h), torch.empty(total + n)
        call("swiglu_back", h, row_weight, dy, dh, dweight, total + n, I, limit)
        dxg = torch.empty_like(xg)
        for e, a, b in spans:
            torch.mm(dh[a:b], up[e].bf, out=dxg[a:b])
            up[e].grad.add_(torch.mm(dh[a:b].t(), xg[a:b]))
        dx = torch.empty(n, D, dtype=BF)
        call("gather_sum", dxg, index, dx, n, k + 1, D)
        return dx, dweight[index[:, :k].to(torch.int64)], None, None, None, None, None


class HeadLoss(torch.autograd.Function):
    """Weighted cross entropy summed over rows; h [n, D] bf16. Also fills loss [n] and best [n]."""

    @staticmethod
    def forward(ctx, h, head: Weight, target, weight, loss, best):
        logits = torch.mm(h, head.bf.t())
        call("cross_entropy", logits, target, weight, loss, best, h.shape[0], logits.shape[1])
        ctx.saved = (h, head, logits)
        return (loss * weight).sum()

    @staticmethod
    def backward(ctx, g):
        h, head, dlogits = ctx.saved
        ctx.saved = None
        head.grad.add_(torch.mm(dlogits.t(), h))
        return torch.mm(dlogits, head.bf), None, None, None, None, None
