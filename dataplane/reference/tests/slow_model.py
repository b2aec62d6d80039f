"""The specification once more, token by token, in plain loops over numpy float64 rows.

No rounding, no masks, no batching: a row's keys are explicit Python lists. It shares no code with
the model under test and reads only the configuration and the weights by their official names.
"""

import math

import numpy as np


def rms(x, weight, eps):
    return weight * x / np.sqrt(np.mean(x * x) + eps)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def is_prime(n):
    return n > 1 and all(n % d for d in range(2, math.isqrt(n) + 1))


class SlowModel:
    """Serves one document: feed tokens one at a time with step()."""

    def __init__(self, config, weights, token_map, encoder_floor=0, decoder_floor=0, history=(),
                 cached=None, write_floor=0):
        self.c, self.w = config, {k: v.double().numpy() for k, v in weights.items()}
        self.map = [int(i) for i in token_map]
        self.encoder_floor, self.decoder_floor, self.write_floor = encoder_floor, decoder_floor, write_floor
        self.tokens = list(history)
        self.window = {l: {} for l in range(config.num_hidden_layers)}
        self.entries = {l: list((cached or {}).get(l, [])) for l in config.kv_source_layer_ids}
        self.pending = {l: {} for l in config.kv_source_layer_ids}
        self.draft = [{} for _ in range(config.num_nextn_predict_layers)]
        self.buckets = self._buckets()

    # ---- one token -------------------------------------------------------------------------------

    def step(self, token):
        """Logits of the token's row, or None when it does not reach the head."""
        c, w = self.c, self.w
        self.tokens.append(token)
        pos = len(self.tokens) - 1
        streams = [w["embed.weight"][token].copy() for _ in range(c.hc_mult)]
        mix = [1.0] + [0.0] * (c.hc_mult - 1)
        self.selected, self.blocks, taps = {}, None, []
        first_decoder = max(c.kv_source_layer_ids)
        for layer in range(c.num_hidden_layers):
            prefix = f"layers.{layer}."
            if layer in c.engram_layer_ids:
                streams = self._engram(prefix, layer, streams, pos)
            if layer in c.dspark_target_layer_ids:
                taps.append(sum(streams) / c.hc_mult)
            x = rms(sum(m * s for m, s in zip(mix, streams)), w[prefix + "attn_norm.weight"], c.rms_norm_eps)
            if layer in c.kv_source_layer_ids:
                self._write_entry(prefix, layer, x, pos)
            if layer >= first_decoder and pos < self.decoder_floor:
                return None
            a, p, m = self._mix(prefix + "hc_attn_", streams)
            y = self._attention(prefix, layer, x, pos)
            streams = self._expand(p, y, m, streams)
            a2, p, m = self._mix(prefix + "hc_ffn_", streams)
            x = rms(sum(k * s for k, s in zip(a, streams)), w[prefix + "ffn_norm.weight"], c.rms_norm_eps)
            y = self._moe(prefix, x, c.n_routed_experts, c.num_experts_per_tok)
            streams, mix = self._expand(p, y, m, streams), a2
        self._draft_context(np.concatenate(taps), pos)
        hidden = sum(k * s for k, s in zip(mix, streams))
        return w["head.weight"] @ rms(hidden, w["norm.weight"], c.rms_norm_eps)

    # ---- hyper-connections -----------------------------------------------------------------------

    def _mix(self, prefix, streams):
        c, n = self.c, self.c.hc_mult
        x = np.concatenate(streams)
        z = self.w[prefix + "fn"] @ x / np.sqrt(np.mean(x * x) + c.rms_norm_eps)
        base, scale = self.w[prefix + "base"], self.w[prefix + "scale"]
        a = [sigmoid(z[k] * scale[0] + base[k]) + c.hc_eps for k in range(n)]
        p = [2 * sigmoid(z[n + k] * scale[1] + base[n + k]) for k in range(n)]
        m = np.zeros((n, n))
        for j in range(n):
            row = [math.exp(z[2 * n + j * n + k] * scale[2] + base[2 * n + j * n + k]) for k in range(n)]
            m[j] = [value / sum(row) + c.hc_eps for value in row]
        for k in range(n):
            m[:, k] /= m[:, k].sum() + c.hc_eps
        for _ in range(c.hc_sinkhorn_iters - 1):
            for j in range(n):
                m[j] /= m[j].sum() + c.hc_eps
            for k in range(n):
                m[:, k] /= m[:, k].sum() + c.hc_eps
        return a, p, m

    def _expand(self, p, y, m, streams):
        n = self.c.hc_mult
        return [p[k] * y + sum(m[j][k] * streams[j] for j in range(n)) for k in range(n)]

    # ---- attention -------------------------------------------------------------------------------

    def _rotate(self, x, pos, compressed, inverse=False):
        c, d = self.c, self.c.qk_rope_head_dim
        theta = c.compress_rope_theta if compressed else c.rope_theta
        out = x.copy()
        for i in range(d // 2):
            f = theta ** (-2 * i / d)
            if compressed:
                s = c.rope_scaling

                def corr(rho):
                    return d * math.log(s["original_max_position_embeddings"] / (2 * math.pi * rho)) / \
                        (2 * math.log(theta))
                low, high = max(math.floor(corr(s["beta_fast"])), 0), min(math.ceil(corr(s["beta_slow"])), d - 1)
                ramp = min(max((i - low) / max(high - low, 1e-3), 0), 1)
                f = f * (1 - ramp) + f / s["factor"] * ramp
            turn = complex(math.cos(pos * f), math.sin(pos * f) * (-1 if inverse else 1))
            at = len(x) - d + 2 * i
            value = complex(x[at], x[at + 1]) * turn
            out[at], out[at + 1] = value.real, value.imag
        return out

    def _write_entry(self, prefix, layer, x, pos):
        c, r, name = self.c, self.c.compress_ratios[layer], prefix + "attn."
        self.pending[layer][pos] = x
        if (pos + 1) % r or (pos + 1) // r - 1 < self.write_floor // r:
            return
        group = [self.pending[layer][t] for t in range(pos - r + 1, pos + 1)]
        values = [self.w[name + "compressor.wkv.weight"] @ g for g in group]
        if r == 1:
            latent = values[0]
        else:
            gates = np.array([self.w[name + "compressor.wgate.weight"] @ g for g in group])
            latent = np.zeros(c.head_dim)
            for channel in range(c.head_dim):
                e = [math.exp(gates[t][channel]) for t in range(r)]
                latent[channel] = sum(e[t] / sum(e) * values[t][channel] for t in range(r))
        latent = rms(latent, self.w[name + "compressor.norm.weight"], c.rms_norm_eps)
        key = rms(self.w[name + "indexer.wk.weight"] @ latent, self.w[name + "indexer.k_norm.weight"],
                  c.rms_norm_eps)
        j = (pos + 1) // r - 1
        assert j == len(self.entries[layer])
        self.entries[layer].append((self._rotate(latent, j * r, True), self._rotate(key, j * r, True)))

    def _select(self, prefix, layer, source, x, qr, pos):
        c, name = self.c, prefix + "attn.indexer."
        visible = (pos + 1) // c.compress_ratios[layer]
        q = (self.w[name + "wq_b.weight"] @ qr).reshape(c.index_n_heads, c.index_head_dim)
        q = [self._rotate(row, pos, True) for row in q]
        weight = self.w[name + "weights_proj.weight"] @ x * c.index_head_dim ** -0.5 * c.index_n_heads ** -0.5
        score = [sum(weight[h] * max(q[h] @ self.entries[source][j][1], 0) for h in range(c.index_n_heads))
                 for j in range(visible)]
        size = c.candidate_block_size
        if layer == c.candidate_source_layer_id:
            blocks = {b: max(score[b * size:(b + 1) * size]) for b in range(-(-visible // size))}
            if blocks:
                blocks[(visible - 1) // size] = math.inf
            best = sorted(blocks, key=lambda b: (-blocks[b], b))[:c.candidate_topk_blocks]
            self.blocks = set(best)
        allowed = range(visible)
        if c.candidate_source is not None and layer > c.candidate_source_layer_id:
            allowed = [j for j in allowed if j // size in self.blocks]
        return sorted(sorted(allowed, key=lambda j: (-score[j], j))[:c.index_topk])

    def _attention(self, prefix, layer, x, pos):
        c, name = self.c, prefix + "attn."
        r = c.compress_ratios[layer]
        qr = rms(self.w[name + "wq_a.weight"] @ x, self.w[name + "q_norm.weight"], c.rms_norm_eps)
        self._window_write(self.window[layer], name, x, pos, r > 0)
        floor = self.decoder_floor if layer >= max(c.kv_source_layer_ids) else self.encoder_floor
        keys = [self.window[layer][t] for t in range(max(floor, pos - c.sliding_window + 1), pos + 1)]
        if r:
            source = max(s for s in c.kv_source_layer_ids if s <= layer)
            if layer in c.index_source_layer_ids:
                self.selected[layer] = self._select(prefix, layer, source, x, qr, pos)
            chosen = self.selected[max(s for s in c.index_source_layer_ids if s <= layer)]
            keys += [self.entries[source][j][0] for j in chosen]
        return self._attend(name, qr, keys, pos, r > 0)

    def _window_write(self, ring, name, x, pos, compressed):
        k = rms(self.w[name + "wkv.weight"] @ x, self.w[name + "kv_norm.weight"], self.c.rms_norm_eps)
        ring[pos] = self._rotate(k, pos, compressed)

    def _attend(self, name, qr, keys, pos, compressed):
        c = self.c
        q = (self.w[name + "wq_b.weight"] @ qr).reshape(c.num_attention_heads, c.head_dim)
        heads = []
        for h in range(c.num_attention_heads):
            row = self._rotate(q[h], pos, compressed)
            s = [row @ k * c.head_dim ** -0.5 for k in keys]
            top = max(s)
            p = [math.exp(v - top) for v in s]
            den = sum(p) + math.exp(self.w[name + "attn_sink"][h] - top)
            o = sum(v * k for v, k in zip(p, keys)) / den
            heads.append(self._rotate(o, pos, compressed, inverse=True))
        per_group, low = c.num_attention_heads // c.o_groups, []
        for a in range(c.o_groups):
            rows = self.w[name + "wo_a.weight"][a * c.o_lora_rank:(a + 1) * c.o_lora_rank]
            low.append(rows @ np.concatenate(heads[a * per_group:(a + 1) * per_group]))
        return self.w[name + "wo_b.weight"] @ np.concatenate(low)

    # ---- experts ---------------------------------------------------------------------------------

    def _expert(self, name, x, weight):
        limit = self.c.swiglu_limit
        g, u = self.w[name + ".w1.weight"] @ x, self.w[name + ".w3.weight"] @ x
        g, u = np.minimum(g, limit), np.clip(u, -limit, limit)
        return self.w[name + ".w2.weight"] @ (g * sigmoid(g) * u * weight)

    def _moe(self, prefix, x, count, top_k):
        name = prefix + "ffn."
        s = np.sqrt(np.log1p(np.exp(self.w[name + "gate.weight"] @ x / self.c.gate_temp)))
        biased = s + self.w[name + "gate.bias"]
        ids = sorted(range(count), key=lambda e: (-biased[e], e))[:top_k]
        total = sum(s[e] for e in ids) + 1e-20
        y = sum(self._expert(f"{name}experts.{e}", x, s[e] / total * self.c.routed_scaling_factor) for e in ids)
        return y + self._expert(name + "shared_experts", x, 1.0)

    # ---- Engram ----------------------------------------------------------------------------------

    def _buckets(self):
        c, used, tables = self.c, set(), {}
        for layer in c.engram_layer_ids:
            table, offset = [], 0
            for _ in range(2, c.engram_max_ngram_size + 1):
                candidate = c.engram_vocab_size - 1
                for _ in range(c.engram_n_heads):
                    candidate += 1
                    while not is_prime(candidate) or candidate in used:
                        candidate += 1
                    used.add(candidate)
                    table.append((candidate, offset))
                    offset += candidate
            tables[layer] = table
        return tables

    def _engram(self, prefix, layer, streams, pos):
        c, name = self.c, prefix + "engram."
        bound = max(1, (2 ** 63 - 1) // c.engram_compressed_vocab_size // 2)
        drawn = np.random.default_rng(10007 * layer).integers(0, bound, c.engram_max_ngram_size)
        factors = [2 * int(v) + 1 for v in drawn]
        ids = [self.map[self.tokens[pos - i]] if pos >= i else self.map[c.engram_pad_token_id]
               for i in range(c.engram_max_ngram_size)]
        rows, value = [], ids[0] * factors[0]
        for i in range(1, c.engram_max_ngram_size):
            value ^= ids[i] * factors[i]
            for prime, offset in self.buckets[layer][(i - 1) * c.engram_n_heads:i * c.engram_n_heads]:
                rows.append(self.w[name + "embed.weight"][value % prime + offset])
        kv = (self.w[name + "wkv.weight"] @ np.concatenate(rows)).reshape(c.hc_mult + 1, c.hidden_size)
        result = []
        for k, x in enumerate(streams):
            d = sum(x * self.w[name + "q_weight"][k] * self.w[name + "k_weight"][k] * kv[k])
            d /= np.sqrt(np.mean(x * x) + c.rms_norm_eps) * np.sqrt(np.mean(kv[k] ** 2) + c.rms_norm_eps)
            d *= c.hidden_size ** -0.5
            gate = sigmoid(math.copysign(math.sqrt(max(abs(d), 1e-6)), d))
            result.append(x + gate * kv[-1])
        return result

    # ---- DSpark ----------------------------------------------------------------------------------

    def _draft_context(self, taps, pos):
        c, w = self.c, self.w
        context = rms(w["mtp.0.main_proj.weight"] @ taps, w["mtp.0.main_norm.weight"], c.rms_norm_eps)
        for stage in range(c.num_nextn_predict_layers):
            self._window_write(self.draft[stage], f"mtp.{stage}.attn.", context, pos, False)

    def propose(self, token):
        """(tokens, corrected logits, confidence logits) behind the last fed position."""
        c, w = self.c, self.w
        p = len(self.tokens) - 1
        ids = [token] + [c.dspark_noise_token_id] * (c.dspark_block_size - 1)
        rows = [[w["embed.weight"][i].copy() for _ in range(c.hc_mult)] for i in ids]
        mixes = [[1.0] + [0.0] * (c.hc_mult - 1) for _ in ids]
        for stage in range(c.num_nextn_predict_layers):
            prefix, own = f"mtp.{stage}.", {}
            xs = [rms(sum(m * s for m, s in zip(mix, row)), w[prefix + "attn_norm.weight"], c.rms_norm_eps)
                  for mix, row in zip(mixes, rows)]
            for i, x in enumerate(xs):
                self._window_write(own, prefix + "attn.", x, p + 1 + i, False)
            context = [k for t, k in self.draft[stage].items() if p - c.sliding_window < t <= p]
            for i, x in enumerate(xs):
                a, pm, m = self._mix(prefix + "hc_attn_", rows[i])
                qr = rms(w[prefix + "attn.wq_a.weight"] @ x, w[prefix + "attn.q_norm.weight"], c.rms_norm_eps)
                y = self._attend(prefix + "attn.", qr, context + list(own.values()), p + 1 + i, False)
                rows[i] = self._expand(pm, y, m, rows[i])
                a2, pm, m = self._mix(prefix + "hc_ffn_", rows[i])
                x = rms(sum(k * s for k, s in zip(a, rows[i])), w[prefix + "ffn_norm.weight"], c.rms_norm_eps)
                y = self._moe(prefix, x, c.dspark_n_routed_experts, c.dspark_num_experts_per_tok)
                rows[i], mixes[i] = self._expand(pm, y, m, rows[i]), a2
        last, tokens, logits, confidence = f"mtp.{c.num_nextn_predict_layers - 1}.", [token], [], []
        for mix, row in zip(mixes, rows):
            h = sum(m * s for m, s in zip(mix, row))
            markov = w[last + "markov_head.embed.weight"][tokens[-1]]
            logits.append(w["head.weight"] @ rms(h, w[last + "norm.weight"], c.rms_norm_eps)
                          + w[last + "markov_head.head.weight"] @ markov)
            confidence.append(w[last + "confidence_head.proj.weight"][0] @ np.concatenate((h, markov)))
            tokens.append(int(np.argmax(logits[-1])))
        return tokens[1:], logits, confidence
