"""Initial weights for training.

The streams start unequal and nearly independent: every site reads and writes all copies but prefers
one of its own, and the copy-to-copy matrix is close to the identity. Layer 0 can be seeded with heads
that look at the previous tokens, which shortens the search for the induction circuit.
"""

import math

import torch

from reference import inventory, numerics


@torch.no_grad()
def initialise(model, seed=0):
    """Fills every parameter, reproducibly on any device."""
    generator = torch.Generator().manual_seed(seed)

    def normal_(parameter, deviation):
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * deviation)

    depth = model.config.num_hidden_layers
    for name, parameter in model.named_parameters():
        leaf = name.rsplit(".", 1)[-1]
        if leaf.startswith("hc_"):
            continue
        if leaf in ("attn_sink", "bias", "bias_vl"):
            parameter.zero_()
        elif leaf in ("q_weight", "k_weight") or "norm." in name:
            parameter.fill_(1.0)
        elif name == "embed.weight":
            normal_(parameter, 0.5)
        elif name.endswith(("engram.embed.weight", "markov_head.embed.weight")):
            normal_(parameter, 0.1)
        elif name.endswith(("markov_head.head.weight", "confidence_head.proj.weight")):
            parameter.zero_()
        else:
            deviation = parameter.shape[-1] ** -0.5
            if name.endswith((".wo_b.weight", ".w2.weight")):
                deviation /= math.sqrt(2 * depth)
            normal_(parameter, deviation)
    for number, block in enumerate([*model.layers, *model.mtp]):
        _mixes(block, number, model.config.hc_mult, generator)


def _mixes(block, number, n, generator):
    """Static mixes: read 0.4 of the preferred copy and 0.2 of others, write 1.3 and 0.9."""
    for offset, site in enumerate(("attn", "ffn")):
        preferred = (2 * number + offset) % n
        fn = getattr(block, f"hc_{site}_fn")
        fn.copy_(torch.randn(fn.shape, generator=generator) * 0.02)
        getattr(block, f"hc_{site}_scale").fill_(0.1)
        read, write = torch.full((n,), _logit(0.2)), torch.full((n,), _logit(0.9 / 2))
        # The site's own A is what the next site reads.
        read[(preferred + 1) % n], write[preferred] = _logit(0.4), _logit(1.3 / 2)
        getattr(block, f"hc_{site}_base").copy_(torch.cat((read, write, 5.0 * torch.eye(n).flatten())))


def _logit(p):
    return math.log(p / (1 - p))


@torch.no_grad()
def seed_previous_token_heads(model, layer=0, pairs=5, sharpness=4.5):
    """Makes head h of `layer` attend to the token h + 1 places back.

    Embedding channel 0 becomes a constant; the layer's latents carry it in the first rotary pairs, and
    the query of head h is the same vector turned back by h + 1 positions. `sharpness` is the score
    per rotary pair at the peak, after the softmax scale. Only a window-only layer is suitable.
    """
    config, attn = model.config, model.layers[layer].attn
    if config.ratio(layer):
        raise ValueError(f"layer {layer}: previous-token heads need a window-only layer")
    width, d = config.hidden_size, config.head_dim
    rope = d - config.qk_rope_head_dim
    # Channel 0 holds a constant that is a quarter of the normed input's energy.
    constant = float(model.embed.weight[:, 1:].square().mean().sqrt()) * math.sqrt(width / 3)
    model.embed.weight[:, 0] = constant
    x0 = math.sqrt(width / 4)  # value of the channel after the RMS norm, on average
    attn.wkv.weight[rope:] = 0
    attn.wkv.weight[:rope, 0] = 0
    even = rope + 2 * torch.arange(pairs)
    attn.wkv.weight[even, 0] = 2.0 / x0
    attn.wq_a.weight[0] = 0
    attn.wq_a.weight[0, 0] = 4.0 / x0
    attn.wq_a.weight[1:, 0] = 0
    qr0 = 4.0 / math.sqrt((16 + config.q_lora_rank - 1) / config.q_lora_rank)
    k0 = 2.0 / math.sqrt((4 * pairs + rope * 0.75) / d)
    amplitude = sharpness * math.sqrt(d) / (qr0 * k0)
    wq_b = attn.wq_b.weight.view(config.num_attention_heads, d, config.q_lora_rank)
    wq_b[:, rope:] = 0
    wq_b[:, :, 0] = 0
    f = model.frequencies_main[:pairs]
    for head in range(config.num_attention_heads):
        angle = -(head + 1) * f
        wq_b[head, even, 0] = amplitude * angle.cos()
        wq_b[head, even + 1, 0] = amplitude * angle.sin()
        wq_b[head, :rope] *= 0.1


@torch.no_grad()
def bias_step(gate_bias, counts, rate=0.002):
    """Moves selection biases towards equal expert load; `counts` rows per expert of the step."""
    gate_bias += rate * torch.sign(counts.float().mean() - counts.float())


@torch.no_grad()
def round_to_storage(model):
    """Replaces every master by the value its storage format keeps (what an export would hold)."""
    round_trip = {"fp8": numerics.fp8_weight, "fp4": numerics.fp4_weight, "rows": numerics.fp8_rows,
                  "bf16": numerics.round_bf16, "f32": lambda w: w}
    weights = dict(model.named_parameters())
    for parameter in inventory.parameters(model.config):
        weight = weights[parameter.name]
        weight.copy_(round_trip[parameter.kind](weight))
