"""Trains the draft layers (DSpark) on the frozen, quantized backbone.

    python3 -m reference.train.draft --minutes 8

Anchors are random answer positions p whose next token y is known; the block [y, noise, ...] predicts
what follows. Objective: 0.1 cross entropy + 0.9 L1 distance to the backbone's distribution + the
confidence head's BCE with the analytic acceptance rate, position k weighted by exp(-(k-1)/4).
"""
from __future__ import annotations

import argparse
import json
import time

import numpy as np
import torch
import torch.multiprocessing as mp

from .data import mix
from .functions import BF, Linear, NormRope
from .network import Batch, Network
from .optimiser import Optimiser, balance
from .parameters import Parameters
from .run import ROOT, Shared, load_tokenizer, make_config

ANCHORS = 256
ROW = 2048
SLOT_DECAY = 4.0


class DraftNetwork(Network):
    """The backbone plus the draft layers' forward pass."""

    def __init__(self, parameters: Parameters, token_map: np.ndarray):
        super().__init__(parameters, token_map)
        c = self.config
        for m in range(c.num_nextn_predict_layers):
            self._register_block(f"mtp.{m}", c.dspark_n_routed_experts)
        self.last = f"mtp.{c.num_nextn_predict_layers - 1}."
        self._register("main_proj", ["mtp.0.main_proj.weight"])
        self._register("markov", [self.last + "markov_head.head.weight"])

    def context(self, batch: Batch, taps: torch.Tensor) -> list[torch.Tensor]:
        """Ring latents of every token, per stage [n, head_dim] bf16."""
        c, eps = self.config, float(self.config.rms_norm_eps)
        x = Linear.apply(self._quant(taps), self.weights["main_proj"])
        x = self._quant(NormRope.apply(x, self.small("mtp.0.main_norm.weight"), None, 1, 1.0, eps, None))
        out = []
        for m in range(c.num_nextn_predict_layers):
            k = Linear.apply(x, self.weights[f"mtp.{m}.attn.in"])[:, c.q_lora_rank:]
            out.append(NormRope.apply(k, self.small(f"mtp.{m}.attn.kv_norm.weight"), (self.rope[False], batch.pos), 1,
                                      1.0, eps, "quant_q8"))
        return out

    def _block_attention(self, m: int, xn, ring, mask, pos):
        """xn [M*B, D]; ring [M, W, d] context latents, mask [M, W]; every row sees ring and block."""
        c, a, eps = self.config, f"mtp.{m}.attn.", float(self.config.rms_norm_eps)
        H, d, B = c.num_attention_heads, c.head_dim, c.dspark_block_size
        y = Linear.apply(self._quant(xn), self.weights[a + "in"])
        qr = NormRope.apply(y[:, :c.q_lora_rank], self.small(a + "q_norm.weight"), None, 1, 1.0, eps, None)
        rope = (self.rope[False], pos)
        q = NormRope.apply(Linear.apply(self._quant(qr), self.weights[a + "wq_b"]), None, rope, H, 1.0, eps, None)
        own = NormRope.apply(y[:, c.q_lora_rank:], self.small(a + "kv_norm.weight"), rope, 1, 1.0, eps, "quant_q8")
        keys = torch.cat((ring, own.view(-1, B, d)), 1)
        scores = torch.bmm(q.view(-1, B * H, d), keys.transpose(1, 2)).float() * d ** -0.5
        hidden = torch.nn.functional.pad(~mask, (0, B))[:, None, :]
        scores = scores.masked_fill(hidden, -1e30)
        sink = self.leaf(a + "attn_sink").repeat(B)[None, :, None].expand(scores.shape[0], -1, 1)
        p = torch.softmax(torch.cat((scores, sink), 2), 2)[..., :-1]
        o = torch.bmm(p.to(BF), keys).view(-1, H * d)
        o = NormRope.apply(o.contiguous(), None, rope, H, -1.0, eps, None)
        width = o.shape[1] // c.o_groups
        groups = [Linear.apply(o[:, g * width:(g + 1) * width].contiguous(), self.weights[f"{a}wo_a.{g}"])
                  for g in range(c.o_groups)]
        return Linear.apply(self._quant(torch.cat(groups, 1)), self.weights[a + "wo_b"])

    def propose(self, batch: Batch, taps, anchors: torch.Tensor) -> torch.Tensor:
        """h [M*B, D] fp32: collapsed, not normed, for the blocks after `anchors` (row indices)."""
        c = self.config
        B, W = c.dspark_block_size, c.sliding_window
        rings = self.context(batch, taps)
        back = torch.arange(W - 1, -1, -1)
        index = anchors[:, None] - back
        mask = batch.pos[anchors].long()[:, None] - back >= 0
        index = index.clamp(min=0)
        ids = torch.full((anchors.shape[0], B), c.dspark_noise_token_id)
        ids[:, 0] = batch.tokens[anchors + 1]
        pos = (batch.pos[anchors].long()[:, None] + 1 + torch.arange(B)).reshape(-1).to(torch.int32)
        x = self.parameters.value["embed.weight"][ids.reshape(-1)]
        X = x.to(BF).float().repeat(1, c.hc_mult)
        A = torch.zeros(X.shape[0], c.hc_mult)
        A[:, 0] = 1
        o = P = C = None
        for m in range(c.num_nextn_predict_layers):
            pre = f"mtp.{m}."
            X, xn, A2, P, C = self._site(X, o, P, C, A, pre + "hc_attn_", pre + "attn_norm.weight")
            o = self._block_attention(m, xn, rings[m][index], mask, pos)
            X, xn, A, P, C = self._site(X, o, P, C, A2, pre + "hc_ffn_", pre + "ffn_norm.weight")
            o = self._experts(f"mtp.{m}", xn)
        X = self._site(X, o, P, C, None, None, None)[0]
        return (A[..., None] * X.view(-1, c.hc_mult, c.hidden_size)).sum(1)


def draft_loss(net: DraftNetwork, batch: Batch, taps, logits_of, anchors: torch.Tensor):
    """(loss summed over valid slots, valid slot count, agreement [M, B], valid [M, B])."""
    c, B = net.config, net.config.dspark_block_size
    h = net.propose(batch, taps, anchors)
    normed = NormRope.apply(h.to(BF), net.small(net.last + "norm.weight"), None, 1, 1.0, float(c.rms_norm_eps), None)
    places = anchors[:, None] + 1 + torch.arange(B)          # row of x_{k-1}; its target is x_k
    inside = (places < batch.tokens.shape[0]) & (batch.weight[places.clamp(max=batch.tokens.shape[0] - 1)] == 1)
    valid = inside.long().cumprod(1).bool()
    places = places.clamp(max=batch.tokens.shape[0] - 1)
    previous = batch.tokens[places].reshape(-1)
    markov = torch.nn.functional.embedding(previous, net.leaf(net.last + "markov_head.embed.weight"))
    with_head = FrozenHead.apply(normed, net.weights["head"].bf)
    logits = (with_head + Linear.apply(markov.to(BF), net.weights["markov"])).float()
    with torch.no_grad():
        teacher = torch.softmax(logits_of(places.reshape(-1)), -1)
    student = torch.log_softmax(logits, -1)
    target = batch.target[places].reshape(-1)
    distance = (student.exp() - teacher).abs().sum(-1)
    ce = -student.gather(1, target[:, None])[:, 0]
    proj = net.leaf(net.last + "confidence_head.proj.weight")
    gamma = (torch.cat((h, markov), 1) @ proj.t())[:, 0]
    rate = (1 - 0.5 * distance.detach()).clamp(0, 1)
    bce = torch.nn.functional.binary_cross_entropy_with_logits(gamma, rate, reduction="none")
    weight = valid.float() * torch.exp(-torch.arange(B) / SLOT_DECAY)
    loss = ((0.1 * ce + 0.9 * distance + bce) * weight.reshape(-1)).sum()
    agree = (logits.argmax(-1) == teacher.argmax(-1)).view(-1, B)
    return loss, float(weight.sum()), agree, valid, gamma.detach().view(-1, B)


class FrozenHead(torch.autograd.Function):
    """x . head^T without a gradient for the head."""

    @staticmethod
    def forward(ctx, x, head):
        ctx.head = head
        return torch.mm(x, head.t())

    @staticmethod
    def backward(ctx, g):
        return torch.mm(g.contiguous(), ctx.head), None


def accepted_lengths(agree: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Accepted draft tokens of each block: the leading run of agreement."""
    return (agree & valid).long().cumprod(1).sum(1)


def backbone(net: DraftNetwork, data: dict) -> tuple[Batch, torch.Tensor, torch.Tensor]:
    """(batch, taps [n, targets*D] bf16, normed hidden [n, D]) of the frozen, quantized backbone."""
    batch = Batch(net, data)
    with torch.no_grad():
        net.capture_taps = []
        h = net.hidden(batch)
        taps = torch.cat(net.capture_taps, 1)
        net.capture_taps = None
    return batch, taps, h


def anchors_of(batch: Batch, count: int, rng: np.random.Generator) -> torch.Tensor:
    """Rows p whose token p+1 is followed by an answer token (the first draft target)."""
    first = torch.zeros_like(batch.weight, dtype=torch.bool)
    first[:-1] = batch.weight[1:] == 1
    rows = torch.nonzero(first)[:, 0].numpy()
    return torch.from_numpy(np.sort(rng.permutation(rows)[:count]))


def worker(rank: int, ranks: int, shared: Shared, barrier, options) -> None:
    torch.set_num_threads(1)
    tokenizer = load_tokenizer()
    config, mapping = make_config(tokenizer)
    parameters = Parameters(config, shared.values, shared.grads[rank])
    folder = ROOT / "build" / "train" / options.run
    if rank == 0:
        shared.values.copy_(torch.load(folder / "values.pt"))
    barrier.wait()
    net = DraftNetwork(parameters, mapping)
    net.quantized = net.sparse = True
    net.refresh()
    optimiser = Optimiser(parameters, shared.grads, rank, ranks, lambda n: n.startswith("mtp."))
    rng = np.random.default_rng([options.seed, rank])
    stream = mix.Stream(tokenizer, "D", ROW, f"draft-{options.seed}-{rank}")
    budget, began, step, sums = options.minutes * 60, time.monotonic(), 0, []
    draft_weights = [w for k, w in net.weights.items() if k.startswith("mtp.") or k in ("main_proj", "markov")]
    while True:
        if rank == 0:
            shared.numbers[0] = time.monotonic() - began
        barrier.wait()
        progress = float(shared.numbers[0]) / budget
        if progress >= 1:
            break
        batch, taps, h = backbone(net, stream.batch(1))
        anchors = anchors_of(batch, ANCHORS, rng)
        net.loads = {}
        loss, weight, agree, valid, _ = draft_loss(
            net, batch, taps, lambda rows: torch.mm(h[rows], net.weights["head"].bf.t()).float(), anchors)
        loss.backward()
        shared.numbers[8 + rank] = weight
        names = sorted(net.loads)
        shared.loads[rank, :sum(net.loads[n].numel() for n in names)] = torch.cat([net.loads[n] for n in names])
        barrier.wait()
        lr = min(1.0, (step + 1) / 20) * (1.0 - 0.97 * max(0.0, (progress - 0.4) / 0.6))
        optimiser.step(lr, 1.0 / float(shared.numbers[8:8 + ranks].sum()))
        if rank == 0:
            mean = shared.loads.mean(0)
            sizes = [net.loads[n].numel() for n in names]
            balance(parameters, dict(zip(names, mean[:sum(sizes)].split(sizes))))
        barrier.wait()
        shared.grads[rank].zero_()
        for w in draft_weights:
            w.refresh(True)
        step += 1
        sums.append((float(loss) / weight, float(accepted_lengths(agree, valid).float().mean())))
        if rank == 0 and step % 10 == 0:
            record = {"phase": "draft", "step": step, "minutes": round(progress * options.minutes, 2),
                      "loss": float(np.mean([s[0] for s in sums])), "accepted": float(np.mean([s[1] for s in sums])),
                      "lr": lr}
            sums = []
            with open(folder / "log.jsonl", "a", encoding="utf-8") as f:
                f.write(json.dumps(record) + "\n")
            print(record, flush=True)
    if rank == 0:
        torch.save(shared.values.clone(), folder / "values.pt")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", default="nano")
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    config, _ = make_config(load_tokenizer())
    shared = Shared(Parameters.count(config), options.ranks, config.num_hidden_layers * config.n_routed_experts)
    context = mp.get_context("spawn")
    barrier = context.Barrier(options.ranks)
    workers = [context.Process(target=worker, args=(r, options.ranks, shared, barrier, options))
               for r in range(options.ranks)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    raise SystemExit(max(abs(w.exitcode or 0) for w in workers))


if __name__ == "__main__":
    main()
