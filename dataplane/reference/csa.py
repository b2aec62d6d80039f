"""CSA2: compressor, indexer and the choice of global entries."""

from dataclasses import dataclass

import torch
from torch import nn

from reference import numerics
from reference.layers import Linear, RmsNorm, rope_table, rotate


@dataclass
class Entries:
    """Global entries of one KV source.

    values   [B, E, head_dim]        rotated, quantized when asked
    keys     [B, E, index_head_dim]  rotated, quantized when asked
    first    [B, E] int64  position of the first token of the entry's group
    segments [B, E] int64  document, -1 = not an entry
    """

    values: torch.Tensor
    keys: torch.Tensor
    first: torch.Tensor
    segments: torch.Tensor

    def visible_to(self, rows, ratio):
        """[B, T, E]: the entry's group is complete at the row and of the same document."""
        index = torch.div(self.first, ratio, rounding_mode="floor")
        complete = torch.div(rows.positions + 1, ratio, rounding_mode="floor")
        return ((index[:, None, :] < complete[:, :, None])
                & (self.segments[:, None, :] == rows.segments[:, :, None])
                & (self.segments[:, None, :] >= 0))

    def append(self, other):
        return Entries(*(torch.cat((a, b), 1) for a, b in zip(self._all(), other._all())))

    def slice(self, start, stop=None):
        return Entries(*(x[:, start:stop] for x in self._all()))

    def _all(self):
        return self.values, self.keys, self.first, self.segments


class Compressor(nn.Module):
    """Latents of groups of `ratio` consecutive tokens."""

    def __init__(self, config, ratio):
        super().__init__()
        self.ratio = ratio
        self.wkv = Linear(config.hidden_size, config.head_dim, "bf16")
        if ratio > 1:
            self.wgate = Linear(config.hidden_size, config.head_dim, "bf16")
        self.norm = RmsNorm(config.head_dim, config.rms_norm_eps)

    def project(self, x, options):
        """What the compressor keeps of each token: (c, g), each [B, T, d]; g is None at ratio 1."""
        if self.ratio == 1:
            return self.wkv(x, options), None
        return self.wkv(x, options, promote=True), self.wgate(x, options, promote=True)

    def combine(self, c, g, options):
        """Latents [B, T / ratio, d] of complete groups."""
        if self.ratio > 1:
            b, t, d = c.shape
            c, g = (x.reshape(b, t // self.ratio, self.ratio, d) for x in (c, g))
            c = options.round((torch.softmax(g, 2) * c).sum(2))
        return self.norm(c, options)


class Indexer(nn.Module):
    """Scores of global entries; a KV source also owns the projection of the index keys."""

    def __init__(self, config, owns_keys):
        super().__init__()
        self.heads, self.width = config.index_n_heads, config.index_head_dim
        self.wq_b = Linear(config.q_lora_rank, self.heads * self.width, "fp8")
        self.weights_proj = Linear(config.hidden_size, self.heads, "bf16")
        if owns_keys:
            self.wk = Linear(config.head_dim, self.width, "bf16")
            self.k_norm = RmsNorm(self.width, config.rms_norm_eps)

    def index_keys(self, latents, table, options):
        k = rotate(self.k_norm(self.wk(latents.detach(), options), options), table, options)
        options.put("index_key_unquantized", k)
        return numerics.straight_through(k, numerics.q4i) if options.quant_index else k

    def queries(self, qr, x, table, options):
        """(iq [B, T, heads, width], w [B, T, heads]). The backbone gets no gradient from here."""
        cos, sin = table
        q = self.wq_b(qr.detach(), options).unflatten(-1, (self.heads, self.width))
        q = rotate(q, (cos[..., None, :], sin[..., None, :]), options)
        options.put("index_q_unquantized", q)
        if options.quant_index:
            q = numerics.straight_through(q, numerics.q4i)
        weight = self.weights_proj(x.detach(), options) * (self.width ** -0.5 * self.heads ** -0.5)
        return q, weight

    def scores(self, q, weight, keys, options):
        """[B, T, E] float32."""
        b, t, h, d = q.shape
        work = torch.bfloat16 if options.matmul_bf16 else torch.float32
        s = torch.matmul(q.to(work).reshape(b, t * h, d), keys.to(work).transpose(1, 2))
        s = torch.relu(s.to(torch.float32).reshape(b, t, h, -1))
        return (weight[..., None] * s).sum(2)


def build_entries(attention, x, rows, options, name, pending=None):
    """New global entries of a KV source from its normed input x [B, T, D].

    pending  (c, g, count) of the tokens of an unfinished group before the first row, or None.
    Returns (Entries, pending of the unfinished group at the end or None).
    A group that starts before the first row without pending state is skipped.
    """
    compressor, r = attention.compressor, attention.compressor.ratio
    c, g = compressor.project(x, options)
    positions, segments = rows.positions, rows.segments
    if r > 1:
        if pending is not None:
            before = pending[0].shape[1]
            c, g = torch.cat((pending[0], c), 1), torch.cat((pending[1], g), 1)
            lead = positions[:, :1] - torch.arange(before, 0, -1, device=positions.device)
            positions = torch.cat((lead, positions), 1)
            segments = torch.cat((segments[:, :1].expand_as(lead), segments), 1)
        skip = int(-positions[0, 0]) % r
        c, g, positions, segments = (y[:, skip:] for y in (c, g, positions, segments))
        whole = c.shape[1] - c.shape[1] % r
        rest = (c[:, whole:], g[:, whole:]) if whole < c.shape[1] else None
        c, g, positions, segments = (y[:, :whole] for y in (c, g, positions, segments))
        options.put(f"{name}.compressor_c", c)
        options.put(f"{name}.compressor_g", g)
    else:
        rest = None
    latents = compressor.combine(c, g, options)
    options.put(f"{name}.latent", latents)
    first = positions[:, ::r]
    groups = segments.reshape(*first.shape, r)
    owner = torch.where((groups == groups[..., :1]).all(-1), groups[..., 0], torch.full_like(first, -1))
    table = rope_table(attention.frequencies, first)
    keys = attention.indexer.index_keys(latents, table, options)
    options.rename("index_key_unquantized", f"{name}.index_key_unquantized")
    values = rotate(latents, table, options)
    options.put(f"{name}.entry_unquantized", values)
    if options.quant_global:
        values = numerics.straight_through(values, numerics.q4g)
    return Entries(values, keys, first, owner), rest


def top_k_mask(scores, k):
    """[..., E] bool: the k largest finite scores, equal scores going to the lower index."""
    if scores.shape[-1] <= k:
        return scores > float("-inf")
    kth = scores.topk(k, -1).values[..., -1:]
    above, equal = scores > kth, scores == kth
    room = k - above.sum(-1, keepdim=True)
    return (above | (equal & (equal.cumsum(-1) <= room))) & (scores > float("-inf"))


def candidate_mask(scores, entries, ratio, block_size, block_count):
    """[B, T, E] bool: entries inside the best blocks of the candidate source.

    A block's score is its best entry; the block of the newest visible entry always stays; blocks
    without a visible entry are dropped. Equal blocks: the lower index wins.
    """
    index = torch.div(entries.first, ratio, rounding_mode="floor")
    block = torch.div(index, block_size, rounding_mode="floor")
    changes = (block[:, 1:] != block[:, :-1]) | (entries.segments[:, 1:] != entries.segments[:, :-1])
    ids = torch.cat((torch.zeros_like(block[:, :1]), changes.to(torch.int64).cumsum(1)), 1)
    spread = ids[:, None, :].expand_as(scores)
    number = torch.arange(int(ids.max()) + 1, device=scores.device)
    start = torch.searchsorted(ids, number.expand(ids.shape[0], -1).contiguous())
    best = torch.full((*scores.shape[:2], len(number)), float("-inf"), device=scores.device)
    for offset in range(block_size):
        member = (start + offset).clamp(max=ids.shape[1] - 1)
        inside = (ids.gather(1, member) == number) & (start + offset == member)
        value = scores.gather(2, member[:, None, :].expand_as(best))
        best = torch.maximum(best, value.masked_fill(~inside[:, None, :], float("-inf")))
    visible = scores > float("-inf")
    newest = torch.where(visible, spread, torch.full_like(spread, -1)).amax(-1, keepdim=True)
    best = best.masked_fill(number == newest, float("inf"))
    return top_k_mask(best, block_count).gather(2, spread)


def mask_to_list(mask, k):
    """[..., E] bool -> [..., k] int64 ascending indices, -1 beyond the last."""
    order = torch.where(mask, torch.arange(mask.shape[-1], device=mask.device),
                        torch.full((), mask.shape[-1], device=mask.device))
    order = torch.nn.functional.pad(order.sort(-1).values, (0, max(0, k - mask.shape[-1])),
                                    value=mask.shape[-1])[..., :k]
    return torch.where(order < mask.shape[-1], order, torch.full_like(order, -1))


def list_to_mask(indices, count):
    """Inverse of mask_to_list for `count` entries."""
    mask = torch.zeros(*indices.shape[:-1], count + 1, dtype=torch.bool, device=indices.device)
    safe = torch.where(indices >= 0, indices, torch.full_like(indices, count))
    return mask.scatter(-1, safe, True)[..., :count]
