"""From a tile program to a better one: borders cut off, checks and positions computed before.

Start with :func:`tilewright.tile.passes.borders.with_borders`.
"""
