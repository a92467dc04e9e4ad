"""The solver of the binary program: HiGHS. Start with :func:`solve`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import highspy
import numpy as np

from tilewright.ir.verify import REPORT, VerificationError
from tilewright.plan.problem import Row, Solution

PATIENCE = 30.0  # seconds after which the best choice so far is taken
SCALE = 1e4  # the largest cost as the solver sees it, whose tolerances are absolute
RELATIVE_GAP = 1e-4  # see solve


class Constrained(Protocol):
    """What the solver needs of a problem: the constraints on its columns."""

    @property
    def rows(self) -> Sequence[Row]:
        """The constraints."""
        ...


class NoChoice(VerificationError):
    """No choice of kernels satisfies all constraints."""


class _Silent(highspy.Highs):
    def enableCallbacks(self) -> None:
        """Do without: HiGHS 1.16 prints a banner when they are turned on, before it can be told."""


def solve(problem: Constrained, costs: Sequence[float], gap: float = RELATIVE_GAP) -> Solution:
    """The choice of columns with the least sum of ``costs``, none of which is negative.

    It counts as found once no other one can be cheaper by more than ``gap`` of its price.

    The solver is given no choice to begin with: HiGHS 1.16 takes one to cost less than it does once
    its presolve has fixed a kernel, and then calls it optimal.

    The same problem gives the same choice, unless the time runs out: then it is the best one that
    was found, and its bound says how far from optimal it may be. Raises :class:`NoChoice`.
    """
    solver = _Silent()
    for name, value in (
        ("output_flag", False), ("threads", 1), ("random_seed", 0), ("time_limit", PATIENCE),
        ("mip_rel_gap", gap),
    ):  # fmt: skip
        solver.setOptionValue(name, value)
    scale = SCALE / max(max(costs, default=0.0), 1e-300)
    count = len(costs)
    if count:
        every = np.arange(count, dtype=np.int32)
        solver.addVars(count, np.zeros(count), np.ones(count))
        solver.changeColsCost(count, every, np.array(costs) * scale)
        kinds = np.full(count, highspy.HighsVarType.kInteger)
        solver.changeColsIntegrality(count, every, kinds)
    infinity = highspy.kHighsInf
    for row in problem.rows:
        low = -infinity if row.low is None else row.low
        high = infinity if row.high is None else row.high
        solver.addRow(low, high, len(row.columns), list(row.columns), list(row.coefficients))
    solver.run()
    values = list(solver.getSolution().col_value)
    if len(values) != len(costs) or not solver.getInfo().primal_solution_status:
        raise NoChoice("No choice of kernels computes the graph", hint=REPORT)
    chosen = tuple(column for column, value in enumerate(values) if value > 0.5)
    price = sum(costs[column] for column in chosen)
    return Solution(chosen, price, min(price, solver.getInfo().mip_dual_bound / scale))


__all__ = ["Constrained", "NoChoice", "solve"]
