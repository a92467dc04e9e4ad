"""The table of alternatives, in the order in which their sites are tried.

Each is described by its own docstring. Read :data:`ALTERNATIVES`.
"""

from __future__ import annotations

from tilewright.rewrite import commuted, merging
from tilewright.rewrite.alternatives import Alternative

ALTERNATIVES: tuple[Alternative, ...] = (
    Alternative(merging.products_of_one_operand),
    Alternative(merging.convolutions_of_one_image),
    Alternative(commuted.sum_as_column),
    Alternative(commuted.column_as_sum),
    Alternative(commuted.product_of_parts),
    Alternative(commuted.exchanged_operands),
    Alternative(commuted.factor_after_product),
)
