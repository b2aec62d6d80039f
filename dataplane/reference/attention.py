"""One attention site: queries, window latents, global entries, grouped output projection."""

import torch
from torch import nn

from reference import csa, numerics
from reference.layers import Linear, RmsNorm, matmul, quantized_weight, rope_frequencies, rotate


class Attention(nn.Module):
    """Official parameters of `attn.*`.

    ratio         compress ratio of the layer, 0 = window only
    kv_source     the layer writes global entries (owns `compressor`)
    index_source  the layer selects entries (owns `indexer`)
    """

    def __init__(self, config, ratio, kv_source, index_source):
        super().__init__()
        self.heads, self.head_dim, self.groups = \
            config.num_attention_heads, config.head_dim, config.o_groups
        self.ratio = ratio
        self.wq_a = Linear(config.hidden_size, config.q_lora_rank, "fp8")
        self.q_norm = RmsNorm(config.q_lora_rank, config.rms_norm_eps)
        self.wq_b = Linear(config.q_lora_rank, self.heads * self.head_dim, "fp8")
        self.wkv = Linear(config.hidden_size, self.head_dim, "fp8")
        self.kv_norm = RmsNorm(self.head_dim, config.rms_norm_eps)
        group_width = self.heads * self.head_dim // self.groups
        self.wo_a = Linear(group_width, self.groups * config.o_lora_rank, "fp8")
        self.wo_b = Linear(self.groups * config.o_lora_rank, config.hidden_size, "fp8")
        self.attn_sink = nn.Parameter(torch.zeros(self.heads))
        if kv_source:
            self.compressor = csa.Compressor(config, ratio)
        if index_source:
            self.indexer = csa.Indexer(config, owns_keys=kv_source)
        self.register_buffer("frequencies", rope_frequencies(config, compressed=ratio > 0),
                             persistent=False)

    def queries(self, x, table, options):
        """(qr [B, T, q_rank], q [B, T, H, d] rotated)."""
        low = self.wq_a(x, options)
        options.put("q_low", low)
        qr = self.q_norm(low, options)
        q = self.wq_b(qr, options).unflatten(-1, (self.heads, self.head_dim))
        cos, sin = table
        return qr, rotate(q, (cos[..., None, :], sin[..., None, :]), options)

    def latents(self, x, table, options):
        """Window latents [B, T, d], rotated and quantized when asked."""
        kv = self.wkv(x, options)
        options.put("kv", kv)
        k = rotate(self.kv_norm(kv, options), table, options)
        options.put("latent_unquantized", k)
        return numerics.straight_through(k, numerics.q8) if options.quant_window else k

    def output(self, o, table, options):
        """Undoes the rotation of o [B, T, H, d] and projects to [B, T, D]."""
        cos, sin = table
        o = rotate(o, (cos[..., None, :], sin[..., None, :]), options, inverse=True)
        grouped = o.flatten(-2).unflatten(-1, (self.groups, -1))
        weight = quantized_weight(self.wo_a.weight, "fp8", options).unflatten(0, (self.groups, -1))
        low = torch.cat([matmul(grouped[..., a, :], weight[a], options) for a in range(self.groups)], -1)
        options.put("o_low", low)
        return self.wo_b(low, options)
