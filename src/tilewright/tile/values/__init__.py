"""What is element ``index`` of a node? Primitives as scalar values and the loops they open.

Start with :class:`tilewright.tile.values.lowering.Lowering`.
"""
