"""Which of all candidates a kernel is built from.

``candidates`` is the sieve of tiles and blocks that a machine allows, ``prices`` evaluates what
each of them would cost at many shapes of the declared range, ``cover`` keeps the few that are never
far from the best, ``policies`` are the published ways to choose. Nothing is measured here, and no
sample of a shape is asked for. Imports shape, target and numpy. Start with ``policies``.
"""

from tilewright.policy.policies import ALONE, FEW, POLICIES, Policy
from tilewright.policy.space import BlockSizes, Chosen, Extents, Kept, Problem, Space

__all__ = [
    "ALONE",
    "FEW",
    "POLICIES",
    "BlockSizes",
    "Chosen",
    "Extents",
    "Kept",
    "Policy",
    "Problem",
    "Space",
]
