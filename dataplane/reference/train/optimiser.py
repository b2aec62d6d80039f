"""Muon for matrices, AdamW for the rest, shared between the training processes.

Each rank owns part of the parameters: it adds the gradients of all ranks, updates its part in the
shared buffer, and the other ranks read it after the barrier. `Optimiser` uses the compiled kernels,
`PortableOptimiser` plain torch on any device; their states are the same.
"""
from __future__ import annotations

import math

import torch

from .kernels import call
from .parameters import Parameters

BF = torch.bfloat16
ADAM_BETA, ADAM_DECAY, ADAM_EPSILON = 0.9, 0.01, 1e-10
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


def adam_decay(name: str, value: torch.Tensor) -> float:
    """Vectors and the hyper-connections' maps do not decay."""
    return ADAM_DECAY if value.dim() == 2 and "hc_" not in name else 0.0


class Optimiser:
    """`grads`: the flat gradient buffers of all ranks (two). `wanted(name)`: what is trained now."""

    def __init__(self, parameters: Parameters, grads: list[torch.Tensor], rank: int, ranks: int, wanted):
        self.parameters, self.grads = parameters, grads
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
        self._allocate()

    def _allocate(self) -> None:
        value = self.parameters.value
        for group in self.muon_groups.values():
            for name in group:
                self.state[name + ".momentum"] = torch.zeros_like(value[name])
        for name, _, _ in self.adam:
            self.state[name + ".m"] = torch.zeros_like(value[name])
            self.state[name + ".v"] = torch.zeros_like(value[name])

    def _gradients(self, name: str) -> list[torch.Tensor]:
        """Two buffers for the kernels, which add them; of one rank the same twice (see `step`)."""
        a, b = self.parameters.offset[name]
        return [g[a:b] for g in (self.grads[0], self.grads[-1])]

    def step(self, lr_factor: float, gscale: float, skip=lambda name: False) -> None:
        """gscale turns the summed gradients into those of the mean loss; `skip` leaves out weights
        whose loss was absent in this step."""
        if len(self.grads) == 1:
            gscale *= 0.5
        self.step_count += 1
        t, value = self.step_count, self.parameters.value
        for name, lr, b2 in self.adam:
            if skip(name):
                continue
            ga, gb = self._gradients(name)
            v = value[name]
            decay = adam_decay(name, v)
            call("adam", v, ga, gb, self.state[name + ".m"], self.state[name + ".v"], v.numel(), gscale,
                 lr * lr_factor, ADAM_BETA, b2, decay, 1 / (1 - ADAM_BETA ** t), 1 / (1 - b2 ** t))
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


class PortableOptimiser(Optimiser):
    """The same step in plain torch, whole groups at once: on a GPU every launch costs more than its work.

    `state` holds views of a few flat buffers.
    """

    def _allocate(self) -> None:
        value, device = self.parameters.value, self.parameters.values.device
        places = lambda name: torch.arange(*self.parameters.offset[name])
        flat = lambda rows: torch.tensor(rows, dtype=torch.float32, device=device)
        sizes = torch.tensor([value[name].numel() for name, _, _ in self.adam], device=device)
        spread = lambda rows: flat(rows).repeat_interleave(sizes)
        self._at = torch.cat([places(name) for name, _, _ in self.adam]).to(device)
        self._lr, self._beta2 = spread([lr for _, lr, _ in self.adam]), spread([b2 for _, _, b2 in self.adam])
        self._decay = spread([adam_decay(name, value[name]) for name, _, _ in self.adam])
        self._m, self._v = torch.zeros_like(self._lr), torch.zeros_like(self._lr)
        self._active: dict[tuple[bool, ...], torch.Tensor] = {}  # elements that are not skipped, by which names are
        self._sizes = sizes
        begin = 0
        for name, _, _ in self.adam:
            end = begin + value[name].numel()
            self.state[name + ".m"] = self._m[begin:end].view(value[name].shape)
            self.state[name + ".v"] = self._v[begin:end].view(value[name].shape)
            begin = end
        # Tall matrices are kept turned, so that a group is one stack [names, short, long].
        self._muon = []
        for (short, long), names in self.muon_groups.items():
            at = torch.empty(len(names), short, long, dtype=torch.int64)
            momentum = torch.zeros(at.shape, device=device)
            for i, name in enumerate(names):
                shape = value[name].shape
                turn = (lambda x: x.t()) if shape[0] > shape[1] else (lambda x: x)
                at[i] = turn(places(name).view(shape))
                self.state[name + ".momentum"] = turn(momentum[i])
            self._muon.append((at.to(device), momentum))

    def _unskipped(self, skip) -> torch.Tensor | None:
        """Indices into the flat Adam state, None for all of it."""
        skipped = tuple(bool(skip(name)) for name, _, _ in self.adam)
        if not any(skipped):
            return None
        if skipped not in self._active:
            keep = torch.tensor([not s for s in skipped], device=self._sizes.device).repeat_interleave(self._sizes)
            self._active[skipped] = torch.nonzero(keep)[:, 0]
        return self._active[skipped]

    def step(self, lr_factor: float, gscale: float, skip=lambda name: False) -> None:
        self.step_count += 1
        values = self.parameters.values
        grads = self.grads[0] if len(self.grads) == 1 else torch.stack(tuple(self.grads)).sum(0)
        if self.adam:
            self._adam_step(values, grads, lr_factor, gscale, self._unskipped(skip))
        lr = MUON_LR * lr_factor
        for at, momentum in self._muon:
            g = grads[at] * gscale
            momentum.mul_(MUON_MOMENTUM).add_(g)
            update = orthogonalise(g.add_(momentum, alpha=MUON_MOMENTUM))
            values[at] = values[at] * (1 - lr * MUON_DECAY) + update.mul_(-lr * 0.2 * math.sqrt(at.shape[2]))

    def _adam_step(self, values, grads, lr_factor: float, gscale: float, active: torch.Tensor | None) -> None:
        pick = (lambda x: x) if active is None else (lambda x: x[active])
        at, b2, t = pick(self._at), pick(self._beta2), self.step_count
        g = grads[at] * gscale
        m = pick(self._m) * ADAM_BETA + (1 - ADAM_BETA) * g
        v = pick(self._v) * b2 + (1 - b2) * g * g
        c2 = 1 / (1 - b2.double() ** t).float()
        old = values[at]
        change = m / (1 - ADAM_BETA ** t) / ((v * c2).sqrt() + ADAM_EPSILON) + pick(self._decay) * old
        values[at] = old - pick(self._lr) * lr_factor * change
        if active is None:
            self._m.copy_(m)
            self._v.copy_(v)
        else:
            self._m[active], self._v[active] = m, v


def balance(parameters: Parameters, loads: dict[str, torch.Tensor]) -> None:
    """Selection biases move against the load: loads are shares of the routed slots."""
    for name, load in loads.items():
        parameters.value[name].add_(BALANCE * torch.sign(1.0 / load.numel() - load))
