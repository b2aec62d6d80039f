"""Seeded generators of training and held-out conversations."""
