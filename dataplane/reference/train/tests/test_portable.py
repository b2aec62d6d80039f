"""The plain torch path against the compiled one: losses, gradients, optimiser steps, resumed states."""
import numpy as np
import pytest
import torch
from torch.nn import functional as F

from reference.options import Options
from reference.train import draft, draft_network, optimiser, run
from reference.train.network import Batch, Network
from reference.train.optimiser import Optimiser, PortableOptimiser
from reference.train.portable import PortableDraftNetwork, PortableNetwork


class Everything:
    """Draws that choose every query block as a lesson."""

    @staticmethod
    def random():
        return 0.0


def packed_row():
    """Three documents (an odd length, floors inside) and padding in 1024 tokens, as mix.Stream.batch(1) gives."""
    rng = np.random.default_rng(5)
    data = {"tokens": np.full(1024, 2), "start": np.arange(1024), "weight": np.zeros(1024, np.float32),
            "floor": np.zeros(1024, np.int64), "decoder_floor": np.zeros(1024, np.int64)}
    for at, n, encoder, decoder in ((0, 301, 0, 40), (302, 500, 120, 200), (802, 150, 0, 0)):
        data["tokens"][at:at + n] = rng.integers(300, 600, n)
        data["start"][at:at + n] = at
        data["weight"][at:at + n - 1] = np.where(np.arange(n - 1) % 50 < 25, 0.1, 1.0)
        data["floor"][at + encoder:at + n] = encoder
        data["decoder_floor"][at + decoder:at + n] = decoder
    data["target"] = np.roll(data["tokens"], -1)
    return {name: rows[None].copy() for name, rows in data.items()}


def angle(a, b):
    """Cosine of two flat vectors."""
    return float(torch.dot(a, b) / (a.norm() * b.norm() + 1e-30))


def gradients(network, data, floors=()):
    network.refresh()
    batch = Batch(network, data, *floors)
    total, per_token, best = network.loss(batch)
    total.backward()
    return float(total), per_token, best, network.index_loss


class Exact(PortableNetwork):
    @property
    def options(self):
        return Options.exact(dense_global=not self.sparse)


def test_without_rounding_it_is_the_oracle_with_gradients_in_the_flat_buffer(nano):
    data = packed_row()
    net = Exact(nano.parameters(), nano.mapping)
    net.sparse = True
    batch = Batch(net, {name: rows[:1, :600] for name, rows in data.items()})
    net.loss(batch)[0].backward()
    oracle = nano.oracle(net.parameters)
    logits = oracle.logits(oracle(batch.layout, Options.exact()).hidden[0], Options.exact())
    (F.cross_entropy(logits, batch.target, reduction="none") * batch.weight).sum().backward()
    for name, parameter in oracle.named_parameters():
        if parameter.grad is not None:
            got = net.parameters.grad[name]
            assert (got - parameter.grad).norm() <= 2e-3 * parameter.grad.norm() + 1e-6, name
        else:
            assert not net.parameters.grad[name].any(), name


@pytest.mark.parametrize("sparse", [False, True])
def test_loss_and_gradients_of_a_packed_batch_agree_in_float_mode(nano, sparse):
    data = packed_row()
    fast, plain = (kind(nano.parameters(), nano.mapping) for kind in (Network, PortableNetwork))
    got = []
    for net in (plain, fast):
        net.sparse, net.distil = sparse, Everything()
        got.append(gradients(net, data, (data["floor"], data["decoder_floor"])))
    (total, per_token, _, index), (want, want_per_token, _, want_index) = got
    # Both multiply in bf16 but round at other places; a token whose expert flips differs alone.
    assert abs(total - want) < 2e-3 * want
    assert (per_token - want_per_token).abs().median() < 1e-2
    assert abs(float(index) - float(want_index)) < 2e-2 * float(want_index)
    assert {n: v.numel() for n, v in plain.loads.items()} == {n: v.numel() for n, v in fast.loads.items()}
    assert max((plain.loads[n] - fast.loads[n]).abs().max() for n in plain.loads) < 0.01
    differences = []
    for name in plain.parameters.grad:
        a, b = plain.parameters.grad[name].flatten(), fast.parameters.grad[name].flatten()
        if name.startswith("mtp.") or name.endswith(("gate.bias", "gate.bias_vl")):
            assert not a.any() and not b.any()
            continue
        differences.append(float((a - b).norm() / b.norm()))
        # Vectors sum over all tokens what nearly cancels, so bf16 decides much of them: the oracle's own bf16 and
        # fp32 gradients differ by up to twice their size. A missing gradient would be at 0, a wrong sign at -1.
        # (Engram's gate weights are a vector per copy.)
        if fast.parameters.value[name].dim() == 2 and not any(part in name for part in ("hc_", "q_weight", "k_weight")):
            assert angle(a, b) > 0.9, name  # measured 0.95
        elif not name.endswith("_scale"):
            assert angle(a, b) > 0.5, name
    assert np.median(differences) < 0.15  # measured 0.12
    assert np.percentile(differences, 90) < 0.3
    whole, other = plain.parameters.grads, fast.parameters.grads
    assert (whole - other).norm() < 0.1 * other.norm()  # measured 0.08


def test_quantized_networks_move_to_the_same_place(nano):
    data = packed_row()
    states = {}
    for kind in (Network, PortableNetwork):
        net = kind(nano.parameters(), nano.mapping)
        for quantized in (False, True):
            net.quantized = net.sparse = quantized
            net.refresh()
            with torch.no_grad():
                states[kind, quantized] = net.hidden(Batch(net, data)).float()
    error = lambda a, b: ((a - b).norm(dim=-1) / b.norm(dim=-1)).median().item()
    assert error(states[PortableNetwork, False], states[Network, False]) < 0.02
    # As in test_network.py: rounding at random weights moves states far, what counts is where to.
    assert error(states[PortableNetwork, True], states[Network, True]) \
        < 0.5 * error(states[Network, False], states[PortableNetwork, True])


@pytest.mark.parametrize("format_, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 5e-4)])
def test_one_optimiser_step_is_the_same(nano, monkeypatch, format_, tolerance):
    """Newton-Schulz runs in bf16, where a last bit of its input becomes 0.2 % of an update; so also in fp32."""
    monkeypatch.setattr(optimiser, "BF", format_)
    p = [nano.parameters(), nano.parameters()]
    grads = [[torch.randn(p[0].size, generator=torch.Generator().manual_seed(s)) for s in (1, 2)] for _ in p]
    both = [kind(q, g, 0, 1, run.train_wanted) for kind, q, g in zip((Optimiser, PortableOptimiser), p, grads)]
    assert set(both[0].state) == set(both[1].state)
    for skip in (lambda name: False, lambda name: ".indexer." in name):
        for one in both:
            one.step(0.7, 0.01, skip)
    for name in p[0].value:
        a, b = p[0].value[name], p[1].value[name]
        assert (a - b).norm() <= tolerance * a.norm(), (name, float((a - b).norm() / a.norm()))
    for name, tensor in both[0].state.items():
        assert (tensor - both[1].state[name]).norm() <= 1e-5 * tensor.norm(), name


def test_a_draft_step_agrees(nano):
    data = packed_row()
    results = []
    for kind in (draft_network.DraftNetwork, PortableDraftNetwork):
        net = kind(nano.parameters(), nano.mapping)
        net.refresh()
        torch.manual_seed(0)
        batch, taps, hidden = draft.backbone(net, data)
        anchors = draft.anchors_of(batch, 100, np.random.default_rng(1))
        loss, weight, agree, valid = draft.draft_loss(net, batch, taps, hidden, anchors)
        loss.backward()
        results.append((float(loss.detach()), float(weight), valid, net))
    (want, weight, valid, fast), (loss, weight2, valid2, plain) = results
    assert weight == weight2 and torch.equal(valid, valid2)
    assert abs(loss - want) < 5e-3 * want
    assert set(fast.loads) == set(plain.loads)
    trained = 0
    for name in plain.parameters.grad:
        a, b = plain.parameters.grad[name].flatten(), fast.parameters.grad[name].flatten()
        if not name.startswith("mtp."):
            assert not a.any() and not b.any(), name
        elif a.norm() > 1e-5:  # less is the gate of a choice of one expert: its weight is always 1
            assert angle(a, b) > 0.9, name
            trained += 1
    assert trained > 60  # what the frozen backbone feeds is trained too
