"""The nano model's configuration."""
from __future__ import annotations

from reference.config import ModelConfig


def nano_config(compressed_vocab_size: int, noise_token_id: int, image_token_id: int) -> ModelConfig:
    """Every structural part of the architecture at a width that two CPU cores train in hours.

    Layer 0, 1 window only (1 with Engram); 2 writes ratio-2 entries and selects, 3, 4 reuse;
    5 writes ratio-1 entries, selects and is the candidate source; 6 reuses; 7 selects anew.
    """
    return ModelConfig(
        vocab_size=2048, hidden_size=256, moe_intermediate_size=128, num_hidden_layers=8, num_attention_heads=4,
        head_dim=128, qk_rope_head_dim=32, q_lora_rank=128, o_lora_rank=96, o_groups=2, n_routed_experts=8,
        num_experts_per_tok=2, sliding_window=128, compress_ratios=[0, 0, 2, 2, 2, 1, 1, 1, 0, 0, 0],
        kv_source_layer_ids=[2, 5], index_source_layer_ids=[2, 5, 7], index_n_heads=4, index_head_dim=64,
        index_topk=128, candidate_source_layer_id=5, candidate_topk_blocks=512, candidate_block_size=8,
        engram_layer_ids=[1], engram_max_ngram_size=3, engram_vocab_size=4000, engram_n_heads=4, engram_head_dim=32,
        engram_compressed_vocab_size=compressed_vocab_size, num_nextn_predict_layers=3, dspark_block_size=5,
        dspark_noise_token_id=noise_token_id, dspark_target_layer_ids=[5, 6, 7], dspark_markov_rank=64,
        dspark_n_routed_experts=4, dspark_num_experts_per_tok=1, image_token_id=image_token_id,
        max_position_embeddings=65536)
