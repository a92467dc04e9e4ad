"""Copies between layouts that lowerings insert: squares turned in registers, staged results.

Start with :mod:`tilewright.tile.moves.transposes`.
"""
