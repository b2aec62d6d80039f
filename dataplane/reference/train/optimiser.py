"""Muon for matrices, AdamW for the rest, shared between the training processes.

Each rank owns part of the parameters: it adds the gradients of all ranks, updates its part in the
shared buffer, and the other ranks read it after the barrier.
"""
from __future__ import annotations

import math

import torch

from .kernels import call
from .parameters import Parameters

BF = torch.bfloat16
MUON_LR, MUON_MOMENTUM, MUON_DECAY = 0.01, 0.95, 0.05
ADAM_LR, EMBED_LR, STREAM_LR, BALANCE = 0.003, 0.009, 0.001, 0.002


def orthogonalise(m: torch.Tensor) -> torch.Tensor:
    """Newton-Schulz on a batch of matrices [b, r, c] with r <= c: nearly U V^T of each."""
    x = m / (m.norm(dim=(1, 2), keepdim=True) + 1e-7)
    x = x.to(BF)
    for a, b, c in ((4.0848, -6.8946, 2.9270), (3.9505, -6.3029, 2.6377), (3.7418, -5.5913, 2.3037),
                    (2.8769, -3.1427, 1.2046), (2.8366, -3.0525, 1.2012)):
        gram = torch.bmm(x, x.transpose(1, 2))
        poly = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, poly, x, beta=a)
    return x.float()


class Optimiser:
    """`grads`: the flat gradient buffers of all ranks (two). `wanted(name)`: what is trained now."""

    def __init__(self, parameters: Parameters, grads: list[torch.Tensor], rank: int, ranks: int, wanted):
        self.parameters, self.grads = parameters, [grads[0], grads[-1]]
        self.twice = len(grads) == 1
        self.step_count = 0
        self.muon_groups: dict[tuple[int, int], list[str]] = {}
        self.adam: list[tuple[str, float, float]] = []  # name, lr, beta2
        counters = {"muon": 0, "adam": 0}
        for e in parameters.entries:
            if not wanted(e.name) or e.rule == "fixed":
                continue
            kind = "muon" if e.rule == "muon" else "adam"
            counters[kind] += 1
            if counters[kind] % ranks != rank:
                continue
            if kind == "muon":
                self.muon_groups.setdefault((min(e.shape), max(e.shape)), []).append(e.name)
            else:
                lr = EMBED_LR if e.rule == "embed" else STREAM_LR if "hc_" in e.name else ADAM_LR
                self.adam.append((e.name, lr, 0.97 if e.rule == "embed" else 0.95))
        self.state: dict[str, torch.Tensor] = {}
        for group in self.muon_groups.values():
            for name in group:
                self.state[name + ".momentum"] = torch.zeros_like(parameters.value[name])
        for name, _, _ in self.adam:
            self.state[name + ".m"] = torch.zeros_like(parameters.value[name])
            self.state[name + ".v"] = torch.zeros_like(parameters.value[name])

    def _gradients(self, name: str) -> list[torch.Tensor]:
        a, b = self.parameters.offset[name]
        return [g[a:b] for g in self.grads]

    def step(self, lr_factor: float, gscale: float, skip=lambda name: False) -> None:
        """gscale turns the summed gradients into those of the mean loss; `skip` leaves out weights
        whose loss was absent in this step."""
        if self.twice:
            gscale *= 0.5
        self.step_count += 1
        t, value = self.step_count, self.parameters.value
        for name, lr, b2 in self.adam:
            if skip(name):
                continue
            ga, gb = self._gradients(name)
            v = value[name]
            decay = 0.01 if v.dim() == 2 and "hc_" not in name else 0.0
            call("adam", v, ga, gb, self.state[name + ".m"], self.state[name + ".v"], v.numel(), gscale,
                 lr * lr_factor, 0.9, b2, decay, 1 / (1 - 0.9 ** t), 1 / (1 - b2 ** t))
        for (short, long), names in self.muon_groups.items():
            stack = torch.empty(len(names), short, long)
            for i, name in enumerate(names):
                ga, gb = self._gradients(name)
                tall = value[name].shape[0] > value[name].shape[1]
                out = torch.empty_like(value[name]) if tall else stack[i]
                call("muon_momentum", ga, gb, self.state[name + ".momentum"], out, out.numel(), gscale, MUON_MOMENTUM)
                if tall:
                    stack[i] = out.t()
            lr = MUON_LR * lr_factor
            update = orthogonalise(stack).mul_(-lr * 0.2 * math.sqrt(long))
            for i, name in enumerate(names):
                v = value[name]
                v.mul_(1 - lr * MUON_DECAY).add_(update[i].t() if v.shape[0] > v.shape[1] else update[i])


def balance(parameters: Parameters, loads: dict[str, torch.Tensor]) -> None:
    """Selection biases move against the load: loads are shares of the routed slots."""
    for name, load in loads.items():
        parameters.value[name].add_(BALANCE * torch.sign(1.0 / load.numel() - load))
