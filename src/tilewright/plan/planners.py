"""The planners by name: ways to divide a graph into kernels. Start with :data:`PLANNERS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilewright.ir.graph import Graph
from tilewright.ir.kernel import Plan
from tilewright.plan.backbone import plan_by_backbones, plan_without_fusion
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
}


def planner_within(name: str, limit: int | None, measure: Measure | None = None) -> Planner:
    """The planner of a name, held to ``limit`` bytes between kernels if that is given.

    With ``measure``, of which ``name`` has to be "optimal", it decides by running kernels. Raises
    InputError for a limit where the planner makes one plan only.
    """
    if limit is None and measure is None:
        return PLANNERS[name]
    if name != "optimal":
        raise InputError(
            f"'max_arena' limits the memory of a plan, but plan={name!r} makes one plan only",
            hint='Use plan="optimal", which chooses among plans',
        )
    return lambda graph, lowering: plan_optimally(graph, lowering, limit, measure).plan


__all__ = ["PLANNERS", "Planner", "planner_within"]
