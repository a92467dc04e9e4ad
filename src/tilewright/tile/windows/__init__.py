"""Pooling and depthwise convolution, by where the channels lie.

Start with :func:`tilewright.tile.windows.windows.lower_windows`.
"""
