"""The planners by name: ways to divide a graph into kernels. Start with :data:`PLANNERS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilewright.ir.graph import Graph
from tilewright.ir.kernel import Plan
from tilewright.plan.backbone import plan_by_backbones, plan_without_fusion
from tilewright.plan.beside import alike_beside
from tilewright.plan.greedy import plan_greedily
from tilewright.plan.measuring import Measure
from tilewright.plan.optimal import plan_optimally
from tilewright.support.errors import InputError
from tilewright.tile.alike import LoweringOnce

Planner = Callable[[Graph, LoweringOnce], Plan]  # the latter tells what kernels cost

PLANNERS: Mapping[str, Planner] = {
    "greedy": lambda graph, _: plan_greedily(graph),
    "none": lambda graph, _: plan_without_fusion(graph),
    "backbone": lambda graph, _: plan_by_backbones(graph),
    "optimal": lambda graph, lowering: plan_optimally(graph, lowering).plan,
    "partition": lambda graph, lowering: plan_optimally(graph, lowering, recomputes=False).plan,
}

BY_PRICE = frozenset({"optimal", "partition"})  # those that lower kernels to price them


def planner_within(name: str, limit: int | None, measure: Measure | None = None) -> Planner:
    """The planner of a name, held to ``limit`` bytes between kernels if that is given.

    With ``measure``, of which ``name`` has to be "optimal", it decides by running kernels. Kernels
    that are alike are side by side in its plans, but for those within a limit, which holds for an
    order. Raises InputError for a limit where the planner makes one plan only.
    """
    if limit is not None and name != "optimal":
        raise InputError(
            f"'max_arena' limits the memory of a plan, but plan={name!r} makes one plan only",
            hint='Use plan="optimal" (--plan optimal), which chooses among plans',
        )

    def plan(graph: Graph, lowering: LoweringOnce) -> Plan:
        if limit is None and measure is None:
            found = PLANNERS[name](graph, lowering)
        else:
            found = plan_optimally(graph, lowering, limit, measure).plan
        return found if limit is not None else alike_beside(graph, found)

    return plan


__all__ = ["BY_PRICE", "PLANNERS", "Planner", "planner_within"]
