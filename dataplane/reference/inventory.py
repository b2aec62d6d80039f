"""Every tensor of a checkpoint, from its configuration alone."""

from dataclasses import dataclass
from typing import Tuple


@dataclass(frozen=True)
class Parameter:
    """A logical parameter. kind: fp8, fp4, rows (FP8 table), bf16 or f32."""

    name: str
    kind: str
    shape: Tuple[int, ...]


@dataclass(frozen=True)
class Stored:
    """A tensor as stored: safetensors dtype tag and shape."""

    name: str
    tag: str
    shape: Tuple[int, ...]

    @property
    def bytes(self):
        size = {"F32": 4, "BF16": 2}.get(self.tag, 1)
        for dimension in self.shape:
            size *= dimension
        return size


def parameters(config):
    """Logical parameters of the text model, in layer order."""
    d, vocab = config.hidden_size, config.vocab_size
    result = [Parameter("embed.weight", "bf16", (vocab, d)), Parameter("head.weight", "bf16", (vocab, d)),
              Parameter("norm.weight", "bf16", (d,))]
    for layer in range(config.num_hidden_layers):
        prefix = f"layers.{layer}."
        result += _block(config, prefix, config.n_routed_experts)
        result += _sources(config, prefix, layer)
        if layer in config.engram_layer_ids:
            result += _engram(config, prefix, layer)
    for stage in range(config.num_nextn_predict_layers):
        prefix = f"mtp.{stage}."
        result += _block(config, prefix, config.dspark_n_routed_experts)
        if stage == 0:
            result += [Parameter(prefix + "main_proj.weight", "fp8", (d, len(config.dspark_target_layer_ids) * d)),
                       Parameter(prefix + "main_norm.weight", "bf16", (d,))]
        if stage == config.num_nextn_predict_layers - 1:
            rank = config.dspark_markov_rank
            result += [Parameter(prefix + "norm.weight", "bf16", (d,)),
                       Parameter(prefix + "markov_head.embed.weight", "bf16", (vocab, rank)),
                       Parameter(prefix + "markov_head.head.weight", "bf16", (vocab, rank)),
                       Parameter(prefix + "confidence_head.proj.weight", "bf16", (1, d + rank))]
    return result


def _block(config, prefix, experts):
    d, n, inner = config.hidden_size, config.hc_mult, config.moe_intermediate_size
    heads, head_dim = config.num_attention_heads, config.head_dim
    low = config.o_groups * config.o_lora_rank
    plan = [("attn_norm.weight", "bf16", (d,)), ("ffn_norm.weight", "bf16", (d,)),
            ("attn.wq_a.weight", "fp8", (config.q_lora_rank, d)),
            ("attn.q_norm.weight", "bf16", (config.q_lora_rank,)),
            ("attn.wq_b.weight", "fp8", (heads * head_dim, config.q_lora_rank)),
            ("attn.wkv.weight", "fp8", (head_dim, d)), ("attn.kv_norm.weight", "bf16", (head_dim,)),
            ("attn.wo_a.weight", "fp8", (low, heads * head_dim // config.o_groups)),
            ("attn.wo_b.weight", "fp8", (d, low)), ("attn.attn_sink", "f32", (heads,))]
    for site in ("attn", "ffn"):
        plan += [(f"hc_{site}_fn", "f32", ((2 + n) * n, n * d)), (f"hc_{site}_base", "f32", ((2 + n) * n,)),
                 (f"hc_{site}_scale", "f32", (3,))]
    plan += [("ffn.gate.weight", "bf16", (experts, d)), ("ffn.gate.bias", "f32", (experts,)),
             ("ffn.gate.bias_vl", "f32", (experts,))]
    for name, kind in [("ffn.shared_experts", "fp8"), *((f"ffn.experts.{e}", "fp4") for e in range(experts))]:
        plan += [(f"{name}.w1.weight", kind, (inner, d)), (f"{name}.w2.weight", kind, (d, inner)),
                 (f"{name}.w3.weight", kind, (inner, d))]
    return [Parameter(prefix + name, kind, shape) for name, kind, shape in plan]


def _sources(config, prefix, layer):
    d, plan = config.hidden_size, []
    if layer in config.kv_source_layer_ids:
        plan.append(("compressor.wkv.weight", "bf16", (config.head_dim, d)))
        if config.ratio(layer) > 1:
            plan.append(("compressor.wgate.weight", "bf16", (config.head_dim, d)))
        plan += [("compressor.norm.weight", "bf16", (config.head_dim,)),
                 ("indexer.wk.weight", "bf16", (config.index_head_dim, config.head_dim)),
                 ("indexer.k_norm.weight", "bf16", (config.index_head_dim,))]
    if layer in config.index_source_layer_ids:
        plan += [("indexer.wq_b.weight", "fp8", (config.index_n_heads * config.index_head_dim, config.q_lora_rank)),
                 ("indexer.weights_proj.weight", "bf16", (config.index_n_heads, d))]
    return [Parameter(f"{prefix}attn.{name}", kind, shape) for name, kind, shape in plan]


def _engram(config, prefix, layer):
    n, d = config.hc_mult, config.hidden_size
    rows = config.engram_num_embeddings[config.engram_layer_ids.index(layer)]
    columns = (config.engram_max_ngram_size - 1) * config.engram_n_heads
    return [Parameter(prefix + "engram.embed.weight", "rows", (rows, config.engram_head_dim)),
            Parameter(prefix + "engram.wkv.weight", "fp8", ((n + 1) * d, columns * config.engram_head_dim)),
            Parameter(prefix + "engram.q_weight", "bf16", (n, d)),
            Parameter(prefix + "engram.k_weight", "bf16", (n, d))]


def stored_form(parameter):
    """The one or two tensors that hold a parameter."""
    name, shape = parameter.name, parameter.shape
    scale = name[:-len("weight")] + "scale"
    if parameter.kind == "fp8":
        tiles = (-(-shape[0] // 32), -(-shape[1] // 32))
        return [Stored(name, "F8_E4M3", shape), Stored(scale, "F8_E8M0", tiles)]
    if parameter.kind == "fp4":
        return [Stored(name, "I8", (shape[0], shape[1] // 2)),
                Stored(scale, "F8_E8M0", (shape[0], shape[1] // 32))]
    if parameter.kind == "rows":
        return [Stored(name, "F8_E4M3", shape), Stored(scale, "F8_E8M0", (shape[0], shape[1] // 32))]
    return [Stored(name, {"bf16": "BF16", "f32": "F32"}[parameter.kind], shape)]


def inventory(config):
    """Every stored tensor; the vision part is included when the configuration has one."""
    result = [stored for parameter in parameters(config) for stored in stored_form(parameter)]
    return result + (_vision(config) if config.vision_config else [])


def _vision(config):
    vision, d = config.vision_config, config.hidden_size
    width, inner = vision["hidden_size"], vision["intermediate_size"]
    merged = width * vision["downsample_ratio"] ** 2
    plan = [(name, (d,)) for name in ("image_start", "image_end", "image_newline")]
    plan += [("aligner.w1.weight", (d, merged)), ("aligner.w1.bias", (d,)),
             ("aligner.w2.weight", (d, d)), ("aligner.w2.bias", (d,)),
             ("vision.patch_embed.proj.weight", (width, 3 * vision["patch_size"] ** 2)),
             ("vision.patch_embed.proj.bias", (width,)), ("vision.norm.weight", (width,))]
    for block in range(vision["num_hidden_layers"]):
        plan += [(f"vision.blocks.{block}.{name}", shape) for name, shape in (
            ("norm1.weight", (width,)), ("norm2.weight", (width,)),
            ("attn.wqkv.weight", (3 * width, width)), ("attn.wqkv.bias", (3 * width,)),
            ("attn.wo.weight", (width, width)), ("attn.wo.bias", (width,)),
            ("mlp.w1.weight", (2 * inner, width)), ("mlp.w2.weight", (width, inner)))]
    return [Stored(name, "BF16", shape) for name, shape in plan]
