"""Attention as one kernel: two products around a running softmax.

Start with :func:`tilewright.tile.attention.variants.attention_variants`.
"""
