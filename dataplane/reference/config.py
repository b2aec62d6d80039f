"""Model configuration: the composite `config.json`, its validation rules, and the built-in presets."""

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import List, Optional

from reference import primes

_QUANTIZATION = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "weight_block_size": [32, 32],
    "scale_fmt": "ue8m0",
    "expert_dtype": "fp4",
}
_TOP_LEVEL = ("bos_token_id", "eos_token_id", "pad_token_id", "image_token_id", "vision_config")
# Keys of text_config that are fixed for this architecture; anything else is refused.
_FIXED = {
    "model_type": "deepseek_v41_text",
    "num_key_value_heads": 1,
    "hidden_act": "silu",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "use_cache": True,
    "tie_word_embeddings": False,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "num_hash_layers": 0,
}
_OPTIONAL_FIXED = ("num_hash_layers",)


@dataclass
class ModelConfig:
    """Field names are the keys of `text_config`; the first four live at the top level of the file."""

    vocab_size: int
    hidden_size: int
    moe_intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    head_dim: int
    qk_rope_head_dim: int
    q_lora_rank: int
    o_lora_rank: int
    o_groups: int
    n_routed_experts: int
    num_experts_per_tok: int
    sliding_window: int
    compress_ratios: List[int]
    kv_source_layer_ids: List[int]
    index_source_layer_ids: List[int]
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    candidate_source_layer_id: Optional[int]
    candidate_topk_blocks: int
    candidate_block_size: int
    engram_layer_ids: List[int]
    engram_max_ngram_size: int
    engram_vocab_size: int
    engram_n_heads: int
    engram_head_dim: int
    engram_compressed_vocab_size: int
    num_nextn_predict_layers: int
    dspark_block_size: int
    dspark_noise_token_id: int
    dspark_target_layer_ids: List[int]
    dspark_markov_rank: int
    dspark_n_routed_experts: int
    dspark_num_experts_per_tok: int
    engram_num_embeddings: List[int] = field(default_factory=list)
    engram_pad_token_id: int = 2
    bos_token_id: int = 0
    eos_token_id: int = 1
    pad_token_id: int = 2
    image_token_id: int = 3
    n_shared_experts: int = 1
    routed_scaling_factor: float = 1.5
    gate_temp: float = 1.0
    swiglu_limit: float = 10.0
    rms_norm_eps: float = 1e-20
    hc_mult: int = 4
    hc_sinkhorn_iters: int = 20
    hc_eps: float = 1e-6
    initializer_range: float = 0.02
    max_position_embeddings: int = 32768
    rope_theta: float = 10000
    compress_rope_theta: float = 160000
    rope_scaling: dict = field(default_factory=lambda: {
        "rope_type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1,
        "original_max_position_embeddings": 65536})
    vision_config: Optional[dict] = None

    def __post_init__(self):
        if not self.engram_num_embeddings:
            self.engram_num_embeddings = [sum(map(sum, table)) for table in self.engram_primes()]
        self.validate()

    # ---- derived roles -------------------------------------------------------------------------

    def ratio(self, layer):
        return self.compress_ratios[layer]

    def kv_source_of(self, layer):
        """Layer whose global KV this layer reads, None for a window-only layer."""
        return _largest_at_or_below(self.kv_source_layer_ids, layer) if self.ratio(layer) else None

    def index_source_of(self, layer):
        """Layer whose selection this layer uses, None for a window-only layer."""
        return _largest_at_or_below(self.index_source_layer_ids, layer) if self.ratio(layer) else None

    @property
    def first_decoder_layer(self):
        """The layer that produces the decoder's global KV: the last KV source."""
        return max(self.kv_source_layer_ids) if self.kv_source_layer_ids else self.num_hidden_layers

    @property
    def candidate_source(self):
        """Candidate source layer, None when two-level selection is off."""
        source = self.candidate_source_layer_id
        return None if source is None or source < 0 else source

    def engram_primes(self):
        """Bucket sizes [engram layer][n-gram size - 2][head]."""
        return primes.bucket_primes(len(self.engram_layer_ids), self.engram_max_ngram_size,
                                    self.engram_n_heads, self.engram_vocab_size)

    # ---- validation ----------------------------------------------------------------------------

    def validate(self):
        """Raises ValueError naming the first rule that does not hold."""
        layers = self.num_hidden_layers
        _require(len(self.compress_ratios) >= layers, "compress_ratios: fewer entries than layers")
        _require(len(self.compress_ratios) == layers + self.num_nextn_predict_layers,
                 "compress_ratios: must cover the layers and the draft layers")
        _require(not any(self.compress_ratios[layers:]), "compress_ratios: draft layers must be 0")
        _require(all(r >= 0 for r in self.compress_ratios), "compress_ratios: negative ratio")
        for name in ("kv_source_layer_ids", "index_source_layer_ids", "engram_layer_ids",
                     "dspark_target_layer_ids"):
            ids = getattr(self, name)
            _require(ids == sorted(set(ids)), f"{name}: must be ascending and distinct")
            _require(all(0 <= i < layers for i in ids), f"{name}: layer out of range")
        self._validate_sources()
        for name in ("hidden_size", "moe_intermediate_size", "head_dim", "q_lora_rank",
                     "index_head_dim", "engram_head_dim"):
            _require(getattr(self, name) % 32 == 0, f"{name}: must be a multiple of 32")
        _require(self.o_groups * self.o_lora_rank % 32 == 0, "o_lora_rank: o_groups x o_lora_rank % 32")
        _require(self.num_attention_heads % self.o_groups == 0, "o_groups: must divide the heads")
        _require(self.qk_rope_head_dim % 2 == 0, "qk_rope_head_dim: must be even")
        _require(self.qk_rope_head_dim <= min(self.head_dim, self.index_head_dim),
                 "qk_rope_head_dim: larger than a head")
        _require(self.num_experts_per_tok <= self.n_routed_experts, "num_experts_per_tok: too large")
        _require(self.dspark_num_experts_per_tok <= self.dspark_n_routed_experts,
                 "dspark_num_experts_per_tok: too large")
        _require(self.n_shared_experts == 1, "n_shared_experts: must be 1")
        _require(self.hc_mult >= 1 and self.hc_sinkhorn_iters >= 1, "hc_mult, hc_sinkhorn_iters: >= 1")
        _require(all(i < self.first_decoder_layer for i in self.engram_layer_ids),
                 "engram_layer_ids: must lie below the first decoder layer")
        _require(self.engram_num_embeddings == [sum(map(sum, t)) for t in self.engram_primes()],
                 "engram_num_embeddings: does not equal the sums of the bucket primes")
        _require(self.rope_scaling.get("rope_type") == "yarn", "rope_scaling.rope_type: must be yarn")
        for name in ("bos_token_id", "eos_token_id", "pad_token_id", "image_token_id",
                     "engram_pad_token_id", "dspark_noise_token_id"):
            _require(0 <= getattr(self, name) < self.vocab_size, f"{name}: outside the vocabulary")

    def _validate_sources(self):
        kv, index = self.kv_source_layer_ids, self.index_source_layer_ids
        _require(set(kv) <= set(index), "kv_source_layer_ids: every KV source must select")
        for source in set(kv) | set(index):
            _require(self.ratio(source) > 0, f"layer {source}: a source needs a compress ratio")
        for layer in range(self.num_hidden_layers):
            if not self.ratio(layer):
                continue
            source = self.kv_source_of(layer)
            _require(source is not None, f"layer {layer}: no KV source at or before it")
            _require(self.ratio(source) == self.ratio(layer),
                     f"layer {layer}: compress ratio differs from its KV source {source}")
            _require(self.kv_source_of(self.index_source_of(layer)) == source,
                     f"layer {layer}: its selection belongs to another KV source")
        if self.candidate_source is not None:
            _require(self.candidate_source in index, "candidate_source_layer_id: not an index source")
            # Candidate blocks count entries of one cache; they mean nothing in another.
            _require(self.kv_source_of(index[-1]) == self.kv_source_of(self.candidate_source),
                     "candidate_source_layer_id: a later index source reads another KV source")

    # ---- config.json ---------------------------------------------------------------------------

    def to_dict(self):
        text = asdict(self)
        top = {name: text.pop(name) for name in _TOP_LEVEL}
        if self.gate_temp == 1.0:
            del text["gate_temp"]  # the released file has no such key
        text.update({k: v for k, v in _FIXED.items() if k not in _OPTIONAL_FIXED})
        result = {"architectures": ["DeepseekV41ForCausalLM"], "model_type": "deepseek_v41",
                  "dtype": "bfloat16", "transformers_version": "5.6.0"}
        result.update({k: v for k, v in top.items() if v is not None})
        result["quantization_config"] = dict(_QUANTIZATION)
        result["text_config"] = text
        return result

    @staticmethod
    def from_dict(document):
        """Reads the composite form. Unknown or contradicting keys raise ValueError with their name."""
        _require(document.get("model_type") == "deepseek_v41", "model_type: not deepseek_v41")
        _require(document.get("quantization_config") == _QUANTIZATION, "quantization_config: unsupported")
        text = dict(document["text_config"])
        for key, value in _FIXED.items():
            if key in _OPTIONAL_FIXED and key not in text:
                continue
            _require(key in text and text.pop(key) == value, f"text_config.{key}: must be {value!r}")
        for key in _TOP_LEVEL:
            if key in document:
                text[key] = document[key]
        unknown = set(text) - {f.name for f in fields(ModelConfig)}
        _require(not unknown, f"text_config: unknown keys {sorted(unknown)}")
        return ModelConfig(**text)

    def save(self, path):
        Path(path).write_text(json.dumps(self.to_dict(), indent=2) + "\n")

    @staticmethod
    def load(path):
        return ModelConfig.from_dict(json.loads(Path(path).read_text()))


def _require(condition, message):
    if not condition:
        raise ValueError(message)


def _largest_at_or_below(ids, layer):
    return max((i for i in ids if i <= layer), default=None)


def tiny(**overrides):
    """Eight layers that cover every role, small enough for exhaustive comparisons."""
    values = dict(
        vocab_size=288, hidden_size=128, moe_intermediate_size=64, num_hidden_layers=8,
        num_attention_heads=4, head_dim=64, qk_rope_head_dim=32, q_lora_rank=64, o_lora_rank=32,
        o_groups=2, n_routed_experts=8, num_experts_per_tok=2, sliding_window=8,
        compress_ratios=[0, 0, 2, 2, 2, 1, 1, 1, 0], kv_source_layer_ids=[2, 5],
        index_source_layer_ids=[2, 5, 7], index_n_heads=2, index_head_dim=64, index_topk=6,
        candidate_source_layer_id=5, candidate_topk_blocks=4, candidate_block_size=4,
        engram_layer_ids=[1, 3], engram_max_ngram_size=3, engram_vocab_size=64, engram_n_heads=2,
        engram_head_dim=32, engram_compressed_vocab_size=262, num_nextn_predict_layers=1,
        dspark_block_size=3, dspark_noise_token_id=4, dspark_target_layer_ids=[5, 6, 7],
        dspark_markov_rank=32, dspark_n_routed_experts=4, dspark_num_experts_per_tok=1,
        max_position_embeddings=4096,
        rope_scaling={"rope_type": "yarn", "factor": 4, "beta_fast": 32, "beta_slow": 1,
                      "original_max_position_embeddings": 16})
    values.update(overrides)
    return ModelConfig(**values)


def nano(**overrides):
    """The demonstration model. Token ids and the compressed vocabulary come from its tokenizer."""
    values = dict(
        vocab_size=2048, hidden_size=192, moe_intermediate_size=128, num_hidden_layers=6,
        num_attention_heads=4, head_dim=128, qk_rope_head_dim=32, q_lora_rank=96, o_lora_rank=64,
        o_groups=2, n_routed_experts=8, num_experts_per_tok=2, sliding_window=128,
        compress_ratios=[0, 2, 2, 1, 1, 1, 0, 0], kv_source_layer_ids=[1, 3],
        index_source_layer_ids=[1, 3, 5], index_n_heads=4, index_head_dim=64, index_topk=64,
        candidate_source_layer_id=3, candidate_topk_blocks=512, candidate_block_size=8,
        engram_layer_ids=[1], engram_max_ngram_size=3, engram_vocab_size=4000, engram_n_heads=4,
        engram_head_dim=32, engram_compressed_vocab_size=2048, num_nextn_predict_layers=2,
        dspark_block_size=5, dspark_noise_token_id=4, dspark_target_layer_ids=[3, 4, 5],
        dspark_markov_rank=32, dspark_n_routed_experts=4, dspark_num_experts_per_tok=1,
        max_position_embeddings=32768)
    values.update(overrides)
    return ModelConfig(**values)


def official(**overrides):
    """DeepSeek-V4.1-Flash as released, text part."""
    values = dict(
        vocab_size=129280, hidden_size=5120, moe_intermediate_size=2304, num_hidden_layers=40,
        num_attention_heads=64, head_dim=512, qk_rope_head_dim=64, q_lora_rank=1280,
        o_lora_rank=1024, o_groups=8, n_routed_experts=384, num_experts_per_tok=6,
        sliding_window=128, compress_ratios=[0] * 2 + [2] * 18 + [1] * 20 + [0] * 3,
        kv_source_layer_ids=[2, 8, 14, 20],
        index_source_layer_ids=[2, 8, 14, 20, 24, 28, 32, 36], index_n_heads=32,
        index_head_dim=128, index_topk=512, candidate_source_layer_id=20,
        candidate_topk_blocks=2048, candidate_block_size=8, engram_layer_ids=[1, 14],
        engram_num_embeddings=[384006168, 384016682], engram_max_ngram_size=4,
        engram_vocab_size=16000000, engram_n_heads=8, engram_head_dim=256,
        engram_compressed_vocab_size=99092, num_nextn_predict_layers=3, dspark_block_size=5,
        dspark_noise_token_id=128799, dspark_target_layer_ids=[37, 38, 39],
        dspark_markov_rank=256, dspark_n_routed_experts=128, dspark_num_experts_per_tok=3,
        image_token_id=129264, max_position_embeddings=1048576)
    values.update(overrides)
    return ModelConfig(**values)
