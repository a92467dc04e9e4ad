"""Which tensors lie in the same memory: never where a step still reads what is there."""

from __future__ import annotations

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, node
from tilewright.ir.primitives import Input
from tilewright.ir.tile_parse import parse_program
from tilewright.shape import Scope, constant
from tilewright.tile.sharing import Launch, OverwritingOnce, SharedMemory, elements
from tilewright.tile.variants import LoweredStep, Source, Variant, Workspace

SIZE = 64  # rows and columns of square matrices
COPIED = """\
buffer b0: float32
result o0: float32
work 1
grid _i < 64
  for _j in 0 .. 64
    o0[64*_i + _j] = b0[64*_i + _j]
"""
TURNED = COPIED.replace("b0[64*_i + _j]", "b0[_i + 64*_j]")


def step(text: str, read: Source, write: Node | Workspace) -> LoweredStep:
    return LoweredStep(parse_program(text), (read,), (write,))


def shared(*steps: LoweredStep) -> SharedMemory:
    """The memory of one kernel with one variant of these steps, whose operand is not read later."""
    launch = Launch((Variant("all", steps, constant(1)),))
    return SharedMemory([launch], OverwritingOnce(Scope()), lambda _: True, elements)


MATRIX = (constant(SIZE), constant(SIZE))
OPERAND, RESULT = (node(Input(name, DType.FLOAT32, MATRIX)) for name in ("operand", "result"))
SPACE = Workspace("space", DType.FLOAT32, constant(SIZE * SIZE))


def test_a_result_takes_the_place_of_all_that_is_read_where_it_is_written() -> None:
    memory = shared(step(COPIED, OPERAND, SPACE), step(COPIED, SPACE, RESULT))
    assert memory.owner(OPERAND) is RESULT
    assert memory.owner(SPACE) is RESULT


def test_what_a_step_reads_elsewhere_is_not_where_it_writes() -> None:
    """The operand has ended when the result is written, but not when the first step writes."""
    memory = shared(step(TURNED, OPERAND, SPACE), step(COPIED, SPACE, RESULT))
    assert memory.owner(OPERAND) is RESULT
    assert memory.owner(SPACE) is SPACE


def test_what_is_overwritten_too_early_is_found() -> None:
    right = [step(COPIED, OPERAND, SPACE), step(COPIED, SPACE, RESULT)]
    memory = shared(*right)
    wrong = [step(TURNED, OPERAND, SPACE), right[1]]
    for steps, problems in ((right, 0), (wrong, 1)):
        found = memory.problems([Launch((Variant("all", tuple(steps), constant(1)),))])
        assert len(found) == problems, found
