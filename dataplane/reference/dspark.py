"""DSpark draft head: three (or another number of) small blocks that propose a block of tokens."""

import torch
from torch import nn
from torch.nn import functional as F

from reference.attention import Attention
from reference.layers import Linear, RmsNorm, Table, matmul, quantized_weight, rope_table
from reference.mhc import HyperConnection
from reference.moe import Moe


class MarkovHead(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed = Table(config.vocab_size, config.dspark_markov_rank, "bf16")
        self.head = Linear(config.dspark_markov_rank, config.vocab_size, "bf16")


class ConfidenceHead(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.proj = Linear(config.hidden_size + config.dspark_markov_rank, 1, "bf16")


class DraftBlock(HyperConnection):
    """Stage m of the draft head; the first owns `main_*`, the last the output heads."""

    def __init__(self, config, stage):
        super().__init__(config)
        self.attn_norm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.ffn_norm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.attn = Attention(config, 0, kv_source=False, index_source=False)
        self.ffn = Moe(config, config.dspark_n_routed_experts, config.dspark_num_experts_per_tok)
        if stage == 0:
            taps = len(config.dspark_target_layer_ids)
            self.main_proj = Linear(taps * config.hidden_size, config.hidden_size, "fp8")
            self.main_norm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        if stage == config.num_nextn_predict_layers - 1:
            self.norm = RmsNorm(config.hidden_size, config.rms_norm_eps)
            self.markov_head = MarkovHead(config)
            self.confidence_head = ConfidenceHead(config)


def context_keys(model, taps, positions, options):
    """Context write: per stage the ring latents [B, T, d] of committed rows.

    taps [B, T, targets * D], positions [B, T].
    """
    first = model.mtp[0]
    context = first.main_norm(first.main_proj(taps, options), options)
    options.put("mtp.context", context)
    table = rope_table(model.frequencies_main, positions)
    return [stage.attn.latents(context, table, options) for stage in model.mtp]


def propose_hidden(model, first_token, positions, keys, key_mask, options):
    """Runs the block [y, noise, ...] of M anchors through the stages.

    first_token [M]  the token y just sampled from position p
    positions   [M]  p
    keys        per stage [M, S, d] ring latents; key_mask [M, S] which of them exist in (p - W, p]
    Returns h [M, block, D], the collapsed stream (not normed).
    """
    config, block = model.config, model.config.dspark_block_size
    ids = torch.full((first_token.shape[0], block), config.dspark_noise_token_id,
                     dtype=torch.int64, device=first_token.device)
    ids[:, 0] = first_token
    places = positions[:, None] + 1 + torch.arange(block, device=positions.device)
    table = rope_table(model.frequencies_main, places)
    stream = model.embed(ids, options)[..., None, :].expand(*ids.shape, config.hc_mult, config.hidden_size)
    mix = torch.zeros(*stream.shape[:-1], device=stream.device)
    mix[..., 0] = 1
    geometry = _BlockGeometry(F.pad(key_mask, (0, block), value=True))
    for number, stage in enumerate(model.mtp):
        name = f"mtp.{number}"
        options.put(f"{name}.stream_in", stream)
        options.put(f"{name}.mix_in", mix)
        mix_a, p, c = stage.site_mix("attn", stream, model.kernels, config)
        x = stage.attn_norm(options.round(model.kernels.collapse(mix, stream)), options)
        _, q = stage.attn.queries(x, table, options)
        own = stage.attn.latents(x, table, options)
        o, _ = model.kernels.attend(q, torch.cat((keys[number], own), 1), geometry, None, None,
                                    stage.attn.attn_sink, stage.attn.head_dim ** -0.5, options.matmul_bf16)
        y = stage.attn.output(options.round(o), table, options)
        options.put(f"{name}.attn.y", y)
        stream = options.round(model.kernels.expand(p, y, c, stream))
        mix_f, p, c = stage.site_mix("ffn", stream, model.kernels, config)
        x = stage.ffn_norm(options.round(model.kernels.collapse(mix_a, stream)), options)
        y, _ = stage.ffn(x, None, options, name)
        stream, mix = options.round(model.kernels.expand(p, y, c, stream)), mix_f
    return options.round(model.kernels.collapse(mix, stream))


class _BlockGeometry:
    """Every row of a block sees the context keys that exist and the whole block."""

    def __init__(self, mask):
        self.visible = mask[:, None, None, :]

    def keys(self, k):
        return k

    def scores(self, q, keys):
        m, t, h, d = q.shape
        return torch.matmul(q.reshape(m, t * h, d), keys.transpose(1, 2)).reshape(m, t, h, -1), self.visible

    def values(self, p, keys):
        m, t, h, s = p.shape
        return torch.matmul(p.reshape(m, t * h, s), keys).reshape(m, t, h, -1)


def base_logits(model, hidden, options):
    """Logits [M, block, vocab] before the Markov correction."""
    return model.logits(model.mtp[-1].norm(hidden, options), options)


def markov_logits(model, tokens, options):
    """Correction [..., vocab] that follows from the previous token of each row [...]."""
    head = model.mtp[-1].markov_head
    weight = quantized_weight(head.head.weight, "bf16", options)
    return matmul(head.embed(tokens, options), weight, options, promote=True)


def confidence_logits(model, hidden, tokens, options):
    """Raw confidence [...] of rows with hidden [..., D] and previous token [...]."""
    last = model.mtp[-1]
    features = torch.cat((hidden, last.markov_head.embed(tokens, options)), -1)
    weight = quantized_weight(last.confidence_head.proj.weight, "bf16", options)
    return matmul(features, weight, options, promote=True)[..., 0]


def propose(model, first_token, position, keys, key_mask, options):
    """Greedy proposal of one anchor.

    Returns (tokens [block], logits [block, vocab], confidence [block]); token i sits at
    position + 2 + i.
    """
    device = keys[0].device
    first = torch.tensor([first_token], device=device)
    hidden = propose_hidden(model, first, torch.tensor([position], device=device), keys, key_mask, options)
    options.put("mtp.hidden", hidden)
    logits = base_logits(model, hidden, options)
    options.put("mtp.base_logits", logits)
    previous, tokens, corrected, confidence = first, [], [], []
    for i in range(model.config.dspark_block_size):
        row = logits[:, i] + markov_logits(model, previous, options)
        confidence.append(confidence_logits(model, hidden[:, i], previous, options))
        corrected.append(row)
        previous = row.argmax(-1)
        tokens.append(previous)
    return torch.cat(tokens), torch.cat(corrected), torch.cat(confidence)
