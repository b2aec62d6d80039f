"""Initial weights for training.

The streams start unequal and nearly independent: every site reads and writes all copies but prefers
one of its own, and the copy-to-copy matrix is close to the identity.
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
def round_to_storage(model):
    """Replaces every master by the value its storage format keeps (what an export would hold)."""
    round_trip = {"fp8": numerics.fp8_weight, "fp4": numerics.fp4_weight, "rows": numerics.fp8_rows,
                  "bf16": numerics.round_bf16, "f32": lambda w: w}
    weights = dict(model.named_parameters())
    for parameter in inventory.parameters(model.config):
        weight = weights[parameter.name]
        weight.copy_(round_trip[parameter.kind](weight))
