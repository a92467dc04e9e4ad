"""What programs cost, as expressions over their sizes and the number of threads.

``machine`` is a target with the price list of its cores. ``tiles`` holds the innermost level,
measured or derived from a target; ``contraction`` the levels above it, with ``operands`` that are
read and packed; ``attention`` products around a softmax, ``row_product`` a product and its rows,
``window_product`` windows over a product's pixels, ``recurrence`` steps that follow each other.
What has no product has one price, which ``loops`` finds by walking its program, and ``phases`` from
what follows what; ``masks`` says where masks make loops shorter. ``workers`` simulates threads that
share priced tasks. Imports ir, shape and target. Start with :func:`contraction_time` and
:func:`loop_price`.
"""

from __future__ import annotations

from tilewright.cost.attention import (
    COPIED_ROWS,
    AttentionSizes,
    attention_time,
    score_cycles,
)
from tilewright.cost.codes import few_rows_time
from tilewright.cost.contraction import contraction_time, contraction_work, task_time, tiles_time
from tilewright.cost.levels import (
    lone_lines_time,
    memory_time,
    of_memory,
    pieces_read_time,
    pushed_out_time,
)
from tilewright.cost.loops import loop_price
from tilewright.cost.machine import Machine, workers_for
from tilewright.cost.operands import Blocks, apart_lines_time
from tilewright.cost.phases import LoopPrice
from tilewright.cost.recurrence import (
    StepSizes,
    own_rows_time,
    shared_units_time,
    step_tasks,
)
from tilewright.cost.row_product import apart_time, together_time
from tilewright.cost.taken import taken_time
from tilewright.cost.vector_work import combination_cycles, function_cycles
from tilewright.cost.window_product import band_time
from tilewright.cost.workers import CallRun, Loss, SharedStep, StepRun, Tasks, simulated

__all__ = [
    "COPIED_ROWS",
    "AttentionSizes",
    "Blocks",
    "CallRun",
    "LoopPrice",
    "Loss",
    "Machine",
    "SharedStep",
    "StepRun",
    "StepSizes",
    "Tasks",
    "apart_lines_time",
    "apart_time",
    "attention_time",
    "band_time",
    "combination_cycles",
    "contraction_time",
    "contraction_work",
    "few_rows_time",
    "function_cycles",
    "lone_lines_time",
    "loop_price",
    "memory_time",
    "of_memory",
    "own_rows_time",
    "pieces_read_time",
    "pushed_out_time",
    "score_cycles",
    "shared_units_time",
    "simulated",
    "step_tasks",
    "taken_time",
    "task_time",
    "tiles_time",
    "together_time",
    "workers_for",
]
