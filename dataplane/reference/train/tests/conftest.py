"""The nano model in the forms that several tests start from."""
from typing import NamedTuple

import numpy as np
import pytest
import torch

from reference.config import ModelConfig
from reference.layers import rope_frequencies
from reference.model import Model
from reference.train import run
from reference.train.parameters import Parameters, initialise
from reference.train.tokenizer import Tokenizer


class Nano(NamedTuple):
    tokenizer: Tokenizer
    config: ModelConfig
    mapping: np.ndarray  # Engram's token map

    def parameters(self, seed: int = 3) -> Parameters:
        """Initial weights, the attention sinks random too."""
        p = Parameters(self.config)
        initialise(p, rope_frequencies(self.config, False), seed)
        for name, value in p.value.items():
            if name.endswith("attn_sink"):
                value.normal_(generator=torch.Generator().manual_seed(len(name)))
        return p

    def oracle(self, p: Parameters) -> Model:
        """The oracle with a copy of the weights."""
        model = Model(self.config, self.mapping.tolist())
        model.load_state_dict({name: value.clone() for name, value in p.value.items()})
        return model


@pytest.fixture(scope="session")
def nano() -> Nano:
    tokenizer = run.load_tokenizer()
    return Nano(tokenizer, *run.make_config(tokenizer))
