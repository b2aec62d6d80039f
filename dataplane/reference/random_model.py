"""Small random models for comparisons. No parameter keeps a constant, so that no term can hide."""

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


def windowed(**overrides):
    """The tiny model with the served window of 128 and room for long prompts."""
    values = dict(sliding_window=128, index_topk=24, candidate_topk_blocks=10, candidate_block_size=8)
    values.update(overrides)
    return presets.tiny(**values)


def mixed_ratios(**overrides):
    """Ratios 4 and 2, a window-only layer in between, two copies, two draft stages, no candidates,
    no Engram, several selections per KV source."""
    values = dict(
        num_hidden_layers=9, compress_ratios=[4, 4, 4, 0, 2, 2, 2, 2, 2, 0, 0], kv_source_layer_ids=[0, 4],
        index_source_layer_ids=[0, 2, 4, 6], candidate_source_layer_id=None, engram_layer_ids=[],
        num_nextn_predict_layers=2, dspark_block_size=5, dspark_target_layer_ids=[4, 8], hc_mult=2,
        hc_sinkhorn_iters=3, index_topk=5, sliding_window=5, hidden_size=96, n_routed_experts=6,
        num_experts_per_tok=3, dspark_num_experts_per_tok=2)
    values.update(overrides)
    return presets.tiny(**values)


def late_candidates(**overrides):
    """Candidate source behind its KV source, 4-grams, clamps that bite, three copies, four groups,
    image bias unused, a first layer with global entries."""
    values = dict(
        num_hidden_layers=8, compress_ratios=[2, 0, 2, 1, 1, 1, 1, 1, 0], kv_source_layer_ids=[0, 3],
        index_source_layer_ids=[0, 2, 3, 5, 6], candidate_source_layer_id=5, candidate_topk_blocks=3,
        candidate_block_size=2, engram_layer_ids=[0, 2], engram_max_ngram_size=4, engram_n_heads=3,
        engram_head_dim=64, dspark_target_layer_ids=[1, 3, 7], hc_mult=3, hc_sinkhorn_iters=7,
        o_groups=4, swiglu_limit=0.5, sliding_window=11, gate_temp=0.75, qk_rope_head_dim=16,
        index_n_heads=4, index_head_dim=32, num_attention_heads=8, head_dim=32)
    values.update(overrides)
    return presets.tiny(**values)
