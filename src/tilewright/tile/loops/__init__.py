"""Loops without reuse: elementwise work, layout, concatenation, running sums and scatters.

Start with :func:`tilewright.tile.loops.loops.lower_loops`.
"""
