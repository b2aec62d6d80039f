"""The measurement of drafts: against the oracle's proposals, hand-made blocks and known calibrations."""
import json

import numpy as np
import pytest
import torch

from reference.options import Options
from reference.serve import Plan, Session
from reference.train import calibration, draft, draft_eval, parameters, run
from reference.train.draft_eval import Blocks
from reference.train.portable import PortableDraftNetwork
from reference.train.tokenizer import EOS


class Exact(PortableDraftNetwork):
    @property
    def options(self):
        return Options.exact()


@pytest.fixture(scope="module")
def network(nano):
    p = nano.parameters()
    generator = torch.Generator().manual_seed(2)
    for name in ("markov_head.head.weight", "confidence_head.proj.weight"):
        p.value[f"mtp.{nano.config.num_nextn_predict_layers - 1}.{name}"].normal_(0, 0.05, generator=generator)
    return nano.tokenizer, Exact(p, nano.mapping), nano.oracle(p)


def test_settled_answers_and_drafts_are_the_oracles(network, monkeypatch):
    """One held-out conversation: the greedy answer, and the blocks drafted inside it, as a Session has them."""
    tokenizer, net, oracle = network
    monkeypatch.setattr(draft_eval, "ROW", 512)
    monkeypatch.setattr(draft_eval, "ROUNDS", 8)
    (data, turns), *_ = draft_eval.packed(tokenizer, "greeting", 2, oracle.config.sliding_window, "test")
    turn = turns[0]
    prompt = data["tokens"][0, turn.start:turn.first].tolist()
    with torch.no_grad():
        batch, taps = draft_eval.settle(net, data, turns, tokenizer.token_id(EOS))
        text = data["tokens"][0, turn.first:turn.last + 1].tolist()
        assert len(text) >= 3
        session = Session(oracle, Plan(len(prompt)))
        assert Session(oracle, Plan(len(prompt))).generate(prompt, len(text), Options.exact()) == text
        session.run(prompt, Options.exact())
        for i in range(len(text) - 1):
            tokens, _, confidence = session.propose(text[i], Options.exact())
            anchors = torch.tensor([turn.first + i - 1])
            got, raw = draft_eval.draft_greedily(net, batch, taps, anchors)
            assert got[0].tolist() == tokens.tolist()
            assert (raw[0] - confidence).abs().max() < 1e-3
            session.run([text[i]], Options.exact())


def test_measured_blocks_are_in_order_and_bounded(network, monkeypatch):
    tokenizer, net, _ = network
    monkeypatch.setattr(draft_eval, "ROW", 512)
    monkeypatch.setattr(draft_eval, "ROUNDS", 8)
    blocks = Blocks.join(draft_eval.measure(net, tokenizer, ["greeting", "identity"], 2, lambda index: index == 0))
    assert set(blocks.task) == {0}
    assert (blocks.accepted <= blocks.valid).all() and blocks.valid[:, 0].all()
    assert (np.diff(blocks.valid.astype(int), axis=1) <= 0).all()
    count, emitted, drafts = draft_eval.rounds(blocks)
    assert emitted == sum(blocks.length[blocks.place == 0] - 1) and count + drafts >= emitted >= count
    figures = draft_eval.figures(blocks, ["greeting", "identity"])
    assert set(figures["tasks"]) == {"greeting"} and figures["rounds"] == count
    json.dumps(figures)


def blocks_of(accepted, length, block=3):
    """One answer of `length` tokens whose anchors' leading runs are `accepted`."""
    n = length - 1
    runs = np.arange(block)[None] < np.array(accepted)[:, None]
    left = length - 1 - np.arange(n)
    valid = np.arange(block)[None] < left[:, None]
    return Blocks(runs & valid, valid, np.zeros((n, block), np.float32), np.zeros(n, int), np.zeros(n, int),
                  np.arange(n), np.full(n, length))


def test_rounds_walk_from_bonus_token_to_bonus_token():
    # Anchors 0..7 of nine tokens: 0 accepts 2 -> emits 1,2,3; 3 accepts 0 -> 4; 4 accepts 3 -> 5..8, the end.
    blocks = blocks_of([2, 0, 0, 0, 3, 0, 0, 0], 9)
    assert draft_eval.rounds(blocks) == (3, 8, 5)
    figures = draft_eval.figures(blocks, ["task"])
    assert figures["with_bonus"] == pytest.approx(8 / 3) and figures["without_bonus"] == pytest.approx(5 / 3)
    assert figures["survival"] == pytest.approx([2 / 8, 2 / 7, 1 / 6])
    assert figures["acceptance"] == pytest.approx([2 / 8, 2 / 2, 1 / 2])


def test_a_last_round_may_end_in_a_draft_without_a_bonus():
    assert draft_eval.rounds(blocks_of([3, 0, 0], 4)) == (1, 3, 3)


def test_calibration_error_by_hand():
    # Bins of 1/15: two samples in the last bin (mean 0.95, half happened), one at 0 that did not happen.
    error = calibration.expected_calibration_error(np.array([0.94, 0.96, 0.0]), np.array([True, False, False]))
    assert error == pytest.approx((2 / 3) * 0.45)
    assert calibration.expected_calibration_error(np.array([1.0]), np.array([True])) == 0


def test_sequential_temperatures_undo_a_known_overconfidence():
    rng = np.random.default_rng(1)
    n, block, wanted = 40_000, 3, [2.0, 0.5, 4.0]
    true = rng.normal(1.0, 1.5, (n, block))
    raw = true * np.array(wanted)
    happened = np.cumprod(rng.random((n, block)) < 1 / (1 + np.exp(-true)), 1).astype(bool)
    valid = np.ones((n, block), bool)
    found = calibration.fit(raw, happened, valid)
    assert found == pytest.approx(wanted, rel=0.12)
    before, after = (np.mean(calibration.errors(raw, happened, valid, t)) for t in ([1.0] * 3, found))
    assert after < 0.01 < before


def test_a_position_that_was_never_judged_keeps_its_temperature():
    raw, valid = np.full((10, 2), 3.0), np.array([[True, False]] * 10)
    assert calibration.fit(raw, valid & False, valid)[1] == pytest.approx(1.0)


def test_a_table_of_another_block_size_is_refused(tmp_path):
    path = tmp_path / "table.json"
    calibration.save(path, [1.0, 0.9, 1.1], {"tokens": 7, "steps": 2, "draft_steps": 1}, {})
    assert calibration.load(path, 3) == [1.0, 0.9, 1.1]
    with pytest.raises(ValueError, match="fitted for blocks of 3, not of 5"):
        calibration.load(path, 5)
    document = json.loads(path.read_text())
    assert document["run"] == {"tokens": 7, "steps": 2, "draft_steps": 1}
    for broken in ({"temperatures": [1.0, 0.0, 1.0]}, {"temperatures": [1.0]}, {"format": 2}):
        path.write_text(json.dumps({**document, **broken}))
        with pytest.raises(ValueError):
            calibration.load(path, 3)


def test_the_draft_phase_resumes_and_starts_anew_for_another_backbone(nano, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run, "ROOT", tmp_path)
    monkeypatch.setattr(draft, "ROW", 1536)  # documents with tools fit
    common = ["--run", "scratch", "--device", "cpu", "--ranks", "1", "--minutes", "600"]
    folder = tmp_path / "build" / "train" / "scratch"
    with pytest.raises(SystemExit):
        draft.main([*common, "--steps", "1"])
    assert "there is no trained backbone" in capsys.readouterr().err
    assert run.main([*common, "--steps", "1", "--tokens-per-step", "512", "--eval-samples", "0"]) == 0
    backbone = torch.load(folder / "values.pt")
    assert draft.main([*common, "--steps", "2"]) == 0
    first = torch.load(folder / "draft-rank0.pt")
    assert draft.main([*common, "--steps", "1", "--portable"]) == 0
    second = torch.load(folder / "draft-rank0.pt")
    assert (first["step"], second["step"]) == (2, 3) and second["step_count"] == 3
    before, after = (parameters.Parameters(nano.config, v) for v in (backbone, torch.load(folder / "values.pt")))
    for name in before.value:
        # The choice of one expert gives its gate no gradient, and its vision bias is never used.
        still = not name.startswith("mtp.") or name.endswith("gate.bias_vl")
        if still or not name.endswith("gate.weight"):
            assert torch.equal(before.value[name], after.value[name]) == still, name
    assert run.main([*common, "--steps", "1", "--tokens-per-step", "512", "--eval-samples", "0"]) == 0
    assert draft.main([*common, "--steps", "1"]) == 0
    assert torch.load(folder / "draft-rank0.pt")["step"] == 1
    assert "the schedule starts anew" in capsys.readouterr().out
