"""The draft layers (DSpark) beside the fast backbone. Trained by draft.py, measured by draft_eval.py."""
from __future__ import annotations

import numpy as np
import torch

from .functions import BF, Linear, NormRope
from .network import Batch, Network
from .parameters import Parameters


class FrozenHead(torch.autograd.Function):
    """x . head^T without a gradient for the head."""

    @staticmethod
    def forward(ctx, x, head):
        ctx.head = head
        return torch.mm(x, head.t())

    @staticmethod
    def backward(ctx, g):
        return torch.mm(g.contiguous(), ctx.head), None


def gather_blocks(config, batch: Batch, anchors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What the blocks behind `anchors` [M] (rows of the batch) read.

    (index [M, W] rows of the window, clamped; mask [M, W] which of them lie in the document;
    ids [M, B] input tokens: the anchor's next token, then noise).
    """
    window, block = config.sliding_window, config.dspark_block_size
    back = torch.arange(window - 1, -1, -1, device=anchors.device)
    index = anchors[:, None] - back
    mask = batch.pos[anchors].long()[:, None] - back >= 0
    ids = torch.full((anchors.shape[0], block), config.dspark_noise_token_id, device=anchors.device)
    ids[:, 0] = batch.tokens[anchors + 1]
    return index.clamp(min=0), mask, ids


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
        self._draft_weights = [w for k, w in self.weights.items()
                               if k.startswith("mtp.") or k in ("main_proj", "markov")]

    def refresh_draft(self) -> None:
        """The working copies of the draft layers alone."""
        for weight in self._draft_weights:
            weight.refresh(self.quantized)

    def context(self, batch: Batch, taps: torch.Tensor) -> list[torch.Tensor]:
        """Ring latents of every token, per stage [n, head_dim] bf16. taps [n, targets * D] bf16."""
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

    def propose(self, batch: Batch, taps: torch.Tensor, anchors: torch.Tensor) -> torch.Tensor:
        """h [M*B, D] fp32: collapsed, not normed, for the blocks behind `anchors` [M] (row indices).

        Weights are no autograd leaves here (see functions.py), so the two inputs have to be: autograd calls no
        function back whose inputs all come from the frozen backbone.
        """
        c = self.config
        taps = taps.detach().requires_grad_()
        rings = self.context(batch, taps)
        index, mask, ids = gather_blocks(c, batch, anchors)
        pos = (batch.pos[anchors].long()[:, None] + 1 + torch.arange(c.dspark_block_size)).reshape(-1).to(torch.int32)
        x = self.parameters.value["embed.weight"][ids.reshape(-1)]
        X = x.to(BF).float().repeat(1, c.hc_mult).requires_grad_()
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

    # ---- heads ---------------------------------------------------------------------------------

    def head_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """The backbone's logits [n, vocab] fp32 of normed states [n, D]; no gradient."""
        return torch.mm(hidden, self.weights["head"].bf.t()).float()

    def block_logits(self, h: torch.Tensor) -> torch.Tensor:
        """[M*B, vocab] before the Markov correction, from `propose`'s states."""
        norm = self.small(self.last + "norm.weight")
        normed = NormRope.apply(h.to(BF), norm, None, 1, 1.0, float(self.config.rms_norm_eps), None)
        return FrozenHead.apply(normed, self.weights["head"].bf)

    def markov(self, previous: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(embedding [n, rank] of the previous tokens [n], their correction [n, vocab])."""
        embedded = torch.nn.functional.embedding(previous, self.leaf(self.last + "markov_head.embed.weight"))
        return embedded, Linear.apply(embedded.to(BF), self.weights["markov"])

    def confidence(self, h: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """Raw confidence [n]."""
        return (torch.cat((h, embedded), 1) @ self.leaf(self.last + "confidence_head.proj.weight").t())[:, 0]
