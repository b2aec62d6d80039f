"""Which network and optimiser a run uses: the fused ones of the CPU, or plain torch on any device."""
from __future__ import annotations

import argparse

import torch

from .draft_network import DraftNetwork
from .feed import default_workers
from .network import Network
from .optimiser import Optimiser, PortableOptimiser
from .parameters import Parameters
from .portable import PortableDraftNetwork, PortableNetwork
from .ranks import Place

GPU_TOKENS_PER_STEP, GPU_TOKENS_PER_PASS = 65536, 32768


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda when there is one")
    parser.add_argument("--portable", action="store_true",
                        help="plain torch instead of the compiled CPU kernels; always so on a GPU")
    parser.add_argument("--ranks", type=int, help="processes; default 2 on a CPU, 1 on a GPU")
    parser.add_argument("--data-workers", type=int,
                        help="processes that make training rows; default 0 (none apart) on a CPU, up to 12 on a GPU")
    parser.add_argument("--tokens-per-step", type=int,
                        help=f"over all ranks; default: the recipe's on a CPU, {GPU_TOKENS_PER_STEP} on a GPU")
    parser.add_argument("--tokens-per-pass", type=int, help="a step is cut into passes of so many tokens, to bound "
                        f"memory; default: one pass on a CPU, {GPU_TOKENS_PER_PASS} on a GPU")


def set_defaults(parser: argparse.ArgumentParser, options: argparse.Namespace) -> argparse.Namespace:
    """Fills in what depends on the device; ends the program on combinations that cannot be."""
    for name in ("ranks", "tokens_per_step", "tokens_per_pass"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')}: must be positive")
    if options.data_workers is not None and options.data_workers < 0:
        parser.error("--data-workers: must not be negative")
    if options.device is None:
        options.device = "cuda" if torch.cuda.is_available() else "cpu"
    gpu = options.device == "cuda"
    if gpu and not torch.cuda.is_available():
        parser.error("--device cuda: there is no CUDA device")
    options.portable = options.portable or gpu
    options.ranks = options.ranks or (1 if gpu else 2)
    if gpu and options.ranks != 1:
        parser.error("--ranks: a GPU is used by one rank")
    if options.data_workers is None:
        options.data_workers = default_workers(options.device)
    if gpu:
        options.tokens_per_step = options.tokens_per_step or GPU_TOKENS_PER_STEP
        options.tokens_per_pass = options.tokens_per_pass or GPU_TOKENS_PER_PASS
    return options


def make_network(options, parameters: Parameters, mapping) -> Network | PortableNetwork:
    """mapping: Engram's token map."""
    return (PortableNetwork if options.portable else Network)(parameters, mapping)


def make_draft_network(options, parameters: Parameters, mapping) -> DraftNetwork | PortableDraftNetwork:
    return (PortableDraftNetwork if options.portable else DraftNetwork)(parameters, mapping)


def make_optimiser(options, parameters: Parameters, place: Place, wanted) -> Optimiser:
    kind = PortableOptimiser if options.portable else Optimiser
    return kind(parameters, place.shared.grads, place.rank, place.ranks, wanted)
