"""Matrix products: blocks around a register tile, and the variants that compute one.

Start with :func:`tilewright.tile.products.variants.contraction_variants`.
"""
