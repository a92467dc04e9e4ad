"""Kernels over rows: softmax, normalisations and reductions along any axes.

Start with :func:`tilewright.tile.rows.rows.lower_rows`.
"""
