"""Engram: n-gram hash memory added to the stream before a layer."""

import torch
from torch import nn

from reference import primes
from reference.layers import Linear, Table, quantized_weight


class EngramHash:
    """Table rows of each position, a pure function of token ids.

    token_map  [vocab] int64: compressed id of every token id.
    """

    def __init__(self, config, token_map):
        self.ngram = config.engram_max_ngram_size
        self.heads = config.engram_n_heads
        self.pad = int(token_map[config.engram_pad_token_id])
        if int(token_map.max()) + 1 != config.engram_compressed_vocab_size:
            raise ValueError("token map: its size is not engram_compressed_vocab_size")
        self.token_map = token_map
        self.tables = {}
        for layer, buckets in zip(config.engram_layer_ids, config.engram_primes()):
            flat = torch.tensor([p for row in buckets for p in row])
            offsets = flat.cumsum(0) - flat
            factors = torch.tensor(primes.multipliers(layer, self.ngram,
                                                      config.engram_compressed_vocab_size))
            self.tables[layer] = (factors, flat, offsets)

    def compressed_lookback(self, raw):
        """raw [..., n] token ids (-1 = blocked) of t, t-1, ... -> compressed ids.

        A blocked token blocks every token further back.
        """
        self.token_map = self.token_map.to(raw.device)
        blocked = (raw < 0).cumsum(-1) > 0
        ids = self.token_map[raw.clamp(min=0)]
        return torch.where(blocked, torch.full_like(ids, self.pad), ids)

    def rows(self, layer, raw):
        """[..., (n - 1) * heads] int64 table rows, n-gram size outer, head inner."""
        factors, buckets, offsets = (x.to(raw.device) for x in self.tables[layer])
        products = self.compressed_lookback(raw) * factors
        columns, mixed = [], products[..., 0]
        for i in range(1, self.ngram):
            mixed = mixed ^ products[..., i]
            part = buckets[(i - 1) * self.heads:i * self.heads]
            columns.append(torch.remainder(mixed[..., None], part))
        return torch.cat(columns, -1) + offsets


def lookback_of_rows(rows, ngram):
    """[B, T, n] raw ids of t, t-1, ... inside the document, -1 where there is none or an image."""
    tokens = rows.tokens if rows.image is None else rows.tokens.masked_fill(rows.image, -1)
    columns = []
    for i in range(ngram):
        shifted = torch.nn.functional.pad(tokens, (i, 0), value=-1)[:, :tokens.shape[1]]
        columns.append(shifted.masked_fill(rows.positions < i, -1))
    return torch.stack(columns, -1)


class Engram(nn.Module):
    """Official parameters of `engram.*`."""

    def __init__(self, config, rows):
        super().__init__()
        n, width = config.hc_mult, config.hidden_size
        columns = (config.engram_max_ngram_size - 1) * config.engram_n_heads
        self.copies, self.width, self.eps = n, width, config.rms_norm_eps
        self.embed = Table(rows, config.engram_head_dim, "rows")
        self.wkv = Linear(columns * config.engram_head_dim, (n + 1) * width, "fp8")
        self.q_weight = nn.Parameter(torch.ones(n, width))
        self.k_weight = nn.Parameter(torch.ones(n, width))

    def forward(self, stream, table_rows, image, options, name):
        """stream [B, T, n, D] -> the same plus gated memory; image rows are left alone."""
        memory = self.embed(table_rows, options).flatten(-2)
        kv = self.wkv(memory, options)
        keys, value = kv.split((self.copies * self.width, self.width), -1)
        keys = keys.unflatten(-1, (self.copies, self.width))
        options.put(f"{name}.memory", memory)
        options.put(f"{name}.kv", kv)
        weight = (quantized_weight(self.q_weight, "bf16", options)
                  * quantized_weight(self.k_weight, "bf16", options))
        d = (stream * weight * keys).sum(-1)
        d = d * torch.rsqrt(stream.square().mean(-1) + self.eps)
        d = d * torch.rsqrt(keys.square().mean(-1) + self.eps) * self.width ** -0.5
        gate = torch.sigmoid(torch.copysign(d.abs().clamp(min=1e-6).sqrt(), d))
        if image is not None:
            gate = gate.masked_fill(image[..., None], 0.0)
        options.put(f"{name}.gate", gate)
        return options.round(stream + gate[..., None] * value[..., None, :])
