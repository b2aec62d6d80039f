"""Checkpoints in the official form: safetensors shards, their index, `config.json`, the token map.

The float32 masters are rounded to their storage formats here; `load` returns what a serving engine
sees. `engram_token_map.json` ({"token_map": [compressed id of every token id]}) lies beside the
weights when the model has Engram layers.
"""

import json
from pathlib import Path

import numpy
import torch

from reference import engram_map, inventory, numerics, safetensors_io
from reference.config import ModelConfig
from reference.model import Model
from reference.safetensors_io import Tensor

SHARD_BYTES = 15_000_000
INDEX_FILE = "model.safetensors.index.json"
TOKEN_MAP_FILE = "engram_token_map.json"


def export(weights, config, folder, token_map=None, shard_bytes=SHARD_BYTES):
    """Writes a checkpoint folder from {official parameter name: float32 tensor}.

    The names must be exactly those of inventory.parameters(config). Older shards in the folder are
    removed. A tensor larger than shard_bytes gets a shard of its own.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    expected = {p.name: p for p in inventory.parameters(config)}
    problems = [f"missing {n}" for n in expected if n not in weights]
    problems += [f"unexpected {n}" for n in weights if n not in expected]
    problems += [f"{n}: shape {tuple(weights[n].shape)}, not {p.shape}" for n, p in expected.items()
                 if n in weights and tuple(weights[n].shape) != p.shape]
    if problems:
        raise ValueError("; ".join(problems))
    if config.engram_layer_ids and (token_map is None or len(token_map) != config.vocab_size):
        raise ValueError("token map: one compressed id per token id is required")
    shards, size = [{}], 0
    for parameter in expected.values():
        tensors = encode(parameter, weights[parameter.name].detach().float().cpu())
        added = sum(t.array.nbytes for t in tensors.values())
        # Header entries count too: about 120 bytes a tensor.
        added += 120 * len(tensors)
        if shards[-1] and size + added > shard_bytes:
            shards.append({})
            size = 0
        shards[-1].update(tensors)
        size += added
    _write_shards(folder, shards)
    config.save(folder / "config.json")
    if config.engram_layer_ids:
        engram_map.save(token_map, folder / TOKEN_MAP_FILE)


def _write_shards(folder, shards):
    for old in folder.glob("model-*.safetensors"):
        old.unlink()
    weight_map, total = {}, 0
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        safetensors_io.write(folder / name, shard, {"format": "pt"})
        weight_map.update({tensor: name for tensor in shard})
        total += sum(t.array.nbytes for t in shard.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / INDEX_FILE).write_text(json.dumps(index, indent=1) + "\n")


def encode(parameter, value):
    """{stored name: Tensor} of one parameter's float32 value."""
    packers = {"fp8": numerics.fp8_weight_pack, "fp4": numerics.fp4_weight_pack,
               "rows": numerics.fp8_rows_pack}
    stored = inventory.stored_form(parameter)
    if parameter.kind in packers:
        arrays = [codes.numpy() for codes in packers[parameter.kind](value)]
        if parameter.kind == "fp4":
            arrays[0] = arrays[0].view(numpy.int8)
    elif parameter.kind == "bf16":
        arrays = [value.to(torch.bfloat16).view(torch.int16).numpy().view(numpy.uint16)]
    else:
        arrays = [value.numpy()]
    return {s.name: Tensor(s.tag, a) for s, a in zip(stored, arrays)}


def decode(parameter, tensors):
    """float32 value of one parameter from its stored tensors."""
    unpackers = {"fp8": numerics.fp8_weight_unpack, "fp4": numerics.fp4_weight_unpack,
                 "rows": numerics.q8_unpack}
    arrays = [tensors[s.name].array for s in inventory.stored_form(parameter)]
    if parameter.kind in unpackers:
        codes, scales = (torch.from_numpy(a.view(numpy.uint8).copy()) for a in arrays)
        return unpackers[parameter.kind](codes, scales)
    if parameter.kind == "bf16":
        return torch.from_numpy((arrays[0].astype(numpy.uint32) << 16).view(numpy.float32))
    return torch.from_numpy(arrays[0].copy())


def read_weights(folder):
    """(config, {parameter name: float32 tensor}, token map or None).

    Raises ValueError listing every missing, unexpected and mis-shaped tensor.
    """
    folder = Path(folder)
    config = ModelConfig.load(folder / "config.json")
    weight_map = json.loads((folder / INDEX_FILE).read_text())["weight_map"]
    tensors = {}
    for name in sorted(set(weight_map.values())):
        tensors.update(safetensors_io.read(folder / name)[0])
    expected = {s.name: s for s in inventory.inventory(config)}
    problems = [f"missing {n}" for n in expected if n not in tensors]
    problems += [f"unexpected {n}" for n in tensors if n not in expected]
    problems += [f"{n}: {t.tag} {t.array.shape}, not {expected[n].tag} {expected[n].shape}"
                 for n, t in tensors.items()
                 if n in expected and (t.tag, t.array.shape) != (expected[n].tag, expected[n].shape)]
    if problems:
        raise ValueError(f"{folder}: " + "; ".join(problems))
    token_map = engram_map.load(folder / TOKEN_MAP_FILE) if config.engram_layer_ids else None
    return config, {p.name: decode(p, tensors) for p in inventory.parameters(config)}, token_map


def load(folder):
    """The model of a checkpoint folder, its weights dequantized (run it without weight_quant)."""
    config, weights, token_map = read_weights(folder)
    model = Model(config, token_map)
    model.load_state_dict(weights)
    return model.requires_grad_(False)
