"""Masters of all weights: fp32, one flat buffer (shareable between processes), official names.

Matrices that multiply the same input lie one below the other in a stack, so that they run as one
product; each official name is a view of its rows.
"""
from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from reference.config import ModelConfig


@dataclass
class Entry:
    """`kind` is the storage format (fp8, fp4, bf16, f32, rows); `rule` chooses the optimiser."""

    name: str
    shape: tuple[int, ...]
    kind: str
    rule: str  # muon, adam, embed


def block_entries(c: ModelConfig, prefix: str, ratio: int, kv_source: bool, index_source: bool,
                  experts: int) -> list[Entry]:
    d, n = c.hidden_size, c.hc_mult
    a = f"{prefix}.attn."
    out = [Entry(a + "wq_a.weight", (c.q_lora_rank, d), "fp8", "muon"),
           Entry(a + "wkv.weight", (c.head_dim, d), "fp8", "muon")]
    if kv_source:
        out.append(Entry(a + "compressor.wkv.weight", (c.head_dim, d), "bf16", "muon"))
        if ratio > 1:
            out.append(Entry(a + "compressor.wgate.weight", (c.head_dim, d), "bf16", "muon"))
        out += [Entry(a + "compressor.norm.weight", (c.head_dim,), "bf16", "adam"),
                Entry(a + "indexer.wk.weight", (c.index_head_dim, c.head_dim), "bf16", "adam"),
                Entry(a + "indexer.k_norm.weight", (c.index_head_dim,), "bf16", "adam")]
    if index_source:
        out += [Entry(a + "indexer.wq_b.weight", (c.index_n_heads * c.index_head_dim, c.q_lora_rank), "fp8", "adam"),
                Entry(a + "indexer.weights_proj.weight", (c.index_n_heads, d), "bf16", "adam")]
    out += [Entry(a + "q_norm.weight", (c.q_lora_rank,), "bf16", "adam"),
            Entry(a + "kv_norm.weight", (c.head_dim,), "bf16", "adam"),
            Entry(a + "wq_b.weight", (c.num_attention_heads * c.head_dim, c.q_lora_rank), "fp8", "muon"),
            Entry(a + "wo_a.weight", (c.o_groups * c.o_lora_rank, c.num_attention_heads * c.head_dim // c.o_groups),
                  "fp8", "muon"),
            Entry(a + "wo_b.weight", (d, c.o_groups * c.o_lora_rank), "fp8", "muon"),
            Entry(a + "attn_sink", (c.num_attention_heads,), "f32", "adam"),
            Entry(f"{prefix}.attn_norm.weight", (d,), "bf16", "adam"),
            Entry(f"{prefix}.ffn_norm.weight", (d,), "bf16", "adam")]
    for site in ("attn", "ffn"):
        out += [Entry(f"{prefix}.hc_{site}_fn", ((2 + n) * n, n * d), "f32", "adam"),
                Entry(f"{prefix}.hc_{site}_base", ((2 + n) * n,), "f32", "adam"),
                Entry(f"{prefix}.hc_{site}_scale", (3,), "f32", "adam")]
    f, i = f"{prefix}.ffn.", c.moe_intermediate_size
    out += [Entry(f + "gate.weight", (experts, d), "bf16", "adam"),
            Entry(f + "gate.bias", (experts,), "f32", "fixed"),
            Entry(f + "gate.bias_vl", (experts,), "f32", "fixed")]
    names = [f"{f}experts.{e}" for e in range(experts)] + [f + "shared_experts"]
    for e, name in enumerate(names):
        kind = "fp4" if e < experts else "fp8"
        out += [Entry(f"{name}.w1.weight", (i, d), kind, "muon"), Entry(f"{name}.w3.weight", (i, d), kind, "muon")]
    out += [Entry(f"{name}.w2.weight", (d, i), "fp4" if e < experts else "fp8", "muon")
            for e, name in enumerate(names)]
    return out


def entries(c: ModelConfig) -> list[Entry]:
    """All parameters in storage order: what runs as one product is adjacent."""
    d = c.hidden_size
    out = [Entry("embed.weight", (c.vocab_size, d), "bf16", "embed"),
           Entry("head.weight", (c.vocab_size, d), "bf16", "adam"), Entry("norm.weight", (d,), "bf16", "adam")]
    for l in range(c.num_hidden_layers):
        out += block_entries(c, f"layers.{l}", c.ratio(l), l in c.kv_source_layer_ids, l in c.index_source_layer_ids,
                             c.n_routed_experts)
        if l in c.engram_layer_ids:
            rows = c.engram_num_embeddings[c.engram_layer_ids.index(l)]
            wide = (c.engram_max_ngram_size - 1) * c.engram_n_heads * c.engram_head_dim
            e = f"layers.{l}.engram."
            out += [Entry(e + "embed.weight", (rows, c.engram_head_dim), "rows", "embed"),
                    Entry(e + "wkv.weight", ((c.hc_mult + 1) * d, wide), "fp8", "muon"),
                    Entry(e + "q_weight", (c.hc_mult, d), "bf16", "adam"),
                    Entry(e + "k_weight", (c.hc_mult, d), "bf16", "adam")]
    for m in range(c.num_nextn_predict_layers):
        out += block_entries(c, f"mtp.{m}", 0, False, False, c.dspark_n_routed_experts)
    if c.num_nextn_predict_layers:
        last = f"mtp.{c.num_nextn_predict_layers - 1}."
        out += [Entry("mtp.0.main_proj.weight", (d, d * len(c.dspark_target_layer_ids)), "fp8", "muon"),
                Entry("mtp.0.main_norm.weight", (d,), "bf16", "adam"),
                Entry(last + "norm.weight", (d,), "bf16", "adam"),
                Entry(last + "markov_head.embed.weight", (c.vocab_size, c.dspark_markov_rank), "bf16", "embed"),
                Entry(last + "markov_head.head.weight", (c.vocab_size, c.dspark_markov_rank), "bf16", "adam"),
                Entry(last + "confidence_head.proj.weight", (1, d + c.dspark_markov_rank), "bf16", "adam")]
    return out


class Parameters:
    """`values` and `grads` are flat fp32 buffers; `value[name]`, `grad[name]` are views of them."""

    def __init__(self, config: ModelConfig, values: torch.Tensor | None = None, grads: torch.Tensor | None = None):
        self.config = config
        self.entries = entries(config)
        self.offset: dict[str, tuple[int, int]] = {}
        at = 0
        for e in self.entries:
            size = math.prod(e.shape)
            self.offset[e.name] = (at, at + size)
            at += size + (-size) % 16
        self.size = at
        self.values = torch.zeros(at) if values is None else values
        self.grads = torch.zeros(at) if grads is None else grads
        self.value = self._views(self.values)
        self.grad = self._views(self.grads)

    @staticmethod
    def count(config: ModelConfig) -> int:
        return sum(math.prod(e.shape) + (-math.prod(e.shape)) % 16 for e in entries(config))

    def _views(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        return {e.name: flat[slice(*self.offset[e.name])].view(e.shape) for e in self.entries}

    def stack(self, flat: torch.Tensor, names: list[str]) -> torch.Tensor:
        """The adjacent matrices `names` as one matrix [sum of rows, columns]."""
        begin, end = self.offset[names[0]][0], self.offset[names[-1]][1]
        width = self.value[names[0]].shape[-1]
        if end - begin != sum(self.value[n].numel() for n in names):
            raise ValueError(f"{names} are not adjacent")
        return flat[begin:end].view(-1, width)

    def leaf(self, name: str) -> torch.Tensor:
        """The master as an autograd leaf whose gradient lands in the flat buffer."""
        tensor = self.value[name].detach().requires_grad_()
        tensor.grad = self.grad[name]
        return tensor


def _embedding(c: ModelConfig, value: dict, g: torch.Generator) -> None:
    """Random rows with a constant first channel, which the seeded heads read."""
    value["embed.weight"].normal_(0, 1, generator=g)
    value["embed.weight"][:, 0] = 4.0
    value["head.weight"].normal_(0, 0.02, generator=g)


def _seed_previous_token_heads(c: ModelConfig, value: dict, frequencies: torch.Tensor) -> None:
    """Layer 0, head h: attends to the token h+1 back.

    The latent carries a constant in five rotary pairs (made from the constant channel), the query
    the same constant turned back by h+1 positions, so their product peaks at that distance. Five
    pairs keep the raw scores in the range where bf16 resolves them.
    """
    pairs, rope, width = 5, c.qk_rope_head_dim, c.head_dim
    first = width - rope
    x0 = 4.0 / math.sqrt(1 + 16 / c.hidden_size)  # the constant channel after the norm
    wkv = value["layers.0.attn.wkv.weight"]
    wkv[first:] *= 0.3
    wkv[first:first + 2 * pairs] = 0
    wkv[first:first + 2 * pairs:2, 0] = 3.0 / x0
    wq_a, wq_b = value["layers.0.attn.wq_a.weight"], value["layers.0.attn.wq_b.weight"]
    wq_a[0] = 0
    wq_a[0, 0] = 1.0
    for head in range(c.num_attention_heads):
        rows = wq_b[head * width:(head + 1) * width]
        rows[first:] = 0
        for i in range(pairs):
            angle = frequencies[i].item() * (head + 1)
            rows[first + 2 * i, 0] = 4.7 * math.cos(angle)
            rows[first + 2 * i + 1, 0] = -4.7 * math.sin(angle)


def _block(c: ModelConfig, value: dict, prefix: str, site: int, g: torch.Generator) -> None:
    for name, w in value.items():
        if not name.startswith(prefix + ".") or w.dim() != 2:
            continue
        if "hc_" in name:
            w.normal_(0, 0.3 / math.sqrt(w.shape[1]), generator=g)
        elif "engram" not in name and "markov" not in name:
            gain = 0.4 if name.endswith(("wo_b.weight", "w2.weight")) else 1.0
            w.normal_(0, gain / math.sqrt(w.shape[1]), generator=g)
    value[f"{prefix}.attn.wq_b.weight"].mul_(0.6)
    n = c.hc_mult
    for k, part in enumerate(("attn", "ffn")):
        favourite = (site + k) % n
        base = value[f"{prefix}.hc_{part}_base"]
        base[:n] = -2.0
        base[favourite] = 2.0
        base[n:2 * n] = -0.5
        base[n + (favourite + 1) % n] = 1.0
        base[2 * n:] = (4 * torch.eye(n)).flatten()
        value[f"{prefix}.hc_{part}_scale"].fill_(0.1)


def initialise(parameters: Parameters, frequencies: torch.Tensor, seed: int) -> None:
    """Random start: norms 1, streams told apart, layer 0 seeded. `frequencies`: rotary, no YaRN."""
    c, value = parameters.config, parameters.value
    g = torch.Generator().manual_seed(seed)
    parameters.values.zero_()
    for e in parameters.entries:
        if e.name.endswith("norm.weight"):
            value[e.name].fill_(1.0)
    _embedding(c, value, g)
    for l in range(c.num_hidden_layers):
        _block(c, value, f"layers.{l}", 2 * l, g)
        if l in c.engram_layer_ids:
            e = f"layers.{l}.engram."
            value[e + "embed.weight"].normal_(0, 1, generator=g)
            wkv = value[e + "wkv.weight"]
            wkv.normal_(0, 1 / math.sqrt(wkv.shape[1]), generator=g)
            wkv[c.hc_mult * c.hidden_size:] *= 0.1
            value[e + "q_weight"].fill_(1.0)
            value[e + "k_weight"].fill_(1.0)
    for m in range(c.num_nextn_predict_layers):
        _block(c, value, f"mtp.{m}", 2 * m, g)
    if c.num_nextn_predict_layers:
        last = f"mtp.{c.num_nextn_predict_layers - 1}."
        value[last + "markov_head.embed.weight"].normal_(0, 1, generator=g)
        value[last + "confidence_head.proj.weight"].zero_()
    _seed_previous_token_heads(c, value, frequencies)
