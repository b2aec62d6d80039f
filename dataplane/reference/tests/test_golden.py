"""The fixtures for the engine: readable, consistent with each other and with the formats they claim."""

import json

import pytest
import torch

from reference import config as presets
from reference import export, golden, numerics, safetensors_io
from reference.options import Options, Rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("golden")
    golden.generate(path, quick=True)
    return path


def _read(folder, case):
    tensors, metadata = safetensors_io.read(folder / "tiny" / case["file"])
    return {k: torch.from_numpy(t.array.copy()) for k, t in tensors.items()}, metadata


def _cases(folder, kind, rounding):
    models = json.loads((folder / "manifest.json").read_text())["models"]
    return [c for c in models[0]["cases"] if (c["kind"], c["rounding"]) == (kind, rounding)]


def test_every_kind_is_there_in_both_roundings(folder):
    for rounding in ("on", "off"):
        for kind, count in (("prefill", 6), ("decode", 1), ("hit", 1), ("rerun", 1), ("layers", 1)):
            assert len(_cases(folder, kind, rounding)) == count


def test_metadata_repeats_the_manifest(folder):
    case = _cases(folder, "hit", "on")[0]
    tensors, metadata = _read(folder, case)
    assert metadata == {k: str(v) for k, v in case.items()}
    assert tensors["positions"].tolist() == list(range(97, 105))
    assert case["compute_start"] == 88 and case["write_floor"] == 96


def test_blocks_decode_to_the_entries(folder):
    tensors, _ = _read(folder, _cases(folder, "decode", "on")[0])
    blocks, config = tensors["blocks"], presets.tiny()
    assert blocks.shape[0] == 2
    at = 0
    for layer in config.kv_source_layer_ids:
        n = 128 // config.ratio(layer)
        parts = []
        for width in (32, 4, 32, 2):
            parts.append(blocks[:, at:at + n * width].reshape(-1, width))
            at += n * width
        entries = tensors[f"state.{layer}.entries"]
        assert torch.equal(numerics.q4g_unpack(parts[0], parts[1])[:len(entries)], entries)
        assert torch.equal(numerics.q4i_unpack(parts[2], parts[3])[:len(entries)], tensors[f"state.{layer}.index_keys"])
        assert not parts[0][len(entries):].any()
    assert at == blocks.shape[1]


def test_a_block_of_the_official_model_has_the_published_size():
    config = presets.official()
    tensors = {}
    for layer in config.kv_source_layer_ids:
        for part, width in (("entry_codes", 256), ("entry_scales", 32), ("key_codes", 64), ("key_scales", 4)):
            tensors[f"state.{layer}.{part}"] = torch.zeros(0, width, dtype=torch.uint8)
    assert golden._blocks(config, tensors, 1).shape == (1, 113920)


def test_a_hit_uses_the_cached_entries_and_differs_from_a_cold_run_only_behind_them(folder):
    for rounding in ("on", "off"):
        hit, _ = _read(folder, _cases(folder, "hit", rounding)[0])
        for layer, r in ((2, 2), (5, 1)):
            cached = hit[f"cached.{layer}.entries"]
            assert len(cached) == 96 // r
            assert torch.equal(hit[f"state.{layer}.entries"][:96 // r], cached)


def test_the_model_of_the_folder_gives_the_stored_values(folder):
    model = export.load(folder / "tiny")
    for rounding, options in (("on", Options.served()), ("off", Options.exact())):
        case = _cases(folder, "layers", rounding)[0]
        tensors, _ = _read(folder, case)
        rows = Rows.single(tensors["tokens"])
        floor = case["prompt_tokens"] - 8
        rows.decoder_floor, rows.decoder_rows = torch.full_like(rows.positions, floor), rows.positions >= floor
        capture = {}
        out = model(rows, options.with_(capture=capture))
        # One pass against a session: equal up to the order of a few sums.
        assert (capture["layers.3.stream_in"][0] - tensors["layers.3.stream_in"]).abs().max() < 1e-5
        assert (model.logits(out.hidden, options)[0] - tensors["logits"]).abs().max() < 1e-4
        selections = {k: v[None].long() for k, v in tensors.items() if k.endswith("selection")}
        assert len(selections) == 3
        assert tensors["layers.7.selection"].shape == (8, 6) and tensors["layers.2.selection"].shape == (45, 6)


def test_format_fixtures_agree_with_the_formats(folder):
    tensors, _ = safetensors_io.read(folder / "formats.safetensors")
    values = {k: torch.from_numpy(t.array.copy()) for k, t in tensors.items()}
    for case in ("normal", "wide", "ties"):
        assert torch.equal(values[f"q8.{case}.values"], numerics.q8(values[f"x.{case}"]))
        assert torch.equal(values[f"fp8.{case}.values"], numerics.fp8_weight(values[f"x.{case}"]))
    assert values["rope.compress.frequencies"][25].item() == pytest.approx(5.372313e-6, rel=2e-7)
