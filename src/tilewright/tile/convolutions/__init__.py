"""Convolutions as products: gathered rows, copies with the channels last, Winograd's algorithm.

Start with :func:`tilewright.tile.convolutions.convolution.lower_convolution`.
"""
