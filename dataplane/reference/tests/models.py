"""Small random models for tests. Every parameter is random, so that no term can hide behind a zero."""

import torch

from reference import config as presets
from reference import init
from reference.model import Model

_CASE_FOLD = {i: i + 32 for i in range(65, 91)}


def byte_token_map(vocab_size):
    """Compressed ids of a byte vocabulary that folds upper and lower case."""
    known, result = {}, []
    for i in range(vocab_size):
        result.append(known.setdefault(_CASE_FOLD.get(i, i), len(known)))
    return result


@torch.no_grad()
def randomise(model, seed=0):
    """Initial weights plus noise on everything that starts at a constant."""
    init.initialise(model, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        leaf = name.rsplit(".", 1)[-1]
        if leaf == "attn_sink":
            parameter += noise
        elif leaf in ("bias", "bias_vl"):
            parameter += 0.1 * noise
        elif "norm." in name or leaf in ("q_weight", "k_weight"):
            parameter += 0.2 * noise
        elif "hc_" in leaf:
            parameter += noise * (0.05 if leaf.endswith("_fn") else 0.5)
        elif "head." in name:
            parameter += 0.1 * noise
    return model


def random_model(config, seed=0):
    return randomise(Model(config, byte_token_map(config.vocab_size)), seed).requires_grad_(False)


def tiny_model(seed=0, **overrides):
    return random_model(presets.tiny(**overrides), seed)
