"""Export, load, and the published inventory."""

import json

import pytest
import torch

from reference import config as presets
from reference import export, init, inventory
from reference.config import ModelConfig
from reference.model import Model

_VISION = {"model_type": "deepseek_v41_vision", "num_hidden_layers": 32, "hidden_size": 1024,
           "num_attention_heads": 16, "intermediate_size": 2816, "patch_size": 14, "rope_theta": 10000,
           "downsample_ratio": 3, "max_image_tokens": 1024, "min_pixels": 295936, "max_wh_ratio": None}


def _tiny():
    config = presets.tiny()
    token_map = [i % 262 for i in range(288)]
    model = Model(config, token_map)
    init.initialise(model)
    return config, token_map, model


def test_official_configuration_expands_to_the_published_inventory():
    stored = inventory.inventory(presets.official(vision_config=_VISION))
    assert len(stored) == 96085
    assert len({s.name for s in stored}) == 96085
    assert sum(s.bytes for s in stored) == 510_286_023_000
    shapes = {s.name: s.shape for s in stored}
    assert shapes["layers.0.attn.wq_a.scale"] == (40, 160)
    assert shapes["layers.1.engram.wkv.scale"] == (800, 192)
    assert shapes["layers.2.attn.indexer.wq_b.scale"] == (128, 40)


@pytest.mark.parametrize("preset", [presets.tiny, presets.nano])
def test_model_parameters_are_exactly_the_inventory(preset):
    config = preset()
    model = Model(config, torch.arange(config.vocab_size) % config.engram_compressed_vocab_size)
    assert {n: tuple(p.shape) for n, p in model.named_parameters()} == \
        {p.name: p.shape for p in inventory.parameters(config)}
    assert set(model.state_dict()) == {p.name for p in inventory.parameters(config)}


def test_export_round_trip_gives_the_rounded_weights(tmp_path):
    config, token_map, model = _tiny()
    export.export(model.state_dict(), config, tmp_path, token_map, shard_bytes=400_000)
    files = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(files) > 3 and all(f.stat().st_size <= 400_000 for f in files)
    loaded = export.load(tmp_path)
    init.round_to_storage(model)
    for name, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name
    assert loaded.config == config
    assert json.loads((tmp_path / "engram_token_map.json").read_text()) == {"token_map": token_map}


def test_every_wrong_tensor_is_listed_in_one_error(tmp_path):
    config, token_map, model = _tiny()
    weights = dict(model.state_dict())
    weights["layers.9.surprise"] = torch.zeros(1)
    del weights["norm.weight"]
    weights["head.weight"] = torch.zeros(3, 3)
    with pytest.raises(ValueError) as error:
        export.export(weights, config, tmp_path, token_map)
    for name in ("layers.9.surprise", "norm.weight", "head.weight"):
        assert name in str(error.value)


def test_damaged_checkpoint_is_refused_by_name(tmp_path):
    config, token_map, model = _tiny()
    export.export(model.state_dict(), config, tmp_path, token_map)
    shard = next(tmp_path.glob("model-*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(ValueError, match="do not match its shape"):
        export.load(tmp_path)


def test_unknown_configuration_keys_are_refused_by_name():
    document = presets.tiny().to_dict()
    document["text_config"]["surprise"] = 1
    with pytest.raises(ValueError, match="surprise"):
        ModelConfig.from_dict(document)


@pytest.mark.parametrize("change, message", [
    ({"kv_source_layer_ids": [0, 2, 5], "index_source_layer_ids": [0, 2, 5, 7]}, "layer 0"),
    ({"kv_source_layer_ids": [5], "index_source_layer_ids": [5, 7]}, "no KV source"),
    ({"index_source_layer_ids": [2, 7]}, "every KV source"),
    ({"candidate_source_layer_id": 6}, "candidate_source_layer_id"),
    ({"candidate_source_layer_id": 2}, "another KV source"),
    ({"compress_ratios": [0, 0, 2, 2, 1, 1, 1, 1, 0]}, "compress ratio differs"),
    ({"compress_ratios": [0, 0, 2, 2]}, "compress_ratios"),
    ({"hidden_size": 100}, "hidden_size"),
    ({"engram_layer_ids": [1, 6]}, "engram_layer_ids"),
    ({"dspark_noise_token_id": 288}, "dspark_noise_token_id"),
])
def test_contradicting_configurations_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        presets.tiny(**change)


def test_configuration_file_round_trip(tmp_path):
    for preset in (presets.tiny, presets.nano, presets.official):
        preset().save(tmp_path / "config.json")
        assert ModelConfig.load(tmp_path / "config.json") == preset()
