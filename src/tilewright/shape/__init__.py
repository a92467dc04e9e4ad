"""Integer expressions over named dimensions, and what is known about them.

`Expr` (canonical, interned) with its functions, `parse` and `encode`; `Scope` with ranges,
divisibility, equalities and three-valued answers; solving dimensions from actual input shapes, with
guards written as sentences. May import `support`. Start reading at `expr.py`, then `scope.py`.
"""

from __future__ import annotations

from tilewright.shape import structural as structural  # fills the table of structural rules
from tilewright.shape.binding import (
    BindingPlan,
    InputPattern,
    SymbolSource,
    bind_inputs,
    size_symbol,
)
from tilewright.shape.encode import encode, encode_least
from tilewright.shape.evaluation import evaluate_all
from tilewright.shape.expr import Expr, as_expr, constant, symbol
from tilewright.shape.functions import (
    ceil_div,
    equal,
    less,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
    maximum,
    minimum,
    product,
    select,
    total,
    with_positive_divisors,
)
from tilewright.shape.guards import Guard, values_of
from tilewright.shape.interval import Interval
from tilewright.shape.listing import Listing, read_listing
from tilewright.shape.parsing import parse
from tilewright.shape.scope import Scope, SymbolFacts, Truth, completed
from tilewright.shape.scoped import exact_quotient

__all__ = [
    "BindingPlan",
    "Expr",
    "Guard",
    "InputPattern",
    "Interval",
    "Listing",
    "Scope",
    "SymbolFacts",
    "SymbolSource",
    "Truth",
    "as_expr",
    "bind_inputs",
    "ceil_div",
    "completed",
    "constant",
    "encode",
    "encode_least",
    "equal",
    "evaluate_all",
    "exact_quotient",
    "less",
    "less_equal",
    "logical_and",
    "logical_not",
    "logical_or",
    "maximum",
    "minimum",
    "parse",
    "product",
    "read_listing",
    "select",
    "size_symbol",
    "symbol",
    "total",
    "values_of",
    "with_positive_divisors",
]
