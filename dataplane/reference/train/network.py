"""The architecture as a fast training forward over packed rows.

The same function as reference/model.py (checked in tests), arranged for two slow cores: fused
hyper-connections, stacked products, block-wise attention over documents. CPU only.
"""
from __future__ import annotations

import numpy as np
import torch

from reference import primes
from reference.layers import rope_frequencies

from .functions import BF, Attend, Experts, HeadLoss, Linear, NormRope, Plan, Quant, Site, Weight
from .indexer import Indexers
from .parameters import Parameters

MAX_LENGTH = 8192  # of a document


def rope_rows(frequencies: torch.Tensor, length: int) -> torch.Tensor:
    """[length, 2*pairs] (cos, sin) pairs."""
    angle = (torch.arange(length, dtype=torch.float32)[:, None] * frequencies).to(torch.float64)
    return torch.stack((angle.cos(), angle.sin()), -1).flatten(1).to(torch.float32).contiguous()


class Small:
    """A vector parameter used inside kernels."""

    def __init__(self, value: torch.Tensor, grad: torch.Tensor):
        self.value, self.grad = value, grad


class Batch:
    """Packed rows [rows, T]; `network.prepare` adds what it needs of them and may move them to its device.

    tokens, target [n] int64, pos [n] int32 (place in the document), weight [n] float32, n = rows * T. A weight
    belongs to predicting the target of its row.
    """

    def __init__(self, network: "Network", data: dict[str, np.ndarray], floor: np.ndarray | None = None,
                 decoder_floor: np.ndarray | None = None):
        tokens, start = torch.from_numpy(data["tokens"]), torch.from_numpy(data["start"])
        self.rows, self.length = tokens.shape
        pos = torch.arange(self.length).expand_as(start) - start
        zero = torch.zeros_like(start)
        encoder = zero if floor is None else torch.from_numpy(floor)
        decoder = zero if decoder_floor is None else torch.from_numpy(decoder_floor)
        self.tokens = tokens.reshape(-1)
        self.pos = pos.reshape(-1).to(torch.int32).contiguous()
        self.target = torch.from_numpy(data["target"]).reshape(-1).contiguous()
        self.weight = torch.from_numpy(data["weight"]).reshape(-1).contiguous()
        network.prepare(self, start, pos, encoder, decoder)


class Network:
    """Forward pass and bf16 working copies. `quantized` switches fake quantization on."""

    def __init__(self, parameters: Parameters, token_map: np.ndarray):
        self.parameters, self.config = parameters, parameters.config
        self.token_map = token_map
        c = self.config
        self.rope = {False: rope_rows(rope_frequencies(c, False), MAX_LENGTH),
                     True: rope_rows(rope_frequencies(c, True), MAX_LENGTH)}
        self.quantized = False
        self.sparse = False  # attend to the indexer's selection instead of everything visible
        self.distil: np.random.Generator | None = None  # draws the query blocks that teach the indexers
        self.index_loss: torch.Tensor | None = None
        self.capture_taps: list | None = None  # receives what the draft layers read, bf16 [n, D] a layer
        self.loads: dict[str, torch.Tensor] = {}
        self.weights: dict[str, Weight] = {}
        self._kind = {e.name: e.kind for e in parameters.entries}
        for prefix, experts in [(f"layers.{l}", c.n_routed_experts) for l in range(c.num_hidden_layers)]:
            self._register_block(prefix, experts)
        self._register("head", ["head.weight"])
        for l in c.engram_layer_ids:
            self._register(f"layers.{l}.engram.wkv", [f"layers.{l}.engram.wkv.weight"])

    # ---- weights -------------------------------------------------------------------------------

    def _register(self, key: str, names: list[str]) -> None:
        p = self.parameters
        self.weights[key] = Weight(p.stack(p.values, names), p.stack(p.grads, names), self._kind[names[0]])

    def _register_block(self, prefix: str, experts: int) -> None:
        p, a, f = self.parameters, prefix + ".attn.", prefix + ".ffn."
        self._register(a + "in", [a + "wq_a.weight", a + "wkv.weight"])
        compressor = [n for n in (a + "compressor.wkv.weight", a + "compressor.wgate.weight") if n in p.value]
        if compressor:
            self._register(a + "compressor", compressor)
        self._register(a + "wq_b", [a + "wq_b.weight"])
        self._register(a + "wo_b", [a + "wo_b.weight"])
        groups, rank = self.config.o_groups, self.config.o_lora_rank
        value, grad = p.value[a + "wo_a.weight"], p.grad[a + "wo_a.weight"]
        for g in range(groups):
            rows = slice(g * rank, (g + 1) * rank)
            self.weights[f"{a}wo_a.{g}"] = Weight(value[rows], grad[rows], "fp8")
        for e, name in enumerate([f"{f}experts.{e}" for e in range(experts)] + [f + "shared_experts"]):
            self._register(f"{f}up.{e}", [f"{name}.w1.weight", f"{name}.w3.weight"])
            self._register(f"{f}down.{e}", [f"{name}.w2.weight"])

    def small(self, name: str) -> Small:
        return Small(self.parameters.value[name], self.parameters.grad[name])

    def refresh(self) -> None:
        """Makes this step's bf16 copies from the masters."""
        for weight in self.weights.values():
            weight.refresh(self.quantized)

    def prepare(self, batch: Batch, start: torch.Tensor, pos: torch.Tensor, encoder: torch.Tensor,
                decoder: torch.Tensor) -> None:
        """Adds everything that depends on tokens alone. All are [rows, T]: start of the document in the row,
        place in it, lowest position of a window key in encoder and decoder layers."""
        c = self.config
        keys = {(c.ratio(l), l >= c.first_decoder_layer) for l in range(c.num_hidden_layers)}
        batch.plans = {k: Plan(start, pos, decoder if k[1] else encoder, c.sliding_window, k[0]) for k in keys}
        batch.entry_pos = {r: batch.pos[::r].contiguous() for r in set(c.compress_ratios) if r}
        tokens = batch.tokens.view(batch.rows, batch.length).numpy()
        batch.engram = {l: self.engram_ids(l, tokens, pos.numpy()) for l in c.engram_layer_ids}

    # ---- Engram --------------------------------------------------------------------------------

    def engram_ids(self, layer: int, tokens: np.ndarray, pos: np.ndarray) -> torch.Tensor:
        """Table rows [tokens, columns] of every token; look-back stops at the document's start."""
        c = self.config
        m = primes.multipliers(layer, c.engram_max_ngram_size, c.engram_compressed_vocab_size)
        table = c.engram_primes()[c.engram_layer_ids.index(layer)]
        pad = int(self.token_map[c.engram_pad_token_id])
        mapped = self.token_map[tokens].astype(np.int64)
        mixed = mapped * m[0]
        columns, offset = [], 0
        for i in range(1, c.engram_max_ngram_size):
            back = np.full_like(mapped, pad)
            back[:, i:] = mapped[:, :-i]
            back = np.where(pos >= i, back, pad)
            mixed = mixed ^ (back * m[i])
            for prime in table[i - 1]:
                columns.append(mixed % prime + offset)
                offset += prime
        return torch.from_numpy(np.stack(columns, -1).reshape(-1, len(columns)))

    def _engram(self, layer: int, X: torch.Tensor, batch: Batch) -> torch.Tensor:
        c, e = self.config, f"layers.{layer}.engram."
        rows = torch.nn.functional.embedding(batch.engram[layer], self.leaf(e + "embed.weight"))
        kv = Linear.apply(self._quant(rows.flatten(1).to(BF)), self.weights[e + "wkv"]).float()
        D, n = c.hidden_size, c.hc_mult
        keys, value = kv[:, :n * D].view(-1, n, D), kv[:, n * D:]
        stream = X.view(-1, n, D)
        weight = self.leaf(e + "q_weight") * self.leaf(e + "k_weight")
        norm = lambda x: torch.rsqrt(x.square().mean(-1) + c.rms_norm_eps)
        d = (stream * weight * keys).sum(-1) * norm(stream) * norm(keys) * D ** -0.5
        gate = torch.sigmoid(torch.copysign(d.abs().clamp(min=1e-6).sqrt(), d))
        return (stream + gate[..., None] * value[:, None, :]).flatten(1)

    def leaf(self, name: str) -> torch.Tensor:
        if name not in self._leaves:
            self._leaves[name] = self.parameters.leaf(name)
        return self._leaves[name]

    # ---- forward -------------------------------------------------------------------------------

    def _site(self, X, o, P, C, A, mix: str | None, norm: str | None):
        c = self.config
        parts = tuple(self.small(mix + s) for s in ("fn", "base", "scale")) if mix else None
        return Site.apply(X, o, P, C, A, parts, self.small(norm) if norm else None, c.hc_sinkhorn_iters,
                          float(c.hc_eps), float(c.rms_norm_eps))

    def _quant(self, x: torch.Tensor) -> torch.Tensor:
        """Q8 in front of FP8 and FP4 products."""
        return Quant.apply(x, "quant_q8") if self.quantized else x

    def _attention(self, layer: int, xn: torch.Tensor, batch: Batch, state: dict) -> torch.Tensor:
        c, a = self.config, f"layers.{layer}.attn."
        eps, D, H = float(c.rms_norm_eps), c.head_dim, c.num_attention_heads
        ratio = c.ratio(layer)
        table = self.rope[ratio > 0]
        y = Linear.apply(self._quant(xn), self.weights[a + "in"])
        at = c.q_lora_rank
        qr = NormRope.apply(y[:, :at], self.small(a + "q_norm.weight"), None, 1, 1.0, eps, None)
        q = Linear.apply(self._quant(qr), self.weights[a + "wq_b"])
        q = NormRope.apply(q, None, (table, batch.pos), H, 1.0, eps, None)
        k = NormRope.apply(y[:, at:at + D], self.small(a + "kv_norm.weight"), (table, batch.pos), 1, 1.0, eps,
                           "quant_q8" if self.quantized else None)
        if layer in c.kv_source_layer_ids:
            entries = Linear.apply(xn, self.weights[a + "compressor"])
            state["G"] = self._entries(layer, entries, batch, state)
        G = state["G"] if ratio else None
        plan = batch.plans[(ratio, layer >= c.first_decoder_layer)]
        indexers = state["indexers"]
        if layer in c.index_source_layer_ids:
            indexers.source(layer, qr.detach(), xn.detach(), state["lat"], plan, batch)
        chosen, mass = (indexers.chosen, indexers.mass) if ratio else ({}, {})
        o = Attend.apply(q, k, G, self.small(a + "attn_sink"), plan, D ** -0.5, chosen, mass)
        o = NormRope.apply(o, None, (table, batch.pos), H, -1.0, eps, None)
        width = o.shape[1] // c.o_groups
        groups = [Linear.apply(o[:, g * width:(g + 1) * width].contiguous(), self.weights[f"{a}wo_a.{g}"])
                  for g in range(c.o_groups)]
        return Linear.apply(self._quant(torch.cat(groups, 1)), self.weights[a + "wo_b"])

    def _entries(self, layer: int, y: torch.Tensor, batch: Batch, state: dict) -> torch.Tensor:
        """Global entries of a KV source from its compressor products y [n, D] or [n, 2D]."""
        c, a = self.config, f"layers.{layer}.attn."
        eps, D, ratio = float(c.rms_norm_eps), c.head_dim, c.ratio(layer)
        if ratio > 1:
            groups = y.float().view(-1, ratio, 2 * D)
            y = (torch.softmax(groups[..., D:], 1) * groups[..., :D]).sum(1).to(BF)
        lat = NormRope.apply(y, self.small(a + "compressor.norm.weight"), None, 1, 1.0, eps, None)
        state["lat"] = lat.detach()
        return NormRope.apply(lat, None, (self.rope[True], batch.entry_pos[ratio]), 1, 1.0, eps,
                              "quant_q4g" if self.quantized else None)

    def _experts(self, prefix: str, xn: torch.Tensor) -> torch.Tensor:
        c, f = self.config, prefix + ".ffn."
        logits = torch.nn.functional.linear(xn.float(), self.leaf(f + "gate.weight"))
        s = torch.nn.functional.softplus(logits).sqrt()
        draft = prefix.startswith("mtp")
        k = c.dspark_num_experts_per_tok if draft else c.num_experts_per_tok
        ids = (s.detach() + self.parameters.value[f + "gate.bias"]).topk(k, -1).indices
        w = s.gather(1, ids)
        w = w / (w.sum(1, keepdim=True) + 1e-20) * c.routed_scaling_factor
        experts = s.shape[1] + 1
        self.loads[f + "gate.bias"] = torch.bincount(ids.flatten(), minlength=s.shape[1]).float() / ids.numel()
        return Experts.apply(self._quant(xn), w, ids, [self.weights[f"{f}up.{e}"] for e in range(experts)],
                             [self.weights[f"{f}down.{e}"] for e in range(experts)], float(c.swiglu_limit),
                             self.quantized)

    def hidden(self, batch: Batch) -> torch.Tensor:
        """The normed output state h [n, D] bf16 of every token."""
        c = self.config
        self._leaves: dict[str, torch.Tensor] = {}
        x = torch.nn.functional.embedding(batch.tokens, self.leaf("embed.weight"))
        X = x.repeat(1, c.hc_mult)
        A = torch.zeros(X.shape[0], c.hc_mult)
        A[:, 0] = 1
        indexers = Indexers(self)
        state: dict = {"indexers": indexers}
        o = P = C = None
        for l in range(c.num_hidden_layers):
            pre = f"layers.{l}."
            if l in c.engram_layer_ids:
                if o is not None:
                    X = self._site(X, o, P, C, None, None, None)[0]
                X, o, P, C = self._engram(l, X, batch), None, None, None
            X, xn, A2, P, C = self._site(X, o, P, C, A, pre + "hc_attn_", pre + "attn_norm.weight")
            if self.capture_taps is not None and l in c.dspark_target_layer_ids:
                self.capture_taps.append(X.view(-1, c.hc_mult, c.hidden_size).mean(1).to(BF))
            o = self._attention(l, xn, batch, state)
            X, xn, A3, P, C = self._site(X, o, P, C, A2, pre + "hc_ffn_", pre + "ffn_norm.weight")
            o = self._experts(f"layers.{l}", xn)
            A = A3
        self.index_loss = indexers.loss()
        return self._site(X, o, P, C, A, None, "norm.weight")[1]

    def loss(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(weighted sum to differentiate, loss per token, best token)."""
        h = self.hidden(batch)
        per_token, best = torch.empty(h.shape[0]), torch.empty(h.shape[0], dtype=torch.int64)
        total = HeadLoss.apply(h, self.weights["head"], batch.target, batch.weight, per_token, best)
        if self.index_loss is not None:
            total = total + self.index_loss * batch.weight.sum()
        return total, per_token, best
