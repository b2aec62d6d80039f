"""Expected values for the serving engine, computed by the reference.

  python -m reference.golden --out DIR [--quick]

DIR/
  manifest.json             {"format": 1, "models": [{"name", "folder", "cases": [case, ...]}]}
  formats.safetensors       number formats and rotary tables on chosen inputs (see _formats)
  <model>/                  a checkpoint folder: config.json, shards, index, engram_token_map.json
  <model>/cases/*.safetensors

Models: `tiny` (window 8), `windowed` (window 128, block 128), and the random shapes `mixed_ratios` and
`late_candidates`. --quick writes `tiny` alone, with fewer cases.

A case in the manifest: {"name", "file" (below the model's folder), "kind", "rounding": "on" | "off",
"prompt_tokens", "compute_start", "write_floor", "decoder_replay": "on" | "off"}. Rounding on is
Options.served() (bf16 between operators, quantized windows, entries, index keys and activations), off
is float32 throughout; weights are the exported ones in both.

All floats are F32, integers I32, codes U8, row-major, without a batch dimension. E entries, R rows that
went through the decoder layers (positions >= the decoder floor), T rows that were run.

Every case
  tokens [N]                ids of positions 0 .. N-1; positions below compute_start are history only
  positions [R]             of the rows with logits: prompt_tokens - window (or compute_start) on
  logits [R, vocab]         row i predicts the token behind positions[i]
Kinds
  prefill   the prompt in one pass
  decode    prefill, then the other tokens one by one (a cut changes nothing)
  hit       starts at compute_start; the entries of a cold run of the same prompt lie below write_floor
            and are given as cached.{l}.* in the form of state.{l}.*, cut at the write floor
  rerun     tokens behind the prompt were delivered before; all are run again in one pass
  layers    prefill with every intermediate, see below
State after the last token
  window.{l}.positions [S], window.{l}.latents [S, d]   the newest rows, at most `window` of them
  window.{l}.codes [S, d], window.{l}.scales [S, d/32]  rounding on
  state.{l}.entries [E, d], state.{l}.index_keys [E, di]   of KV source l
  state.{l}.entry_codes [E, d/2], state.{l}.entry_scales [E, d/16], state.{l}.key_codes [E, di/2],
  state.{l}.key_scales [E, di/32]                       rounding on
  blocks [N/128 rounded up, block bytes]                rounding on: for every KV source ascending the data
                            rows of its 128/ratio entries, their scale rows, the data rows of the index
                            keys, their scale rows; what is not written yet is zero
  pending.{l}.values [p, d], pending.{l}.gates [p, d]   tokens of an unfinished group
  draft.{m}.positions [S], draft.{m}.latents [S, d]     rings of draft stage m
  draft.token [1], draft.tokens [block], draft.logits [block, vocab], draft.confidence [block]
                            greedy proposal behind the last token when draft.token was sampled

Kind `layers`, names as in Options.capture. For the first decoder layer F, `stream_in`, `mix_in`,
`attn.collapsed`, `attn.x` and the compressor's values have all T rows, everything else of layers >= F
has the R rows.
  layers.{l}.stream_in [., n, D], mix_in [., n]         state entering the layer
  layers.{l}.engram.rows [T, columns], memory, kv, gate [T, n], stream_out
  layers.{l}.attn.collapsed, x                          before and after attn_norm
  layers.{l}.attn.a, p [., n], c [., n, n]              the attention site's mixes (c: source, destination)
  layers.{l}.attn.q_low, qr, q [., H, d]                wq_a, its norm, rotated queries
  layers.{l}.attn.kv, k_unquantized, k                  wkv, normed and rotated, as kept in the window
  layers.{l}.compressor_c, compressor_g [., d]          of the tokens of complete groups (ratio > 1)
  layers.{l}.latent, entry_unquantized, entries, index_key_unquantized, index_keys
                                                        (*_unquantized only with rounding on)
  layers.{l}.attn.index_q_unquantized, index_q [., h, di], index_weights [., h], index_scores [., E]
  layers.{l}.candidates [., E]                          1 = inside a kept block; absent when all are
  layers.{l}.selection [., topk]                        ascending, -1 = none
  layers.{l}.attn.o [., H, d] before the inverse rotation, o_low, y, stream_out
  layers.{l}.ffn.a, p, c, collapsed, x                  as above
  layers.{l}.gate_logits, gate_scores [., experts], expert_ids (ascending), expert_weights [., k]
  layers.{l}.routed (fp32 sum), shared, ffn.y           parts of the MoE output
  stream_out, mix_out                                   behind the last layer
"""

import argparse
import json
import time
from pathlib import Path

import numpy
import torch

from reference import config as presets
from reference import export, numerics, random_model, safetensors_io
from reference.layers import rope_frequencies, rope_table
from reference.options import Options
from reference.safetensors_io import Tensor
from reference.serve import Plan, Session

BLOCK_TOKENS = 128
PREFILL_LENGTHS = (1, 7, 127, 128, 129, 255, 256, 257, 641)
DECODE_STEPS = 32


def stored(value):
    """A tensor as the file keeps it; the batch dimension must be gone."""
    if value.dtype == torch.uint8:
        return Tensor("U8", value.cpu().numpy())
    if value.is_floating_point():
        return Tensor("F32", value.float().cpu().numpy())
    return Tensor("I32", value.cpu().numpy().astype(numpy.int32))


class CaseWriter:
    """Runs cases of one model and writes their files."""

    def __init__(self, name, folder, config, seed):
        self.name, self.folder = name, folder
        source = random_model.random_model(config, seed)
        token_map = random_model.byte_token_map(config.vocab_size)
        export.export(source.state_dict(), config, folder, token_map)
        self.model, self.config = export.load(folder), config
        (folder / "cases").mkdir(exist_ok=True)
        self.generator = torch.Generator().manual_seed(seed)
        self.cases = []

    def tokens(self, count):
        return torch.randint(0, self.config.vocab_size, (count,), generator=self.generator).tolist()

    def case(self, kind, rounding, plan, tokens, suffix="", cached=None, with_draft=True):
        """Runs a session over the tokens and writes everything it left."""
        options = Options.served() if rounding == "on" else Options.exact()
        if kind == "layers":
            options.capture = {}
        session = Session(self.model, plan, tokens[:plan.compute_start], cached)
        rest = tokens[plan.compute_start:]
        single = DECODE_STEPS if kind == "decode" else 0
        steps = [session.run(rest[:len(rest) - single], options)]
        captured = options.capture
        steps += [session.run([t], options) for t in rest[len(rest) - single:]]
        tensors = {"tokens": torch.tensor(tokens), "positions": torch.cat([s.positions for s in steps]),
                   "logits": torch.cat([s.logits for s in steps])}
        if captured is not None:
            tensors.update({k: v[0] for k, v in captured.items() if _is_wanted(k, rounding)})
            options.capture = None
        tensors.update(self._state(session, rounding, len(tokens)))
        if with_draft and len(tensors["positions"]):
            tensors.update(self._draft(session, options))
        if cached:
            for layer in cached:
                entries = cached[layer].slice(0, plan.write_floor // self.config.ratio(layer))
                tensors.update(_entries(f"cached.{layer}", entries, rounding))
        case = {"name": f"{kind}_{len(tokens)}{suffix}_{'rounded' if rounding == 'on' else 'exact'}",
                "kind": kind, "rounding": rounding, "prompt_tokens": plan.prompt_tokens,
                "compute_start": plan.compute_start, "write_floor": plan.write_floor,
                "decoder_replay": "on" if plan.decoder_replay else "off"}
        case["file"] = f"cases/{case['name']}.safetensors"
        safetensors_io.write(self.folder / case["file"], {k: stored(v) for k, v in tensors.items()},
                             {k: str(v) for k, v in case.items()})
        self.cases.append(case)
        return session

    def _state(self, session, rounding, length):
        tensors, window = {}, self.config.sliding_window
        for layer, (latents, positions) in session.state.windows.items():
            latents, positions = latents[0, -window:], positions[0, -window:]
            tensors[f"window.{layer}.positions"], tensors[f"window.{layer}.latents"] = positions, latents
            if rounding == "on":
                codes, scales = numerics.q8_pack(latents)
                tensors[f"window.{layer}.codes"], tensors[f"window.{layer}.scales"] = codes, scales
        for layer, entries in session.state.entries.items():
            tensors.update(_entries(f"state.{layer}", entries, rounding))
            pending = session.state.pending.get(layer)
            if pending is not None:
                tensors[f"pending.{layer}.values"] = pending[0][0]
                tensors[f"pending.{layer}.gates"] = pending[1][0]
        if rounding == "on":
            tensors["blocks"] = _blocks(self.config, tensors, length)
        for stage, keys in enumerate(session.draft_keys):
            tensors[f"draft.{stage}.positions"] = session.draft_positions[-window:]
            tensors[f"draft.{stage}.latents"] = keys[0, -window:]
        return tensors

    def _draft(self, session, options):
        token = self.tokens(1)
        proposed, logits, confidence = session.propose(token[0], options)
        return {"draft.token": torch.tensor(token), "draft.tokens": proposed, "draft.logits": logits,
                "draft.confidence": confidence}

    def record(self):
        return {"name": self.name, "folder": self.name, "cases": self.cases}


def _is_wanted(name, rounding):
    """Layers' intermediates; without rounding the unquantized ones would only repeat the others."""
    return name.startswith(("layers.", "stream", "mix")) and not (rounding == "off" and "unquantized" in name)


def _entries(name, entries, rounding):
    values, keys = entries.values[0], entries.keys[0]
    tensors = {f"{name}.entries": values, f"{name}.index_keys": keys}
    if rounding == "on":
        tensors[f"{name}.entry_codes"], tensors[f"{name}.entry_scales"] = numerics.q4g_pack(values)
        tensors[f"{name}.key_codes"], tensors[f"{name}.key_scales"] = numerics.q4i_pack(keys)
        _check_codes(tensors, name, values, keys)
    return tensors


def _check_codes(tensors, name, values, keys):
    """Packing a value that is already quantized must give it back."""
    same = torch.equal(numerics.q4g_unpack(tensors[f"{name}.entry_codes"], tensors[f"{name}.entry_scales"]), values)
    same &= torch.equal(numerics.q4i_unpack(tensors[f"{name}.key_codes"], tensors[f"{name}.key_scales"]), keys)
    if not same:
        raise AssertionError(f"{name}: entries are not fixed points of their format")


def _blocks(config, tensors, length):
    """The pages of the blocks that hold `length` tokens, as drawn in the docstring."""
    count, columns = -(-length // BLOCK_TOKENS), []
    for layer in config.kv_source_layer_ids:
        per_block = BLOCK_TOKENS // config.ratio(layer)
        for part in ("entry_codes", "entry_scales", "key_codes", "key_scales"):
            rows = tensors[f"state.{layer}.{part}"]
            padded = torch.zeros(count * per_block, rows.shape[1], dtype=torch.uint8)
            padded[:len(rows)] = rows
            columns.append(padded.reshape(count, -1))
    return torch.cat(columns, 1)


def _formats(path):
    """x.{case} [rows, 64] and what each format makes of it; rotary tables of the official model.

    {case} is `normal`, `wide` (exponents from -20 to 20) and `ties` (halfway codes).
    q8/q4i/q4g.{case}.{codes,scales,values}, fp8/fp4.{case}.* as weights;
    rope.positions, rope.{main,compress}.{frequencies,cos,sin}.
    """
    generator = torch.Generator().manual_seed(7)
    wide = torch.randn(64, 64, generator=generator) * torch.exp2(torch.arange(64.)[:, None] % 41 - 20)
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0]).repeat(8)
    cases = {"normal": torch.randn(64, 64, generator=generator), "wide": wide,
             "ties": torch.stack((ties, -ties, ties * 2 ** -7, torch.zeros(64), torch.full((64,), 448.0)))}
    packers = {"q8": (numerics.q8_pack, numerics.q8_unpack), "q4i": (numerics.q4i_pack, numerics.q4i_unpack),
               "q4g": (numerics.q4g_pack, numerics.q4g_unpack),
               "fp8": (numerics.fp8_weight_pack, numerics.fp8_weight_unpack),
               "fp4": (numerics.fp4_weight_pack, numerics.fp4_weight_unpack)}
    tensors = {}
    for case, x in cases.items():
        tensors[f"x.{case}"] = x
        for name, (pack, unpack) in packers.items():
            codes, scales = pack(x)
            for part, value in (("codes", codes), ("scales", scales), ("values", unpack(codes, scales))):
                tensors[f"{name}.{case}.{part}"] = value
    positions = torch.tensor([0, 1, 2, 3, 127, 128, 4095, 65535, 65536, 1048575])
    tensors["rope.positions"] = positions
    for name, compressed in (("main", False), ("compress", True)):
        frequencies = rope_frequencies(presets.official(), compressed)
        cos, sin = rope_table(frequencies, positions)
        for part, value in (("frequencies", frequencies), ("cos", cos), ("sin", sin)):
            tensors[f"rope.{name}.{part}"] = value
    safetensors_io.write(path, {k: stored(v) for k, v in tensors.items()})


def _cases(writer, lengths, layer_length, decode_prompt, hit):
    """The common set: prefills, decode, replay on and off, a hit, a re-run, all intermediates."""
    window = writer.config.sliding_window
    for rounding in ("off", "on"):
        for length in lengths:
            writer.case("prefill", rounding, Plan(length), writer.tokens(length))
        tokens = writer.tokens(decode_prompt + DECODE_STEPS)
        writer.case("decode", rounding, Plan(decode_prompt), tokens)
        writer.case("rerun", rounding, Plan(decode_prompt), tokens[:decode_prompt + 9])
        prompt = tokens[:decode_prompt]
        donor = writer.case("prefill", rounding, Plan(decode_prompt, decoder_replay=False), prompt, "_full")
        writer.case("hit", rounding, Plan(decode_prompt, hit - window, hit), prompt, cached=donor.state.entries)
        writer.case("layers", rounding, Plan(layer_length), writer.tokens(layer_length))


def generate(out, quick=False):
    """Writes everything below `out`; returns the manifest."""
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    _formats(out / "formats.safetensors")
    small = (1, 7, 8, 9, 41)
    plan = [("tiny", presets.tiny(), small if quick else PREFILL_LENGTHS, 45, 105, 96)]
    if not quick:
        plan += [("windowed", random_model.windowed(), PREFILL_LENGTHS, 131, 370, 256),
                 ("mixed_ratios", random_model.mixed_ratios(), small, 39, 50, 36),
                 ("late_candidates", random_model.late_candidates(), small, 43, 50, 36)]
    models = []
    for seed, (name, config, lengths, layer_length, decode_prompt, hit) in enumerate(plan, 1):
        writer = CaseWriter(name, out / name, config, seed)
        _cases(writer, lengths, layer_length, decode_prompt, hit)
        models.append(writer.record())
    manifest = {"format": 1, "models": models}
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    return manifest


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True, help="folder to write")
    parser.add_argument("--quick", action="store_true", help="the tiny model and few cases only")
    arguments = parser.parse_args()
    start = time.monotonic()
    torch.set_num_threads(1)
    manifest = generate(arguments.out, arguments.quick)
    total = sum(f.stat().st_size for f in Path(arguments.out).rglob("*") if f.is_file())
    cases = sum(len(m["cases"]) for m in manifest["models"])
    print(f"{len(manifest['models'])} models, {cases} cases, {total / 1e6:.1f} MB, "
          f"{time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
