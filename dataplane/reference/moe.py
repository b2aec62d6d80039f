"""Mixture of experts: gate, routed experts (grouped rows), shared expert."""

import torch
from torch import nn
from torch.nn import functional as F

from reference.layers import Linear, quantized_weight


class Expert(nn.Module):
    """w2(silu(w1 x) * w3 x); `limit` clamps both factors, `kind` is the weight format."""

    def __init__(self, config, kind):
        super().__init__()
        width, inner = config.hidden_size, config.moe_intermediate_size
        self.limit = config.swiglu_limit
        self.w1 = Linear(width, inner, kind)
        self.w2 = Linear(inner, width, kind)
        self.w3 = Linear(width, inner, kind)

    def forward(self, x, options, weight=None):
        """x [N, D]; `weight` [N, 1] multiplies the inner activations."""
        g, u = self.w1(x, options), self.w3(x, options)
        if self.limit > 0:
            g, u = g.clamp(max=self.limit), u.clamp(-self.limit, self.limit)
        y = F.silu(g) * u
        if weight is not None:
            y = y * weight
        return self.w2(options.round(y), options)


class Gate(nn.Module):
    """Expert choice; biases steer the selection only and are not trained by gradient."""

    def __init__(self, config, expert_count, top_k):
        super().__init__()
        self.top_k, self.scale, self.temperature = top_k, config.routed_scaling_factor, config.gate_temp
        self.weight = nn.Parameter(torch.empty(expert_count, config.hidden_size))
        self.bias = nn.Parameter(torch.zeros(expert_count), requires_grad=False)
        self.bias_vl = nn.Parameter(torch.zeros(expert_count), requires_grad=False)

    def forward(self, x, image, options, pinned=None):
        """x [N, D], image [N] bool or None -> (ids [N, k] ascending, weights [N, k], scores [N, E])."""
        weight = quantized_weight(self.weight, "bf16", options)
        logits = F.linear(x, weight)
        options.put("gate_logits", logits)
        scores = torch.sqrt(F.softplus(logits / self.temperature))
        if pinned is None:
            bias = self.bias if image is None else \
                torch.where(image[:, None], self.bias_vl, self.bias)
            order = (scores.detach() + bias).sort(dim=-1, descending=True, stable=True).indices
            pinned = order[:, :self.top_k]
        ids = pinned.sort(-1).values
        chosen = scores.gather(1, ids)
        return ids, chosen / (chosen.sum(-1, keepdim=True) + 1e-20) * self.scale, scores


class Moe(nn.Module):
    def __init__(self, config, expert_count, top_k):
        super().__init__()
        self.gate = Gate(config, expert_count, top_k)
        self.experts = nn.ModuleList(Expert(config, "fp4") for _ in range(expert_count))
        self.shared_experts = Expert(config, "fp8")

    def forward(self, x, image, options, name):
        """x [B, T, D] -> (y [B, T, D], rows per expert [E] int64).

        Routed outputs are summed in ascending expert id, then the shared expert is added.
        """
        shape, flat = x.shape, x.flatten(0, -2)
        image = None if image is None else image.flatten()
        pinned = options.pin(f"{name}.expert_ids")
        ids, weights, scores = self.gate(flat, image, options,
                                         None if pinned is None else pinned.flatten(0, -2))
        if options.capture is not None:
            options.put(f"{name}.gate_logits", options.capture.pop("gate_logits").unflatten(0, shape[:-1]))
        options.put(f"{name}.gate_scores", scores.unflatten(0, shape[:-1]))
        options.put(f"{name}.expert_ids", ids.unflatten(0, shape[:-1]))
        options.put(f"{name}.expert_weights", weights.unflatten(0, shape[:-1]))
        routed, counts = self._routed(flat, ids, weights, options)
        options.put(f"{name}.routed", routed.unflatten(0, shape[:-1]))
        shared = self.shared_experts(flat, options)
        options.put(f"{name}.shared", shared.unflatten(0, shape[:-1]))
        return options.round(routed + shared).reshape(shape), counts

    def _routed(self, x, ids, weights, options):
        top_k, pad = ids.shape[1], options.moe_pad_rows
        order = ids.flatten().sort(dim=0, stable=True).indices
        counts = torch.bincount(ids.flatten(), minlength=len(self.experts))
        outputs, start = [], 0
        for expert, count in zip(self.experts, counts.tolist()):
            if count == 0:
                continue
            rows = order[start:start + count]
            start += count
            if -count % pad:
                rows = F.pad(rows, (0, -count % pad))
            y = expert(x[torch.div(rows, top_k, rounding_mode="floor")], options,
                       weights.flatten()[rows][:, None])
            outputs.append(y[:count])
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(order.numel(), device=order.device)
        parts = torch.cat(outputs)[inverse].unflatten(0, (-1, top_k))
        total = parts[:, 0]
        for k in range(1, top_k):
            total = total + parts[:, k]
        return total, counts
