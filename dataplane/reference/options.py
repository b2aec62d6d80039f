"""What varies between forward passes: arithmetic, selection, captured intermediates, row layout."""

from dataclasses import dataclass, replace
from typing import Dict, Optional

import torch

from reference import numerics


@dataclass
class Options:
    """Arithmetic and instrumentation of one forward pass.

    All tensors are float32; a rounding switch rounds their values, not their dtype.
    """

    round_bf16: bool = False     # bf16 between operators, as served
    quant_window: bool = False   # Q8 of window latents
    quant_global: bool = False   # Q4g of global entries
    quant_index: bool = False    # Q4i of indexer queries and keys
    act_quant: bool = False      # Q8 in front of FP8 and FP4 weights (not wo_a)
    weight_quant: bool = False   # fake-quantize the float masters to their export formats
    matmul_bf16: bool = False    # bf16 matmul operands (training speed)
    dense_global: bool = False   # attend to every visible global entry
    moe_pad_rows: int = 1        # rows per expert are padded to a multiple of this
    # Row indices whose indexer scores and global attention mass are returned for distillation.
    distill_rows: Optional[torch.Tensor] = None
    # "layers.3.selection" [B, T, K] int64 (-1 = none), "layers.3.expert_ids" [B, T, k] int64.
    pinned: Optional[Dict[str, torch.Tensor]] = None
    # Filled with intermediates when it is a dict; names are listed in golden.py.
    capture: Optional[Dict[str, torch.Tensor]] = None

    @staticmethod
    def exact(**overrides):
        """No rounding anywhere."""
        return Options(**overrides)

    @staticmethod
    def served(**overrides):
        """The arithmetic of the official reference, on weights that are already dequantized."""
        values = dict(round_bf16=True, quant_window=True, quant_global=True, quant_index=True,
                      act_quant=True)
        values.update(overrides)
        return Options(**values)

    @staticmethod
    def training(quantized=False, **overrides):
        """bf16 matmul operands on float32 masters; with every fake quantization when `quantized`."""
        values = dict(matmul_bf16=True, moe_pad_rows=128, quant_window=quantized,
                      quant_global=quantized, quant_index=quantized, act_quant=quantized,
                      weight_quant=quantized, dense_global=not quantized)
        values.update(overrides)
        return Options(**values)

    def with_(self, **overrides):
        return replace(self, **overrides)

    def round(self, x):
        """Rounding between operators."""
        return numerics.straight_through(x, numerics.round_bf16) if self.round_bf16 else x

    def put(self, name, value):
        if self.capture is not None:
            self.capture[name] = value.detach()

    def rename(self, old, new):
        """Moves a capture made by a module that does not know which layer it serves."""
        if self.capture is not None:
            self.capture[new] = self.capture.pop(old)

    def pin(self, name):
        return None if self.pinned is None else self.pinned.get(name)


@dataclass
class Rows:
    """Which token each row is.

    tokens, positions, segments  [B, T] int64. `positions` restart with every document; `segments`
      tells documents of one row apart, -1 marks padding. A document starts at an index that is a
      multiple of every compress ratio and is contiguous.
    encoder_floor, decoder_floor [B, T] int64: lowest position a window key may have (bounded
      replay). None means 0.
    decoder_rows  [B, T] bool: rows that run through the decoder layers; None means all.
    lookback      [B, T, n] int64 raw ids of the tokens at t, t-1, ..., -1 = blocked; computed from
      the row when None.
    image         [B, T] bool: rows inside an image span; None means none.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    segments: torch.Tensor
    encoder_floor: Optional[torch.Tensor] = None
    decoder_floor: Optional[torch.Tensor] = None
    decoder_rows: Optional[torch.Tensor] = None
    lookback: Optional[torch.Tensor] = None
    image: Optional[torch.Tensor] = None

    @staticmethod
    def single(tokens, start=0, **overrides):
        """One document [T] as a batch of one, its first token at position `start`."""
        tokens = torch.as_tensor(tokens, dtype=torch.int64)[None]
        positions = torch.arange(start, start + tokens.shape[1], device=tokens.device)[None]
        return Rows(tokens, positions, torch.zeros_like(tokens), **overrides)

    def gather(self, index, valid):
        """Rows at index [B, T'] of every batch row; rows that are not valid become padding."""
        def take(x):
            return None if x is None else x.gather(1, index)
        lookback = self.lookback
        if lookback is not None:
            lookback = lookback.gather(1, index[..., None].expand(*index.shape, lookback.shape[-1]))
        return Rows(take(self.tokens), take(self.positions),
                    torch.where(valid, take(self.segments), torch.full_like(index, -1)),
                    take(self.encoder_floor), take(self.decoder_floor), None, lookback,
                    take(self.image))
