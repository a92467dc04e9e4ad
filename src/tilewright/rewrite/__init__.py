"""Named rules that replace a node by a cheaper one of the same meaning.

A rule is a pure function "node → node or None" whose docstring is its formula; ``rules.RULES`` is
the table of all of them and :func:`simplify` applies them, operands first, until none applies. May
import ``support``, ``shape`` and ``ir``. Start with ``driver``, then ``rules``.
"""

from tilewright.rewrite.driver import Observe, Trace, simplify
from tilewright.rewrite.facts import Facts, Rule
from tilewright.rewrite.rules import RULES

__all__ = ["RULES", "Facts", "Observe", "Rule", "Trace", "simplify"]
