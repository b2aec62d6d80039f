"""The text model: embedding, blocks, head. Parameters carry the official tensor names."""

from dataclasses import dataclass, field
from typing import Dict, List, Optional

import torch
from torch import nn

from reference import csa
from reference.attention import Attention
from reference.attention_core import WindowGeometry
from reference.dspark import DraftBlock
from reference.engram import Engram, EngramHash, lookback_of_rows
from reference.layers import Linear, RmsNorm, Table, matmul, quantized_weight, rope_frequencies, rope_table
from reference.mhc import HyperConnection, Kernels
from reference.moe import Moe


@dataclass
class State:
    """What a forward pass takes over from earlier passes over the same document (batch of one).

    windows  layer -> (latents [1, S, d], positions [1, S]) of earlier rows
    entries  KV source -> Entries of complete groups
    pending  KV source -> (c, g) of the unfinished group
    write_floor  position: groups that end below it are not replaced
    """

    windows: Dict[int, tuple] = field(default_factory=dict)
    entries: Dict[int, csa.Entries] = field(default_factory=dict)
    pending: Dict[int, tuple] = field(default_factory=dict)
    write_floor: int = 0


@dataclass
class Distillation:
    """Teaching material of one index source: student scores, teacher's mass, rows' visible entries."""

    scores: torch.Tensor            # [B, R, E] with gradient
    visible: torch.Tensor           # [B, R, E] bool
    mass: Optional[torch.Tensor] = None  # [B, R, E] head-summed global attention of the sharing group


@dataclass
class Output:
    """hidden  [B, T', D] normed final state; rows that produced it (all, or the decoder rows);
    taps  [B, T', targets * D]; expert_counts per layer [E]; distillation per index source."""

    hidden: torch.Tensor
    rows: object
    taps: Optional[torch.Tensor]
    expert_counts: List[torch.Tensor]
    distillation: Dict[int, Distillation]


class Block(HyperConnection):
    """One layer. The forward pass lives in `Pass`, which knows what layers share."""

    def __init__(self, config, layer):
        super().__init__(config)
        self.attn_norm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.ffn_norm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.attn = Attention(config, config.ratio(layer), layer in config.kv_source_layer_ids,
                              layer in config.index_source_layer_ids)
        self.ffn = Moe(config, config.n_routed_experts, config.num_experts_per_tok)
        if layer in config.engram_layer_ids:
            self.engram = Engram(config, config.engram_num_embeddings[config.engram_layer_ids.index(layer)])


class Model(nn.Module):
    """token_map [vocab] int64: compressed ids for Engram; required when the config has Engram layers.

    `kernels` may be replaced (see mhc.Kernels).
    """

    def __init__(self, config, token_map=None):
        super().__init__()
        self.config = config
        self.kernels = Kernels()
        self.embed = Table(config.vocab_size, config.hidden_size, "bf16")
        self.layers = nn.ModuleList(Block(config, l) for l in range(config.num_hidden_layers))
        self.mtp = nn.ModuleList(DraftBlock(config, m) for m in range(config.num_nextn_predict_layers))
        self.norm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.head = Linear(config.hidden_size, config.vocab_size, "bf16")
        self.hash = None
        if config.engram_layer_ids:
            if token_map is None or len(token_map) != config.vocab_size:
                raise ValueError("token map: one compressed id per token id is required")
            self.hash = EngramHash(config, torch.as_tensor(token_map, dtype=torch.int64))
        for name, compressed in (("frequencies_main", False), ("frequencies_compress", True)):
            self.register_buffer(name, rope_frequencies(config, compressed), persistent=False)

    def forward(self, rows, options, state=None):
        """Runs `rows` (see Rows) through the backbone. `state` is read and extended when given."""
        return Pass(self, rows, options, state).run()

    def logits(self, hidden, options):
        """float32 logits [..., vocab] of normed hidden states."""
        return matmul(hidden, quantized_weight(self.head.weight, "bf16", options), options, promote=True)


class Pass:
    """One forward pass: the rows that are alive and what earlier layers left for later ones."""

    def __init__(self, model, rows, options, state):
        self.model, self.config, self.options, self.state = model, model.config, options, state
        self.kernels = model.kernels
        self.entries, self.visible, self.selection = {}, {}, {}
        self.candidates = None
        self.expert_counts, self.distillation, self.taps = [], {}, []
        self._use_rows(rows)

    def _use_rows(self, rows):
        self.rows = rows
        self.tables = {compressed: rope_table(frequencies, rows.positions) for compressed, frequencies in
                       ((False, self.model.frequencies_main), (True, self.model.frequencies_compress))}
        self.geometries = {}

    def run(self):
        config, options, model = self.config, self.options, self.model
        first_decoder = config.first_decoder_layer
        stream = model.embed(self.rows.tokens, options)[..., None, :].expand(
            *self.rows.tokens.shape, config.hc_mult, config.hidden_size)
        mix = torch.zeros(*stream.shape[:-1], device=stream.device)
        mix[..., 0] = 1
        lookback = self.rows.lookback
        if lookback is None and model.hash is not None:
            lookback = lookback_of_rows(self.rows, config.engram_max_ngram_size)
        for layer, block in enumerate(model.layers):
            name = f"layers.{layer}"
            options.put(f"{name}.stream_in", stream)
            options.put(f"{name}.mix_in", mix)
            if layer in config.engram_layer_ids:
                table_rows = model.hash.rows(layer, lookback)
                options.put(f"{name}.engram.rows", table_rows)
                stream = block.engram(stream, table_rows, self.rows.image, options, f"{name}.engram")
                options.put(f"{name}.engram.stream_out", stream)
            if layer in config.dspark_target_layer_ids:
                self.taps.append(options.round(stream.mean(-2)))
            x = self._site_input(block.attn_norm, mix, stream, f"{name}.attn")
            if layer in config.kv_source_layer_ids:
                self._produce_entries(layer, block.attn, x)
            if layer == first_decoder and self.rows.decoder_rows is not None:
                stream, mix, x = self._keep_decoder_rows(stream, mix, x)
                if not stream.shape[1]:
                    break
            stream, mix = self._block(layer, block, stream, mix, x)
        hidden = options.round(self.kernels.collapse(mix, stream))
        options.put("stream_out", stream)
        options.put("mix_out", mix)
        return Output(model.norm(hidden, options), self.rows,
                      torch.cat(self.taps, -1) if self.taps else None, self.expert_counts,
                      self.distillation)

    def _site_input(self, norm, mix, stream, name):
        u = self.options.round(self.kernels.collapse(mix, stream))
        self.options.put(f"{name}.collapsed", u)
        x = norm(u, self.options)
        self.options.put(f"{name}.x", x)
        return x

    def _site_mix(self, block, site, stream, name):
        a, p, c = block.site_mix(site, stream, self.kernels, self.config)
        for key, value in (("a", a), ("p", p), ("c", c)):
            self.options.put(f"{name}.{key}", value)
        return a, p, c

    def _block(self, layer, block, stream, mix, x):
        """Both sites of a layer; x is the normed input of the attention site."""
        options, name = self.options, f"layers.{layer}"
        mix_a, p, c = self._site_mix(block, "attn", stream, f"{name}.attn")
        o = self._attention(layer, block.attn, x)
        options.put(f"{name}.attn.y", o)
        stream = options.round(self.kernels.expand(p, o, c, stream))
        options.put(f"{name}.attn.stream_out", stream)
        mix_f, p, c = self._site_mix(block, "ffn", stream, f"{name}.ffn")
        x = self._site_input(block.ffn_norm, mix_a, stream, f"{name}.ffn")
        y, counts = block.ffn(x, self.rows.image, options, name)
        self.expert_counts.append(counts)
        options.put(f"{name}.ffn.y", y)
        return options.round(self.kernels.expand(p, y, c, stream)), mix_f

    # ---- attention -----------------------------------------------------------------------------

    def _attention(self, layer, attn, x):
        options, name = self.options, f"layers.{layer}.attn"
        table = self.tables[attn.ratio > 0]
        qr, q = attn.queries(x, table, options)
        k = attn.latents(x, table, options)
        for key, value in (("qr", qr), ("q", q), ("k", k)):
            options.put(f"{name}.{key}", value)
        for old, new in (("q_low", "q_low"), ("kv", "kv"), ("latent_unquantized", "k_unquantized")):
            options.rename(old, f"{name}.{new}")
        geometry, keys = self._window(layer, k)
        entries = mask = None
        if attn.ratio:
            source = self.config.kv_source_of(layer)
            entries = self.entries[source]
            mask = self._entry_mask(layer, attn, qr, x)
        o, mass = self.kernels.attend(q, keys, geometry, None if entries is None else entries.values,
                                      mask, attn.attn_sink, attn.head_dim ** -0.5, options.matmul_bf16)
        o = options.round(o)
        options.put(f"{name}.o", o)
        self._collect_mass(layer, mass)
        y = attn.output(o, table, options)
        options.rename("o_low", f"{name}.o_low")
        return y

    def _window(self, layer, k):
        """(geometry, keys): this pass's latents behind those of earlier passes."""
        decoder = layer >= self.config.first_decoder_layer
        rows = self.rows
        floor = rows.decoder_floor if decoder else rows.encoder_floor
        if self.state is None:
            if decoder not in self.geometries:
                self.geometries[decoder] = WindowGeometry(self.config.sliding_window, rows.positions,
                                                          rows.segments, floor)
            return self.geometries[decoder], k
        positions = rows.positions
        if layer in self.state.windows:
            before, before_positions = self.state.windows[layer]
            k = torch.cat((before, k), 1)
            positions = torch.cat((before_positions, positions), 1)
        self.state.windows[layer] = (k, positions)
        if decoder not in self.geometries:
            self.geometries[decoder] = WindowGeometry(
                self.config.sliding_window, rows.positions, rows.segments, floor, positions,
                rows.segments[:, :1].expand_as(positions))
        return self.geometries[decoder], k

    def _produce_entries(self, layer, attn, x):
        options, name, rows = self.options, f"layers.{layer}", self.rows
        if self.state is None:
            self.entries[layer], _ = csa.build_entries(attn, x, rows, options, name)
        else:
            state = self.state
            new, state.pending[layer] = csa.build_entries(attn, x, rows, options, name,
                                                          state.pending.get(layer))
            if layer in state.entries:
                old = state.entries[layer]
                kept = max(old.first.shape[1], state.write_floor // attn.ratio)
                if kept > old.first.shape[1]:
                    raise ValueError(f"layer {layer}: cached entries end below the write floor")
                start = int(new.first[0, 0]) // attn.ratio if new.first.shape[1] else kept
                if start > kept:
                    raise ValueError(f"layer {layer}: entries {kept} to {start} cannot be computed")
                new = old.append(new.slice(kept - start))
            state.entries[layer] = new
            self.entries[layer] = new
        options.put(f"{name}.entries", self.entries[layer].values)
        options.put(f"{name}.index_keys", self.entries[layer].keys)

    def _entry_mask(self, layer, attn, qr, x):
        """[B, T, E] entries this layer attends to."""
        source = self.config.index_source_of(layer)
        if layer != source:
            return self.selection[source]
        config, options, name = self.config, self.options, f"layers.{layer}"
        kv_source = config.kv_source_of(layer)
        if kv_source not in self.visible:
            self.visible[kv_source] = self.entries[kv_source].visible_to(self.rows, attn.ratio)
        visible = self.visible[kv_source]
        if options.dense_global:
            self._student(layer, attn, qr, x, None)
            self.selection[layer] = visible
            return visible
        pinned = options.pin(f"{name}.selection")
        if pinned is not None:
            self.selection[layer] = csa.list_to_mask(pinned, visible.shape[-1])
            if options.capture is None:
                return self.selection[layer]
        scores = self._scores(layer, attn, qr, x)
        self._student(layer, attn, qr, x, scores)
        scores = scores.detach().masked_fill(~visible, float("-inf"))
        options.put(f"{name}.index_scores", scores)
        chosen = csa.top_k_mask(self._restrict(layer, attn, scores), config.index_topk)
        if pinned is None:
            self.selection[layer] = chosen
        if options.capture is not None:
            options.put(f"{name}.selection", csa.mask_to_list(chosen, config.index_topk))
        return self.selection[layer]

    def _restrict(self, layer, attn, scores):
        """Applies the candidate blocks to layers behind their source."""
        config, entries = self.config, self.entries[self.config.kv_source_of(layer)]
        if config.candidate_source is None or layer < config.candidate_source:
            return scores
        capacity = config.candidate_topk_blocks * config.candidate_block_size
        if int(self.rows.positions.max()) + 1 <= capacity * attn.ratio:
            return scores  # every visible entry lies in a kept block
        if layer == config.candidate_source:
            self.candidates = csa.candidate_mask(scores, entries, attn.ratio, config.candidate_block_size,
                                                 config.candidate_topk_blocks)
            self.options.put(f"layers.{layer}.candidates", self.candidates)
            return scores
        return scores.masked_fill(~self.candidates, float("-inf"))

    def _scores(self, layer, attn, qr, x):
        name = f"layers.{layer}.attn"
        q, weight = attn.indexer.queries(qr, x, self.tables[True], self.options)
        self.options.rename("index_q_unquantized", f"{name}.index_q_unquantized")
        self.options.put(f"{name}.index_q", q)
        self.options.put(f"{name}.index_weights", weight)
        return attn.indexer.scores(q, weight, self.entries[self.config.kv_source_of(layer)].keys,
                                   self.options)

    # ---- distillation of the indexer -----------------------------------------------------------

    def _student(self, layer, attn, qr, x, scores):
        r = self.options.distill_rows
        if r is None:
            return
        if scores is None:
            table = tuple(t[:, r] for t in self.tables[True])
            q, weight = attn.indexer.queries(qr[:, r], x[:, r], table, self.options)
            keys = self.entries[self.config.kv_source_of(layer)].keys
            scores = attn.indexer.scores(q, weight, keys, self.options)
        else:
            scores = scores[:, r]
        self.distillation[layer] = Distillation(scores, self.visible[self.config.kv_source_of(layer)][:, r])

    def _collect_mass(self, layer, probabilities):
        r = self.options.distill_rows
        if r is None or probabilities is None:
            return
        target = self.distillation[self.config.index_source_of(layer)]
        mass = probabilities.detach()[:, r].sum(2)
        target.mass = mass if target.mass is None else target.mass + mass

    # ---- decoder rows --------------------------------------------------------------------------

    def _keep_decoder_rows(self, stream, mix, x):
        """Drops the rows that do not run through the decoder; ragged rows become padding."""
        keep = self.rows.decoder_rows
        count = int(keep.sum(1).max())
        order = keep.to(torch.int64).sort(dim=1, descending=True, stable=True).indices[:, :count]
        valid = keep.gather(1, order)

        def take(value):
            index = order.reshape(*order.shape, *([1] * (value.dim() - 2)))
            return value.gather(1, index.expand(*order.shape, *value.shape[2:]))
        self.taps = [take(tap) for tap in self.taps]
        self._use_rows(self.rows.gather(order, valid))
        self.visible, self.selection = {}, {}
        return take(stream), take(mix), take(x)
