"""The fast training forward against the oracle model, backbone and draft layers."""
import random

import numpy as np
import pytest
import torch

from reference import dspark
from reference.options import Options, Rows
from reference.train import draft_network, render
from reference.train.data import mix
from reference.train.network import Batch


@pytest.fixture(scope="module")
def pair(nano):
    p = nano.parameters()
    net = draft_network.DraftNetwork(p, nano.mapping)
    net.refresh()
    ids, _ = render.encode(nano.tokenizer, mix.sample("recall_512", random.Random(1)).conversation)
    return net, nano.oracle(p), ids


def placed(ids, offset, length):
    data = {"tokens": np.full((1, length), 2), "start": np.arange(length)[None].copy(),
            "weight": np.zeros((1, length), np.float32), "target": np.zeros((1, length), np.int64)}
    data["tokens"][0, offset:offset + len(ids)] = ids
    data["start"][0, offset:offset + len(ids)] = offset
    return data


def middle_error(a, b):
    """Median over rows of the relative error: single rows differ where bf16 flips an expert."""
    return ((a.float() - b).norm(dim=-1) / b.norm(dim=-1)).median().item()


def test_parameters_have_the_names_and_shapes_of_the_oracle(pair):
    net, oracle, _ = pair
    shapes = lambda values: {n: tuple(v.shape) for n, v in values.items()}
    assert shapes(net.parameters.value) == shapes(oracle.state_dict())


def test_a_document_inside_a_packed_row_equals_the_oracle_on_it_alone(pair):
    net, oracle, ids = pair
    with torch.no_grad():
        batch = Batch(net, placed(ids, 38, (len(ids) + 255) // 128 * 128))
        got = net.hidden(batch)[38:38 + len(ids)]
        want = oracle(Rows.single(ids), Options.exact(dense_global=True)).hidden[0]
    assert middle_error(got, want) < 0.02


def test_quantized_selected_attention_follows_the_oracle(pair):
    net, oracle, ids = pair
    net.quantized = net.sparse = True
    net.refresh()
    with torch.no_grad():
        got = net.hidden(Batch(net, placed(ids, 0, (len(ids) + 127) // 128 * 128)))[:len(ids)]
        want = oracle(Rows.single(ids), Options.training(quantized=True)).hidden[0]
        plain = oracle(Rows.single(ids), Options.exact(dense_global=True)).hidden[0]
    net.quantized = net.sparse = False
    net.refresh()
    # Rounding at random weights moves states far; what counts is to move to the same place.
    assert middle_error(got, want) < 0.5 * middle_error(plain, want)


def test_draft_blocks_equal_the_oracle(pair):
    net, oracle, ids = pair
    with torch.no_grad():
        options = Options.exact(dense_global=True)
        out = oracle(Rows.single(ids), options)
        positions = torch.tensor([150, 200, len(ids) - 7])
        keys = dspark.context_keys(oracle, out.taps, torch.arange(len(ids))[None], options)
        window = oracle.config.sliding_window
        index = positions[:, None] - torch.arange(window - 1, -1, -1)
        rings = [k[0][index] for k in keys]
        want = dspark.propose_hidden(oracle, torch.tensor(ids)[positions + 1], positions, rings,
                                     torch.ones(3, window, dtype=torch.bool), options)
        batch = Batch(net, placed(ids, 0, (len(ids) + 127) // 128 * 128))
        taps = torch.nn.functional.pad(out.taps[0], (0, 0, 0, batch.tokens.numel() - len(ids))).bfloat16()
        got = net.propose(batch, taps, positions)
    assert middle_error(got.view(3, -1, got.shape[-1]), want) < 0.05
