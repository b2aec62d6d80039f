"""The batched model against the slow one, and properties of cuts, packing and replay."""

import numpy as np
import pytest
import torch

from reference import config as presets
from reference.options import Options, Rows
from reference.random_model import (byte_token_map, late_candidates, mixed_ratios, random_model,
                                    tiny_model)
from reference.serve import Plan, Session
from reference.tests.slow_model import SlowModel

EXACT = Options.exact()


def _tokens(count, seed=0, vocab=288):
    return torch.randint(0, vocab, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def _slow(model, **arguments):
    return SlowModel(model.config, model.state_dict(), byte_token_map(model.config.vocab_size), **arguments)


def _close(a, b, tolerance=2e-4):
    assert np.abs(np.asarray(a) - np.asarray(b)).max() < tolerance


@pytest.mark.parametrize("config", [presets.tiny(), presets.tiny(index_topk=3, sliding_window=3), mixed_ratios(),
                                    late_candidates()])
def test_one_shot_equals_the_slow_model(config):
    model = random_model(config)
    tokens = _tokens(45)
    slow = _slow(model)
    expected = [slow.step(t) for t in tokens]
    out = model(Rows.single(tokens), EXACT)
    _close(model.logits(out.hidden, EXACT)[0], expected)


@pytest.mark.parametrize("prompt", [1, 7, 8, 9, 40, 41])
def test_decoder_replay_decode_and_drafts_equal_the_slow_model(prompt):
    model = tiny_model()
    tokens = _tokens(prompt + 9, seed=prompt)
    slow = _slow(model, decoder_floor=max(0, prompt - 8))
    expected = [slow.step(t) for t in tokens]
    session = Session(model, Plan(prompt))
    rows = [session.run(tokens[:prompt], EXACT)] + [session.run([t], EXACT) for t in tokens[prompt:]]
    assert torch.cat([r.positions for r in rows]).tolist() == [i for i, e in enumerate(expected) if e is not None]
    _close(torch.cat([r.logits for r in rows]), [e for e in expected if e is not None])
    proposed, logits, confidence = session.propose(5, EXACT)
    slow_proposed, slow_logits, slow_confidence = slow.propose(5)
    assert proposed.tolist() == slow_proposed
    _close(logits, slow_logits)
    _close(confidence, slow_confidence)


@pytest.mark.parametrize("hit, replay", [(32, True), (16, True), (33, True), (32, False)])
def test_replay_after_a_hit_equals_the_slow_model(hit, replay):
    model, prompt = tiny_model(), 43
    tokens = _tokens(prompt + 4, seed=3)
    donor, slow_donor = Session(model, Plan(prompt)), _slow(model, decoder_floor=1000)
    donor.run(tokens[:prompt], EXACT)
    for t in tokens[:prompt]:
        slow_donor.step(t)
    # At an odd hit the group that straddles the floor is computed again.
    start, ratios = hit - 8, {l: model.config.ratio(l) for l in model.config.kv_source_layer_ids}
    plan = Plan(prompt, compute_start=start, write_floor=hit, decoder_replay=replay)
    floor = prompt - 8 if replay else start
    slow = _slow(model, encoder_floor=start, decoder_floor=floor, history=tokens[:start], write_floor=hit,
                 cached={l: e[:hit // ratios[l]] for l, e in slow_donor.entries.items()})
    expected = [e for e in (slow.step(t) for t in tokens[start:]) if e is not None]
    session = Session(model, plan, tokens[:start], donor.state.entries)
    logits = [session.run(tokens[start:prompt], EXACT).logits] + \
        [session.run([t], EXACT).logits for t in tokens[prompt:]]
    _close(torch.cat(logits), expected)
    for layer, r in ratios.items():
        kept = hit // r
        assert torch.equal(session.state.entries[layer].values[:, :kept],
                           donor.state.entries[layer].values[:, :kept])
        _close(session.state.entries[layer].values[0], [e[0] for e in slow.entries[layer]], 2e-4)


def test_every_cut_of_a_prompt_gives_the_same_state_and_logits():
    model, prompt = tiny_model(), 31
    tokens = _tokens(prompt, seed=5)
    whole = Session(model, Plan(prompt))
    expected = whole.run(tokens, EXACT)
    for cut in range(1, prompt):
        session = Session(model, Plan(prompt))
        first, second = session.run(tokens[:cut], EXACT), session.run(tokens[cut:], EXACT)
        _close(torch.cat((first.logits, second.logits)), expected.logits, 1e-4)
        for layer, entries in whole.state.entries.items():
            _close(session.state.entries[layer].values, entries.values, 1e-4)
            _close(session.state.entries[layer].keys, entries.keys, 1e-4)
        for layer, (k, positions) in whole.state.windows.items():
            assert session.state.windows[layer][1].tolist() == positions.tolist()
            _close(session.state.windows[layer][0], k, 1e-4)


def test_encoder_entries_do_not_depend_on_decoder_replay():
    model, prompt = tiny_model(), 37
    tokens = _tokens(prompt, seed=6)
    with_replay, without = Session(model, Plan(prompt)), Session(model, Plan(prompt, decoder_replay=False))
    with_replay.run(tokens, EXACT), without.run(tokens, EXACT)
    for layer, entries in without.state.entries.items():
        assert torch.equal(entries.values, with_replay.state.entries[layer].values)


def test_rerun_of_delivered_tokens_continues_as_before():
    model, prompt = tiny_model(), 29
    session = Session(model, Plan(prompt))
    text = session.generate(_tokens(prompt, seed=7), 10, EXACT)
    again = Session(model, Plan(prompt))
    logits = again.run(_tokens(prompt, seed=7) + text[:6], EXACT).logits
    assert logits[-5:].argmax(-1).tolist() == text[2:7]
    assert int(logits[-1].argmax()) == text[6]
    assert len(logits) == 8 + 6


def test_packed_documents_equal_documents_alone():
    """Two documents and padding in one row, long enough for banded windows, with their own floors."""
    model = tiny_model(candidate_topk_blocks=3, index_topk=9)
    lengths, starts = (97, 150), (0, 98)
    tokens = torch.zeros(1, 260, dtype=torch.int64)
    positions, segments = torch.zeros_like(tokens), torch.full_like(tokens, -1)
    floor = torch.zeros_like(tokens)
    documents = [_tokens(n, seed=n) for n in lengths]
    for i, (n, s, d) in enumerate(zip(lengths, starts, documents)):
        tokens[0, s:s + n], positions[0, s:s + n], segments[0, s:s + n] = torch.tensor(d), torch.arange(n), i
        floor[0, s + 40:s + n] = 40
    packed = model(Rows(tokens, positions, segments, decoder_floor=floor), EXACT)
    for n, s, d in zip(lengths, starts, documents):
        alone = model(Rows.single(d, decoder_floor=floor[:, s:s + n]), EXACT)
        _close(packed.hidden[0, s:s + n], alone.hidden[0], 1e-4)


def test_floor_and_dropped_rows_agree():
    """Rows above the floor get the same result whether rows below it run or not."""
    model, n = tiny_model(), 150
    tokens = _tokens(n, seed=8)
    rows = Rows.single(tokens)
    rows.decoder_floor = torch.where(rows.positions >= 101, 101, 0)
    full = model(rows, EXACT).hidden[0, 101:]
    rows.decoder_rows = rows.positions >= 101
    out = model(rows, EXACT)
    assert out.rows.positions[0].tolist() == list(range(101, n))
    _close(out.hidden[0], full, 1e-4)


def test_ragged_decoder_rows_are_padded():
    model, n = tiny_model(), 20
    tokens = torch.tensor([_tokens(n, seed=9), _tokens(n, seed=10)])
    positions = torch.arange(n).expand(2, n)
    keep = positions >= torch.tensor([[5], [12]])
    floor = torch.where(keep, torch.tensor([[5], [12]]), 0)
    out = model(Rows(tokens, positions, torch.zeros_like(tokens), decoder_floor=floor, decoder_rows=keep), EXACT)
    assert out.rows.segments[1].tolist() == [0] * 8 + [-1] * 7
    for b, start in enumerate((5, 12)):
        alone = model(Rows.single(tokens[b].tolist(), decoder_floor=floor[b:b + 1]), EXACT)
        _close(out.hidden[b, :n - start], alone.hidden[0, start:], 1e-4)


def test_pinned_selections_and_routing_are_obeyed():
    model, tokens = tiny_model(), _tokens(40, seed=11)
    capture = {}
    plain = model(Rows.single(tokens), Options.exact(capture=capture))
    pinned = {k: v for k, v in capture.items() if k.endswith((".selection", ".expert_ids"))}
    again = model(Rows.single(tokens), Options.exact(pinned=pinned))
    assert torch.equal(plain.hidden, again.hidden)
    pinned["layers.7.selection"] = torch.full_like(pinned["layers.7.selection"], -1)
    assert not torch.equal(plain.hidden, model(Rows.single(tokens), Options.exact(pinned=pinned)).hidden)


def test_dense_attention_is_selection_with_enough_room():
    model = tiny_model(index_topk=64, candidate_topk_blocks=64)
    rows = Rows.single(_tokens(50, seed=12))
    _close(model(rows, EXACT).hidden, model(rows, Options.exact(dense_global=True)).hidden, 1e-5)


@pytest.mark.parametrize("dense", [True, False])
def test_distillation_returns_scores_and_mass_of_the_sharing_group(dense):
    model, capture = tiny_model(), {}
    rows = Rows.single(_tokens(30, seed=13))
    pick = torch.tensor([3, 17, 29])
    model.requires_grad_(True)
    out = model(rows, Options.exact(dense_global=dense, distill_rows=pick))
    model(rows, Options.exact(capture=capture))
    assert sorted(out.distillation) == [2, 5, 7]
    for layer, d in out.distillation.items():
        assert d.scores.requires_grad and not d.mass.requires_grad
        heads_and_layers = {2: 3, 5: 2, 7: 1}[layer] * 4
        assert (d.mass >= 0).all() and (d.mass.sum(-1) < heads_and_layers).all()
        assert (d.mass[~d.visible] == 0).all() and d.mass[:, 2].sum() > 0.1
        if layer == 2 or not dense:
            scores = capture[f"layers.{layer}.index_scores"][:, pick]
            _close(d.scores.detach()[d.visible], scores[d.visible], 1e-4)
    sum(d.scores.sum() for d in out.distillation.values()).backward()
    trained = {n for n, p in model.named_parameters() if p.grad is not None and p.grad.any()}
    assert trained and all(".indexer." in n for n in trained)


def test_rounding_keeps_results_close_when_choices_are_pinned():
    """Served arithmetic differs from exact arithmetic by rounding noise only."""
    model, tokens, capture = tiny_model(), _tokens(60, seed=14), {}
    exact = model(Rows.single(tokens), Options.exact(capture=capture)).hidden
    pinned = {k: v for k, v in capture.items() if k.endswith((".selection", ".expert_ids"))}
    bf16 = model(Rows.single(tokens), Options.exact(pinned=pinned, round_bf16=True)).hidden
    served = model(Rows.single(tokens), Options.served(pinned=pinned)).hidden
    assert 1e-4 < (bf16 - exact).abs().mean() < 0.03
    assert 1e-3 < (served - exact).abs().mean() < 0.25
    assert torch.equal(served, served.bfloat16().float())


def test_image_rows_take_the_other_bias_and_no_memory():
    model, tokens, capture = tiny_model(), _tokens(12, seed=15), {}
    image = torch.zeros(1, 12, dtype=torch.bool)
    image[0, 4:7] = True
    model(Rows.single(tokens, image=image), Options.exact(capture=capture))
    assert not capture["layers.1.engram.gate"][0, 4:7].any()
    assert capture["layers.1.engram.gate"][0, [0, 3, 7]].all()
    gate = model.layers[0].ffn.gate
    for row, bias in ((5, gate.bias_vl), (8, gate.bias)):
        expected = (capture["layers.0.gate_scores"][0, row] + bias).topk(2).indices.sort().values
        assert capture["layers.0.expert_ids"][0, row].tolist() == expected.tolist()


def test_missing_cached_entries_are_refused():
    model, tokens = tiny_model(), _tokens(30)
    donor = Session(model, Plan(30))
    donor.run(tokens[:10], EXACT)
    session = Session(model, Plan(30, compute_start=12, write_floor=20), tokens[:12], donor.state.entries)
    with pytest.raises(ValueError, match="below the write floor"):
        session.run(tokens[12:], EXACT)
