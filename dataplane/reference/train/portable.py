"""The training networks on any device: the oracle model over the trainer's flat buffers.

The same interface as network.Network and draft_network.DraftNetwork, which are compiled for the CPU. The model is
reference/model.py with autograd; its parameters are views of the flat value buffer and their gradients land in
the flat gradient buffer. Three things differ from the oracle, all to keep a GPU from waiting for the host:
all experts run on all tokens (weights of the unchosen are 0), Engram's tables live on the device, and the check
whether candidate blocks matter uses the row length, which the host knows.

Its speed on a GPU has not been measured. What remains per pass are one host wait per KV source of ratio 2 and
one per step for the figures; the many small launches of the 20 Sinkhorn rounds probably dominate. The attention of a
row of T tokens holds [T, heads, window + entries] probabilities, which is what --tokens-per-pass bounds.
"""
from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from reference import dspark, numerics
from reference.layers import matmul
from reference.model import Model, Pass
from reference.options import Options, Rows

from .draft_network import gather_blocks
from .indexer import TAUGHT_SHARE
from .parameters import Parameters

TAUGHT_BLOCK = 128  # queries


class DenseMoe(nn.Module):
    """reference.moe.Moe with every expert on every token: two products, no dispatch.

    up [(E + 1) * 2 * inner, D]: w1 above w3 of each expert, the shared one last; down [(E + 1) * D, inner].
    """

    def __init__(self, moe, up: nn.Parameter, down: nn.Parameter):
        super().__init__()
        self.gate, self.experts, self.limit = moe.gate, len(moe.experts), moe.shared_experts.limit
        self.up, self.down = up, down

    def _weight(self, weight: torch.Tensor, options: Options) -> torch.Tensor:
        if not options.weight_quant:
            return weight
        rows = weight.shape[0] // (self.experts + 1) * self.experts
        return torch.cat((numerics.straight_through(weight[:rows], numerics.fp4_weight),
                          numerics.straight_through(weight[rows:], numerics.fp8_weight)))

    def forward(self, x: torch.Tensor, image, options: Options, name: str) -> tuple[torch.Tensor, torch.Tensor]:
        """x [..., D] -> (y [..., D], tokens per expert [E] float32)."""
        flat, sets = x.flatten(0, -2), self.experts + 1
        n, width = flat.shape
        ids, weights, _ = self.gate(flat, image, options)
        share = torch.zeros(n, self.experts, device=x.device).scatter(1, ids, weights)
        share = torch.cat((share, torch.ones(n, 1, device=x.device)), 1)
        counts = torch.zeros(n, self.experts, device=x.device).scatter(1, ids, 1.0).sum(0)
        quant = (lambda t: numerics.straight_through(t, numerics.q8)) if options.act_quant else lambda t: t
        inner = matmul(quant(flat), self._weight(self.up, options), options).view(n, sets, 2, -1)
        g, u = inner[:, :, 0], inner[:, :, 1]
        if self.limit > 0:
            g, u = g.clamp(max=self.limit), u.clamp(-self.limit, self.limit)
        y = quant(options.round(F.silu(g) * u * share[..., None])).flatten(1)
        down = self._weight(self.down, options).view(sets, width, -1).permute(1, 0, 2).reshape(width, -1)
        return matmul(y, down, options).view(x.shape), counts


class _Pass(Pass):
    def _restrict(self, layer, attn, scores):
        config = self.config
        if self.rows.tokens.shape[1] <= config.candidate_topk_blocks * config.candidate_block_size * attn.ratio:
            return scores  # every visible entry lies in a kept block
        return super()._restrict(layer, attn, scores)


class _Model(Model):
    def forward(self, rows, options, state=None):
        return _Pass(self, rows, options, state).run()


class PortableNetwork:
    """See network.Network for what the attributes mean. `trained(name)`: the weights that get gradients."""

    def __init__(self, parameters: Parameters, token_map: np.ndarray,
                 trained=lambda name: not name.startswith("mtp.")):
        self.parameters, self.config = parameters, parameters.config
        self.device = parameters.values.device
        self.quantized = self.sparse = False
        self.distil: np.random.Generator | None = None
        self.index_loss: torch.Tensor | None = None
        self.capture_taps: list | None = None
        self.loads: dict[str, torch.Tensor] = {}
        self.model = _Model(self.config, torch.as_tensor(token_map, dtype=torch.int64)).to(self.device)
        for name, parameter in self.model.named_parameters():
            parameter.data = parameters.value[name]
            parameter.requires_grad_(parameter.requires_grad and trained(name))
            if parameter.requires_grad:
                parameter.grad = parameters.grad[name]
        for prefix, block in [*((f"layers.{l}", b) for l, b in enumerate(self.model.layers)),
                              *((f"mtp.{m}", b) for m, b in enumerate(self.model.mtp))]:
            block.ffn = self._dense(prefix + ".ffn.", block.ffn, trained(prefix + ".ffn."))
        if self.model.hash is not None:
            hashing = self.model.hash
            hashing.token_map = hashing.token_map.to(self.device)
            hashing.tables = {l: tuple(t.to(self.device) for t in table) for l, table in hashing.tables.items()}

    def _dense(self, prefix: str, moe, trained: bool) -> DenseMoe:
        names = [f"{prefix}experts.{e}" for e in range(len(moe.experts))] + [prefix + "shared_experts"]
        stacks = []
        for matrices in (("w1", "w3"), ("w2",)):
            official = [f"{n}.{m}.weight" for n in names for m in matrices]
            stack = nn.Parameter(self.parameters.stack(self.parameters.values, official), requires_grad=trained)
            if trained:
                stack.grad = self.parameters.stack(self.parameters.grads, official)
            stacks.append(stack)
        return DenseMoe(moe, *stacks)

    def refresh(self) -> None:
        """Nothing to do: every pass reads the masters."""

    @property
    def options(self) -> Options:
        return Options.training(self.quantized, dense_global=not self.sparse)

    def prepare(self, batch, start: torch.Tensor, pos: torch.Tensor, encoder: torch.Tensor,
                decoder: torch.Tensor) -> None:
        """Moves the batch to the device. A document is told by its start; padding is a document a token."""
        move = lambda x: x.to(self.device, non_blocking=True)
        batch.tokens, batch.pos, batch.target, batch.weight = map(
            move, (batch.tokens, batch.pos, batch.target, batch.weight))
        batch.layout = Rows(batch.tokens.view(batch.rows, batch.length), *map(move, (pos, start, encoder, decoder)))

    # ---- forward -------------------------------------------------------------------------------

    def _taught_rows(self, length: int) -> torch.Tensor | None:
        """Offsets in a row of the query blocks that teach the indexers in this pass, at least one."""
        if self.distil is None:
            return None
        blocks = [b for b in range(0, length, TAUGHT_BLOCK) if self.distil.random() < TAUGHT_SHARE]
        blocks = blocks or [length // 2 // TAUGHT_BLOCK * TAUGHT_BLOCK]
        return torch.cat([torch.arange(b, min(b + TAUGHT_BLOCK, length)) for b in blocks]).to(self.device)

    def hidden(self, batch) -> torch.Tensor:
        """The normed output state [n, D] of every token."""
        options = self.options
        options.distill_rows = self._taught_rows(batch.length)
        out = self.model(batch.layout, options)
        slots = batch.tokens.numel() * self.config.num_experts_per_tok
        self.loads = {f"layers.{l}.ffn.gate.bias": counts / slots for l, counts in enumerate(out.expert_counts)}
        if self.capture_taps is not None:
            self.capture_taps.append(out.taps.flatten(0, 1))
        self.index_loss = self._index_loss(out.distillation.values())
        return out.hidden.flatten(0, 1)

    def _index_loss(self, lessons) -> torch.Tensor | None:
        """Mean over taught queries of the cross entropy against the teacher's mass (as indexer.Indexers.loss)."""
        total, queries = None, 0
        for lesson in lessons:
            logs = torch.log_softmax(lesson.scores.masked_fill(~lesson.visible, -1e30), -1)
            part = -(lesson.mass * logs).sum() / self.config.num_attention_heads
            total = part if total is None else total + part
            queries += lesson.scores.shape[0] * lesson.scores.shape[1]
        return None if total is None else total / queries

    def loss(self, batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(weighted sum to differentiate, loss per token [n], best token [n])."""
        logits = self.head_logits(self.hidden(batch))
        per_token = F.cross_entropy(logits, batch.target, reduction="none")
        total = (per_token * batch.weight).sum()
        if self.index_loss is not None:
            total = total + self.index_loss * batch.weight.sum()
        return total, per_token.detach(), logits.detach().argmax(-1)

    def head_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [n, vocab] fp32 of normed states [n, D]."""
        return self.model.logits(hidden, self.options)


class PortableDraftNetwork(PortableNetwork):
    """See draft_network.DraftNetwork; only the draft layers get gradients."""

    def __init__(self, parameters: Parameters, token_map: np.ndarray):
        super().__init__(parameters, token_map, lambda name: name.startswith("mtp."))

    def refresh_draft(self) -> None:
        """Nothing to do: every pass reads the masters."""

    def propose(self, batch, taps: torch.Tensor, anchors: torch.Tensor) -> torch.Tensor:
        """h [M*B, D]: collapsed, not normed, for the blocks behind `anchors` [M] (row indices)."""
        pos = batch.pos.long()
        rings = dspark.context_keys(self.model, taps[None], pos[None], self.options)
        index, mask, ids = gather_blocks(self.config, batch, anchors)
        counts: list[torch.Tensor] = []
        hooks = [stage.ffn.register_forward_hook(lambda module, given, out: counts.append(out[1]))
                 for stage in self.model.mtp]
        h = dspark.propose_hidden(self.model, ids[:, 0], pos[anchors], [k[0][index] for k in rings], mask, self.options)
        for hook in hooks:
            hook.remove()
        slots = ids.numel() * self.config.dspark_num_experts_per_tok
        self.loads.update({f"mtp.{m}.ffn.gate.bias": c / slots for m, c in enumerate(counts)})
        return h.flatten(0, 1)

    def block_logits(self, h: torch.Tensor) -> torch.Tensor:
        """[M*B, vocab] before the Markov correction, from `propose`'s states."""
        return dspark.base_logits(self.model, h, self.options)

    def markov(self, previous: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(embedding [n, rank] of the previous tokens [n], their correction [n, vocab])."""
        head = self.model.mtp[-1].markov_head
        return head.embed(previous, self.options), dspark.markov_logits(self.model, previous, self.options)

    def confidence(self, h: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """Raw confidence [n]."""
        weight = self.model.mtp[-1].confidence_head.proj.weight
        return (torch.cat((h, embedded), -1) @ weight.t())[:, 0]
