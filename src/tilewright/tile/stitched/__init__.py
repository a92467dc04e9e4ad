"""Products that are one kernel with what is made of their rows.

Start with :func:`tilewright.tile.stitched.variants.row_product_variants`.
"""
