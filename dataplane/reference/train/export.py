"""Writes a run's weights to deploy/models/nano in the official names and number formats.

    python3 -m reference.train.export --run nano
"""
from __future__ import annotations

import argparse

import torch

from reference import export as checkpoint

from .parameters import Parameters
from .run import NANO, ROOT, load_tokenizer, make_config


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", default="nano")
    options = parser.parse_args()
    config, mapping = make_config(load_tokenizer())
    values = torch.load(ROOT / "build" / "train" / options.run / "values.pt")
    parameters = Parameters(config, values)
    checkpoint.export(dict(parameters.value), config, NANO, mapping.tolist())
    sizes = {p.name: p.stat().st_size for p in sorted(NANO.glob("*.safetensors"))}
    print(f"{parameters.size / 1e6:.1f}M parameters, {sum(sizes.values()) / 1e6:.1f} MB in {len(sizes)} shards")


if __name__ == "__main__":
    main()
