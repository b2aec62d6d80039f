"""Writes a run's weights to deploy/models/nano in the official names and number formats.

    python3 -m reference.train.export --run nano
"""
from __future__ import annotations

import argparse

from reference import export as checkpoint

from . import state
from .parameters import Parameters
from .run import NANO, load_tokenizer, make_config, run_folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", default="nano")
    options = parser.parse_args()
    config, mapping = make_config(load_tokenizer())
    parameters = Parameters(config)
    state.finish_save(run_folder(options.run))
    state.load_values(run_folder(options.run), parameters.values)
    checkpoint.export(dict(parameters.value), config, NANO, mapping.tolist())
    sizes = {p.name: p.stat().st_size for p in sorted(NANO.glob("*.safetensors"))}
    print(f"{parameters.size / 1e6:.1f}M parameters, {sum(sizes.values()) / 1e6:.1f} MB in {len(sizes)} shards")


if __name__ == "__main__":
    main()
