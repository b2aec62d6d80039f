"""What a trainer relies on: initial weights, gradients everywhere, fake quantization as exported."""

import pytest
import torch
from torch.nn import functional as F

from reference import config as presets
from reference import dspark, export, init
from reference.model import Model
from reference.mhc import Kernels, sinkhorn
from reference.options import Options, Rows
from reference.random_model import byte_token_map, randomise, tiny_model


def _rows(count=40, batch=2):
    tokens = torch.randint(0, 288, (batch, count), generator=torch.Generator().manual_seed(0))
    return Rows(tokens, torch.arange(count).expand(batch, count), torch.zeros_like(tokens))


def _trainable(seed=0):
    config = presets.tiny()
    return randomise(Model(config, byte_token_map(288)), seed)


@pytest.mark.parametrize("options", [Options.training(), Options.training(quantized=True), Options.exact()])
def test_every_weight_gets_a_finite_gradient(options):
    model, rows = _trainable(), _rows()
    out = model(rows, options.with_(distill_rows=torch.arange(0, 40, 3)))
    loss = F.cross_entropy(model.logits(out.hidden, options).flatten(0, 1), rows.tokens.flatten())
    for d in out.distillation.values():
        target = (d.mass + 1e-9) / (d.mass + 1e-9).sum(-1, keepdim=True)
        loss = loss + F.kl_div(d.scores.masked_fill(~d.visible, -1e4).log_softmax(-1), target, reduction="sum")
    keys = dspark.context_keys(model, out.taps, rows.positions, options)
    # Anchors 8 .. 39 of both rows, so that every draft expert gets some.
    places = torch.arange(8, 40).repeat(2)
    window, row = places[:, None] - torch.arange(7, -1, -1), torch.arange(2).repeat_interleave(32)
    picked = [k[row[:, None], window] for k in keys]
    first = (places * 7 + row) % 288
    hidden = dspark.propose_hidden(model, first, places, picked, torch.ones(64, 8, dtype=torch.bool), options)
    previous = torch.stack((first, (first + 1) % 288, (first + 2) % 288), 1)
    draft = dspark.base_logits(model, hidden, options) + dspark.markov_logits(model, previous, options)
    loss = loss + F.cross_entropy(draft.flatten(0, 1), previous.flatten())
    loss = loss + dspark.confidence_logits(model, hidden, previous, options).square().mean()
    loss.backward()
    idle = {n for n, p in model.named_parameters()
            if p.requires_grad and (p.grad is None or not p.grad.isfinite().all() or not p.grad.any())}
    assert not idle


def test_fake_quantized_masters_compute_what_the_export_computes(tmp_path):
    model = _trainable()
    export.export(model.state_dict(), model.config, tmp_path, byte_token_map(288))
    with torch.no_grad():
        trained = model(_rows(), Options.served(weight_quant=True)).hidden
        served = export.load(tmp_path)(_rows(), Options.served()).hidden
    assert torch.equal(trained, served)


def test_row_padding_of_experts_changes_nothing():
    model = tiny_model()
    plain, padded = (model(_rows(), Options.exact(moe_pad_rows=n)).hidden for n in (1, 64))
    assert (plain - padded).abs().max() < 1e-5


def test_kernels_can_be_replaced():
    class Counting(Kernels):
        calls = 0

        def mix(self, *arguments):
            Counting.calls += 1
            return super().mix(*arguments)
    model = tiny_model()
    model.kernels = Counting()
    model(_rows(), Options.exact())
    assert Counting.calls == 2 * 8


def test_initial_mixes_prefer_one_copy_and_keep_copies_apart():
    model = Model(presets.nano(), torch.arange(2048))
    init.initialise(model)
    capture = {}
    with torch.no_grad():
        model(Rows.single(list(range(50))), Options.exact(capture=capture))
    for layer in range(6):
        for offset, site in enumerate(("attn", "ffn")):
            a, p, c = (capture[f"layers.{layer}.{site}.{k}"].mean((0, 1)) for k in "apc")
            preferred = (2 * layer + offset) % 4
            assert int(p.argmax()) == preferred and int(a.argmax()) == (preferred + 1) % 4
            assert (c.diagonal() > 0.9).all()
    assert 0.3 < float(capture["stream_out"].std()) < 3


def test_initial_weights_follow_the_seed():
    weights = []
    for seed in (0, 0, 1):
        model = Model(presets.tiny(), byte_token_map(288))
        init.initialise(model, seed)
        weights.append(model.state_dict()["layers.3.attn.wkv.weight"])
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


def test_sinkhorn_columns_sum_to_one():
    c = sinkhorn(torch.randn(5, 16, generator=torch.Generator().manual_seed(0)), 4, 20, 1e-6)
    assert (c.sum(-2) - 1).abs().max() < 1e-5
    assert (c.sum(-1) - 1).abs().max() < 1e-2
