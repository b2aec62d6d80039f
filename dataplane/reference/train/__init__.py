"""Trainer of the nano model: data, tokenizer, network, optimiser, phases, export, evaluation."""
