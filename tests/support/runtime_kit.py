"""Small programs with hand-written kernels, for the tests of the runtime."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from tilewright.backend.cpu.link import link
from tilewright.runtime.artifact import ArtifactContents
from tilewright.runtime.model import CompiledModel
from tilewright.runtime.program import (
    BindStep,
    Buffer,
    CodeImage,
    KernelStep,
    OpaqueStep,
    Program,
    Step,
)
from tilewright.shape import Expr, InputPattern, Scope, as_expr, bind_inputs

LEVEL = "x86-64"

_SIGNATURE = "(ptr %parameters, ptr %buffers, i64 %begin, i64 %end, ptr %scratch, ptr %status)"


def loop_kernel(name: str, setup: str, body: str) -> str:
    """A kernel that runs `body` for each task %i; `setup` runs before."""
    return f"""
define void @{name}{_SIGNATURE} {{
entry:
  %none = icmp sge i64 %begin, %end
  br i1 %none, label %done, label %prepare
prepare:
{setup}
  br label %loop
loop:
  %i = phi i64 [ %begin, %prepare ], [ %next, %continue ]
{body}
  br label %continue
continue:
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %done
done:
  ret void
}}
"""


def pointers(count: int) -> str:
    """Loads the first `count` buffers into %p0, %p1, …"""
    lines: list[str] = []
    for n in range(count):
        lines.append(f"  %a{n} = getelementptr ptr, ptr %buffers, i64 {n}")
        lines.append(f"  %p{n} = load ptr, ptr %a{n}")
    return "\n".join(lines)


# Task i: out[i] = x[i] + parameter 0.
ADD = loop_kernel(
    "add",
    pointers(2) + "\n  %c = load i64, ptr %parameters\n  %f = sitofp i64 %c to float",
    """  %x = getelementptr float, ptr %p0, i64 %i
  %v = load float, ptr %x
  %r = fadd float %v, %f
  %y = getelementptr float, ptr %p1, i64 %i
  store float %r, ptr %y""",
)
# Task i: out[i] = exp(x[i]), through the C library.
EXP = (
    loop_kernel(
        "exponential",
        pointers(2),
        """  %x = getelementptr float, ptr %p0, i64 %i
  %v = load float, ptr %x
  %r = call float @expf(float %v)
  %y = getelementptr float, ptr %p1, i64 %i
  store float %r, ptr %y""",
    )
    + "declare float @expf(float)\n"
)
# Task i: row i of out = the running sums of row i of x, by way of scratch; parameter 0: columns.
SCAN = (
    loop_kernel(
        "scan",
        pointers(2) + "\n  %n = load i64, ptr %parameters\n  %bytes = mul i64 %n, 4",
        """  %row = mul i64 %i, %n
  %x = getelementptr float, ptr %p0, i64 %row
  %y = getelementptr float, ptr %p1, i64 %row
  br label %inner
inner:
  %j = phi i64 [ 0, %loop ], [ %k, %inner ]
  %s = phi float [ 0.0, %loop ], [ %t, %inner ]
  %xj = getelementptr float, ptr %x, i64 %j
  %v = load float, ptr %xj
  %t = fadd float %s, %v
  %sj = getelementptr float, ptr %scratch, i64 %j
  store float %t, ptr %sj
  %k = add i64 %j, 1
  %again = icmp slt i64 %k, %n
  br i1 %again, label %inner, label %copy
copy:
  call void @llvm.memcpy.p0.p0.i64(ptr %y, ptr %scratch, i64 %bytes, i1 false)""",
    )
    + "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)\n"
)
# Task i: out[i] = table[index[i]]; parameter 0: rows of the table; status 1 (index, rows).
GATHER = loop_kernel(
    "gather",
    pointers(3) + "\n  %n = load i64, ptr %parameters",
    """  %ia = getelementptr i64, ptr %p1, i64 %i
  %index = load i64, ptr %ia
  %bad = icmp uge i64 %index, %n
  br i1 %bad, label %fail, label %fine
fail:
  store i64 1, ptr %status
  %d0 = getelementptr i64, ptr %status, i64 2
  store i64 %index, ptr %d0
  %d1 = getelementptr i64, ptr %status, i64 3
  store i64 %n, ptr %d1
  ret void
fine:
  %ta = getelementptr float, ptr %p0, i64 %index
  %v = load float, ptr %ta
  %oa = getelementptr float, ptr %p2, i64 %i
  store float %v, ptr %oa""",
)
# Task i: out[i] = the constant 7 (int64), read from constant data, added to x[0].
TABLE = (
    "@table = internal constant [2 x i64] [i64 7, i64 9]\n"
    "@entry_points = internal constant [1 x ptr] [ptr @table]\n"
    + loop_kernel(
        "from_table",
        pointers(2) + "\n  %t = load volatile ptr, ptr @entry_points",
        """  %e = getelementptr i64, ptr %t, i64 %i
  %v = load i64, ptr %e
  %x = load i64, ptr %p0
  %r = add i64 %v, %x
  %y = getelementptr i64, ptr %p1, i64 %i
  store i64 %r, ptr %y""",
    )
)


def assemble(text: str) -> bytes:
    """The object file of LLVM text."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple("x86_64-unknown-linux-gnu")
    machine = target.create_target_machine(reloc="pic", codemodel="small")
    module = llvm.parse_assembly(text, llvm.create_context())
    module.verify()
    return machine.emit_object(module)


@functools.cache
def image() -> CodeImage:
    return link([assemble(ADD + EXP + SCAN + GATHER + TABLE)], LEVEL, ())


def kernel(
    function: str,
    reads: Sequence[int],
    writes: Sequence[int],
    grid: Expr | int,
    parameters: Sequence[Expr | int] = (),
    scratch: Expr | int = 0,
    work: Expr | int = 0,
    checks: Sequence[str] = (),
) -> KernelStep:
    return KernelStep(
        function=function,
        parameters=tuple(as_expr(p) for p in parameters),
        buffers=(*reads, *writes),
        outputs=tuple(writes),
        grid=as_expr(grid),
        scratch=as_expr(scratch),
        work=as_expr(work),
        label=f"{function} of {writes[0]}",
        checks=tuple(checks),
    )


def buffers(*rows: tuple[str, str, Sequence[Expr | int], str]) -> tuple[Buffer, ...]:
    """Buffers from (name, dtype, shape, kind), numbered within their kinds."""
    counts: dict[str, int] = {}
    result: list[Buffer] = []
    for name, dtype, shape, kind in rows:
        index = counts.get(kind, 0)
        counts[kind] = index + 1
        sizes = tuple(as_expr(size) for size in shape)
        result.append(Buffer(name, dtype, sizes, kind, index))  # pyright: ignore[reportArgumentType]
    return tuple(result)


def program(
    all_buffers: Sequence[Buffer],
    steps: Sequence[Step],
    scope: Scope | None = None,
    name: str = "test",
) -> Program:
    """Each kernel step is a kernel of its own."""
    steps = [
        replace(step, kernel=number) if isinstance(step, KernelStep) else step
        for number, step in enumerate(steps)
    ]
    inputs = [b for b in all_buffers if b.kind == "input"]
    patterns = [InputPattern(b.name, b.shape) for b in inputs]
    plan = bind_inputs(patterns, scope or Scope())
    learned: list[str] = []
    for step in steps:
        if isinstance(step, BindStep):
            learned.extend(step.symbols)
        elif isinstance(step, OpaqueStep):
            for number in step.outputs:
                for size in all_buffers[number].shape:
                    if size.symbol_name and size.symbol_name not in (*plan.symbols, *learned):
                        learned.append(size.symbol_name)
    return Program(
        name=name,
        buffers=tuple(all_buffers),
        steps=tuple(steps),
        symbols=(*plan.symbols, *learned),
        input_names=tuple(b.name for b in inputs),
        output_names=tuple(b.name for b in all_buffers if b.kind == "output"),
        bindings=plan.sources,
        guards=plan.guards,
    )


def contents(what: Program, constants: Sequence[Any] = ()) -> ArtifactContents:
    return ArtifactContents({LEVEL: what}, {LEVEL: image()}, {LEVEL: list(constants)})


def model(what: Program, constants: Sequence[Any] = (), **options: Any) -> CompiledModel:
    return CompiledModel.from_contents(contents(what, constants), level=LEVEL, **options)


def add_model(work: int = 0, **options: Any) -> CompiledModel:
    """y[n] = x[n] + 1."""
    return model(add_program(work), **options)


def add_program(work: int = 0) -> Program:
    scope = Scope()
    n = scope.declare("n", 0, 1 << 24)
    return program(
        buffers(("x", "float32", [n], "input"), ("y", "float32", [n], "output")),
        [kernel("add", [0], [1], n, [1], work=work)],
        scope,
    )


def chain_program(length: int, work: int) -> Program:
    """y[b, n] = running sums of exp(x + 1 + 2 + …) along n; many steps, shared and not."""
    scope = Scope()
    b, n = scope.declare("b", 0, 4096), scope.declare("n", 1, 4096)
    rows: list[Any] = [("x", "float32", [b, n], "input")]
    steps: list[Step] = []
    for number in range(length):
        rows.append((f"t{number}", "float32", [b, n], "intermediate"))
        # Every third step is for one thread only.
        cost = 0 if number % 3 == 2 else work
        steps.append(kernel("add", [number], [number + 1], b * n, [number], work=cost))
    rows.append(("e", "float32", [b, n], "intermediate"))
    rows.append(("y", "float32", [b, n], "output"))
    steps.append(kernel("exponential", [length], [length + 1], b * n, work=work))
    scan = kernel("scan", [length + 1], [length + 2], b, [n], scratch=n * 4, work=work)
    return program(buffers(*rows), [*steps, scan], scope)


def chain_reference(x: np.ndarray[Any, Any], length: int) -> np.ndarray[Any, Any]:
    for number in range(length):
        x = x + np.float32(number)
    return np.cumsum(np.exp(x), axis=1, dtype=np.float32)
