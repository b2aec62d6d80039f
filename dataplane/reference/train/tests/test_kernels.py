"""The fused kernels against plain torch, values and gradients."""
import pytest
import torch

from reference import mhc, numerics
from reference.train.functions import Attend, Experts, HeadLoss, NormRope, Plan, Site, Weight
from reference.train.kernels import call
from reference.train.network import Small, rope_rows

BF = torch.bfloat16
N, D = 37, 64


def small(value):
    return Small(value, torch.zeros_like(value))


def close(a, b, tolerance):
    assert (a.float() - b.float()).abs().max() <= tolerance * max(1.0, b.float().abs().max().item())


def near(a, b, tolerance):
    """In the norm: single elements may differ where bf16 moves a value across a clamp."""
    assert (a.float() - b.float()).norm() <= tolerance * b.float().norm()


def site_reference(X, o, P, C, A, fn, base, scale, w):
    class Config:
        hc_mult, rms_norm_eps, hc_sinkhorn_iters, hc_eps = 4, 1e-20, 20, 1e-6
    kernels = mhc.Kernels()
    Y = kernels.expand(P, o, C.view(-1, 4, 4), X.view(-1, 4, D))
    a, p, c = kernels.mix(Y, fn, base, scale, Config)
    u = kernels.collapse(A, Y)
    xn = u * torch.rsqrt(u.square().mean(-1, keepdim=True)) * w
    return Y.flatten(1), xn, a, p, c.flatten(1)


def test_a_hyper_connection_site_equals_the_plain_one():
    torch.manual_seed(0)
    X, P, C, A = (torch.randn(N, 4 * D), torch.rand(N, 4), torch.rand(N, 16), torch.rand(N, 4))
    o = torch.randn(N, D).to(BF)
    fn, base, scale, w = torch.randn(24, 4 * D) * 0.1, torch.randn(24), torch.rand(3), torch.rand(D)
    ours = [t.clone().requires_grad_() for t in (X, o, P, C, A)]
    theirs = [t.clone().float().requires_grad_() for t in (X, o, P, C, A)]
    weights = [t.clone().requires_grad_() for t in (fn, base, scale, w)]
    parts = [small(t.clone()) for t in (fn, base, scale, w)]
    got = Site.apply(*ours, tuple(parts[:3]), parts[3], 20, 1e-6, 1e-20)
    want = site_reference(*theirs, *weights)
    seeds = [torch.randn_like(t).to(t.dtype) for t in got]
    seeds[1] = seeds[1].to(BF)
    for a, b, tolerance in zip(got, want, (1e-5, 1e-2, 1e-5, 1e-5, 1e-5)):
        close(a, b, tolerance)
    sum((a.float() * s.float()).sum() for a, s in zip(got, seeds)).backward()
    sum((a * s.float()).sum() for a, s in zip(want, seeds)).backward()
    for a, b in zip(ours, theirs):
        close(a.grad, b.grad, 2e-2 if a.dtype == BF else 1e-4)
    for a, b in zip(parts, weights):
        close(a.grad, b.grad, 1e-4)


def test_norm_and_rotary_equal_plain_torch():
    torch.manual_seed(1)
    x, w = torch.randn(N, 128).to(BF), torch.rand(64) + 0.5
    table = rope_rows(1.0 / 10 ** torch.arange(8.0), 100)
    pos = torch.randint(0, 100, (N,), dtype=torch.int32)
    ours, theirs, weight = x.clone().requires_grad_(), x.float().requires_grad_(), w.clone().requires_grad_()
    norm = small(w.clone())
    got = NormRope.apply(ours, norm, (table, pos), 2, 1.0, 1e-20, None)
    v = theirs.view(N, 2, 64)
    v = v * torch.rsqrt(v.square().mean(-1, keepdim=True)) * weight
    pair = v[..., 48:].unflatten(-1, (8, 2))
    cos, sin = table[pos.long()][:, None, 0::2], table[pos.long()][:, None, 1::2]
    turned = torch.stack((pair[..., 0] * cos - pair[..., 1] * sin, pair[..., 0] * sin + pair[..., 1] * cos), -1)
    want = torch.cat((v[..., :48], turned.flatten(-2)), -1).flatten(1)
    close(got, want, 1e-2)
    seed = torch.randn_like(want).to(BF)
    got.backward(seed)
    want.backward(seed.float())
    close(ours.grad, theirs.grad, 1e-2)
    close(norm.grad, weight.grad, 1e-3)


@pytest.mark.parametrize("ratio", [0, 1, 2])
def test_attention_over_packed_documents_equals_a_masked_softmax(ratio):
    torch.manual_seed(2)
    T, window, heads, d = 160, 24, 2, 64
    start = torch.zeros(1, T, dtype=torch.int64)
    start[:, 70:] = 70
    floor = torch.zeros_like(start)
    floor[:, 100:] = 20
    pos = torch.arange(T)[None] - start
    plan = Plan(start, pos, floor, window, ratio)
    q, k = (torch.randn(T, heads * d).to(BF), torch.randn(T, d).to(BF))
    G = torch.randn(T // ratio, d).to(BF) if ratio else None
    sink = torch.randn(heads)
    ours = [t.clone().requires_grad_() for t in (q, k)] + [G.clone().requires_grad_() if ratio else None]
    theirs = [t.float().requires_grad_() for t in (q, k)] + [G.float().requires_grad_() if ratio else None]
    s, sink_leaf = small(sink.clone()), sink.clone().requires_grad_()
    got = Attend.apply(*ours, s, plan, d ** -0.5, {}, {})
    i, j = torch.arange(T)[:, None], torch.arange(T)[None]
    mask = (j <= i) & (j > i - window) & (j >= (start + floor)[0][:, None])
    keys = theirs[1]
    if ratio:
        e = torch.arange(T // ratio)[None]
        first = (start[0] // ratio)[:, None]
        mask = torch.cat((mask, (e >= first) & (e < first + ((pos[0] + 1) // ratio)[:, None])), 1)
        keys = torch.cat((keys, theirs[2]))
    scores = torch.einsum("qhd,kd->hqk", theirs[0].view(T, heads, d), keys) * d ** -0.5
    scores = scores.masked_fill(~mask, -1e30)
    p = torch.softmax(torch.cat((scores, sink_leaf[:, None, None].expand(-1, T, 1)), 2), 2)[..., :-1]
    want = torch.einsum("hqk,kd->qhd", p, keys).flatten(1)
    close(got, want, 2e-2)
    seed = torch.randn_like(want).to(BF)
    got.backward(seed)
    want.backward(seed.float())
    for a, b in zip(ours, theirs):
        if a is not None:
            close(a.grad, b.grad, 3e-2)
    close(s.grad, sink_leaf.grad, 2e-2)


def test_experts_equal_a_loop_over_tokens():
    torch.manual_seed(3)
    n, E, k, inner = 50, 4, 2, 32
    x, ids = torch.randn(n, D).to(BF), torch.stack([torch.randperm(E)[:k] for _ in range(n)])
    w = torch.rand(n, k)
    up = [Weight(torch.randn(2 * inner, D) * 0.3, torch.zeros(2 * inner, D), "fp4") for _ in range(E + 1)]
    down = [Weight(torch.randn(D, inner) * 0.3, torch.zeros(D, inner), "fp4") for _ in range(E + 1)]
    ours, weights = x.clone().requires_grad_(), w.clone().requires_grad_()
    theirs, weights2 = x.float().requires_grad_(), w.clone().requires_grad_()
    matrices = [[m.bf.float().requires_grad_() for m in side] for side in (up, down)]
    got = Experts.apply(ours, weights, ids, up, down, 1.5, False)

    def expert(v, e):
        g, u = (v @ matrices[0][e].t()).chunk(2)
        return (torch.nn.functional.silu(g.clamp(max=1.5)) * u.clamp(-1.5, 1.5)) @ matrices[1][e].t()
    want = torch.stack([expert(theirs[t], E) + sum(weights2[t, s] * expert(theirs[t], ids[t, s]) for s in range(k))
                        for t in range(n)])
    close(got, want, 2e-2)
    seed = torch.randn_like(want).to(BF)
    got.backward(seed)
    want.backward(seed.float())
    near(ours.grad, theirs.grad, 6e-2)
    near(weights.grad, weights2.grad, 6e-2)
    for e in range(E + 1):
        near(up[e].grad, matrices[0][e].grad, 0.15)
        near(down[e].grad, matrices[1][e].grad, 6e-2)


def test_cross_entropy_equals_torch():
    torch.manual_seed(4)
    h, target, weight = torch.randn(N, D).to(BF), torch.randint(0, 96, (N,)), torch.rand(N)
    head = Weight(torch.randn(96, D) * 0.2, torch.zeros(96, D), "bf16")
    ours, theirs = h.clone().requires_grad_(), h.float().requires_grad_()
    loss, best = torch.empty(N), torch.empty(N, dtype=torch.int64)
    total = HeadLoss.apply(ours, head, target, weight, loss, best)
    logits = theirs @ head.bf.float().t()
    want = torch.nn.functional.cross_entropy(logits, target, reduction="none")
    close(loss, want.detach(), 1e-2)
    total.backward()
    (want * weight).sum().backward()
    close(ours.grad, theirs.grad, 2e-2)


@pytest.mark.parametrize("kernel,plain", [("quant_q8", numerics.q8), ("quant_q4i", numerics.q4i), ("quant_q4g", numerics.q4g)])
def test_round_trips_equal_the_definitions(kernel, plain):
    torch.manual_seed(5)
    x = (torch.randn(400, 128) * 10 ** torch.linspace(-5, 2, 400)[:, None]).to(BF)
    y = x.clone()
    call(kernel, y, 400, 128)
    wrong = (y.float() != plain(x.float())).float().mean().item()
    # Q4g divides by a scale that is no power of two: a last-bit difference may cross a rounding boundary.
    assert wrong <= (2e-3 if kernel == "quant_q4g" else 0)


def test_weight_formats_equal_the_definitions():
    w = torch.randn(96, 64)
    out = torch.empty(96, 64, dtype=BF)
    call("quant_weight_fp8", w, out, 96, 64)
    assert torch.equal(out.float(), numerics.fp8_weight(w))
    call("quant_weight_fp4", w, out, 96 * 64)
    assert torch.equal(out.float(), numerics.fp4_weight(w))


def test_selection_takes_the_best_and_breaks_ties_to_the_left():
    torch.manual_seed(6)
    queries, heads, columns, k = 9, 2, 40, 7
    S, weight = torch.randn(queries * heads, columns).to(BF), torch.randn(queries, heads)
    ranges = torch.tensor([[0, 0, 3, 40 - q] for q in range(queries)], dtype=torch.int32)
    chosen = torch.empty(queries, columns, dtype=torch.uint8)
    call("select_top", S, weight, ranges, chosen, queries, heads, columns, k)
    scores = (weight[..., None] * torch.relu(S.float().view(queries, heads, columns))).sum(1)
    for q in range(queries):
        inside = list(range(3, 40 - q))
        best = sorted(inside, key=lambda c: (-scores[q, c].item(), c))[:k]
        assert sorted(best) == torch.nonzero(chosen[q])[:, 0].tolist()
