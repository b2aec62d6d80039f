"""Softmax over a sliding window and a set of global entries, with a per-head sink.

Keys are values: one latent per position serves every head. Queries are [B, T, H, d].
"""

import torch


class WindowGeometry:
    """Which window keys each query row sees.

    query_* and key_* are [B, T] and [B, S]; a key is visible when it is of the same document, lies in
    (i - window, i] and not below the row's floor. When keys and queries are the same rows and long
    enough, the band is cut in chunks of queries that see their own chunk and the one before;
    otherwise one dense mask is used.
    """

    def __init__(self, window, positions, segments, floor=None, key_positions=None, key_segments=None):
        self.chunk = max(window, 64)
        self.banded = key_positions is None and positions.shape[1] > 2 * self.chunk
        if floor is None:
            floor = torch.zeros_like(positions)
        if key_positions is None:
            key_positions, key_segments = positions, segments
        self.rows = positions.shape[1]
        if self.banded:
            self.pad = -self.rows % self.chunk
            q_pos, q_seg, low = (self._chunks(x, fill) for x, fill in
                                 ((positions, 0), (segments, -2), (floor, 0)))
            k_pos, k_seg = self._pairs(self._chunks(key_positions, 0), 0), \
                self._pairs(self._chunks(key_segments, -3), -3)
        else:
            q_pos, q_seg, low, k_pos, k_seg = positions, segments, floor, key_positions, key_segments
        distance = q_pos[..., :, None] - k_pos[..., None, :]
        self.visible = ((distance >= 0) & (distance < window) & (k_pos[..., None, :] >= low[..., :, None])
                        & (q_seg[..., :, None] == k_seg[..., None, :]))
        # A padding row sees nothing; its softmax falls on the sink alone.

    def _chunks(self, x, fill):
        padded = torch.nn.functional.pad(x, (0, self.pad), value=fill)
        return padded.reshape(x.shape[0], -1, self.chunk)

    @staticmethod
    def _pairs(x, fill):
        before = torch.cat((torch.full_like(x[:, :1], fill), x[:, :-1]), 1)
        return torch.cat((before, x), 2)

    def _key_pairs(self, k):
        k = torch.nn.functional.pad(k, (0, 0, 0, self.pad))
        k = k.reshape(k.shape[0], -1, self.chunk, k.shape[-1])
        before = torch.cat((torch.zeros_like(k[:, :1]), k[:, :-1]), 1)
        return torch.cat((before, k), 2)

    def keys(self, k):
        """Keys in the layout that scores() and values() take."""
        return self._key_pairs(k) if self.banded else k

    def scores(self, q, keys):
        """[B, T, H, S] raw products and the mask [B, T, 1, S] of what is visible."""
        b, t, h, d = q.shape
        if not self.banded:
            s = torch.matmul(q.reshape(b, t * h, d), keys.transpose(1, 2)).reshape(b, t, h, -1)
            return s, self.visible[:, :, None]
        q = torch.nn.functional.pad(q, (0, 0, 0, 0, 0, self.pad))
        q = q.reshape(b, -1, self.chunk * h, d)
        s = torch.matmul(q, keys.transpose(2, 3)).reshape(b, -1, h, keys.shape[2])[:, :t]
        return s, self.visible.reshape(b, -1, 1, keys.shape[2])[:, :t]

    def values(self, p, keys):
        """[B, T, H, d] sums of keys weighted by p [B, T, H, S]."""
        b, t, h, s = p.shape
        if not self.banded:
            return torch.matmul(p.reshape(b, t * h, s), keys).reshape(b, t, h, -1)
        p = torch.nn.functional.pad(p, (0, 0, 0, 0, 0, self.pad)).reshape(b, -1, self.chunk * h, s)
        return torch.matmul(p, keys).reshape(b, -1, h, keys.shape[-1])[:, :t]


def attend(q, window_keys, geometry, entries, entry_mask, sink, scale, bf16):
    """Attention of q [B, T, H, d] over window_keys [B, S, d] and entries [B, E, d] or None.

    entry_mask [B, T, E] bool. Returns (o [B, T, H, d], probabilities of entries [B, T, H, E] or None).
    Probabilities are not rounded before the value product.
    """
    work = torch.bfloat16 if bf16 else torch.float32
    b, t, h, d = q.shape
    qs = (q * scale).to(work)
    keys = geometry.keys(window_keys.to(work))
    s, visible = geometry.scores(qs, keys)
    parts = [s.to(torch.float32).masked_fill(~visible, float("-inf"))]
    if entries is not None:
        entries = entries.to(work)
        g = torch.matmul(qs.reshape(b, t * h, d), entries.transpose(1, 2)).reshape(b, t, h, -1)
        parts.append(g.to(torch.float32).masked_fill(~entry_mask[:, :, None], float("-inf")))
    # The sink is one more key without a value; every other key may be hidden.
    parts.append(sink[:, None].expand(b, t, h, 1))
    p = torch.softmax(torch.cat(parts, -1), -1).split([part.shape[-1] for part in parts], -1)
    o = geometry.values(p[0].to(work), keys).to(torch.float32)
    if entries is None:
        return o, None
    p_entries = p[1]
    o = o + torch.matmul(p_entries.to(work).reshape(b, t * h, -1), entries).reshape(b, t, h, d).to(torch.float32)
    return o, p_entries
