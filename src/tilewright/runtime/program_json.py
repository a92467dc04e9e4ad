"""Programs as JSON and back, without loss: equal programs give equal JSON.

Start with :func:`program_to_json` and :func:`program_from_json`.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from typing import Any

from tilewright.runtime.program import (
    BUFFER_KINDS,
    BindStep,
    Buffer,
    Choice,
    Dimension,
    KernelStep,
    OpaqueStep,
    OperatorCount,
    Program,
    Step,
)
from tilewright.runtime.ragged_batch import RaggedBatch
from tilewright.runtime.reading import integer, integers, optional_integer, text, texts
from tilewright.shape import Expr, Guard, Listing, SymbolSource, read_listing
from tilewright.support.errors import TilewrightError


def program_to_json(program: Program) -> dict[str, Any]:
    """Plain dicts, lists, strings and ints."""
    return _Writer().program(program)


def program_from_json(data: Mapping[str, Any]) -> Program:
    """The inverse of :func:`program_to_json`.

    KeyError, TypeError or ValueError on malformed data.
    """
    return _Reader(data).program()


class _Writer:
    """Writes a program; equal expressions are stored once and referred to by number."""

    def __init__(self) -> None:
        self.listing = Listing()
        self.expression = self.listing.number

    def expressions(self, exprs: Iterable[Expr]) -> list[int]:
        return [self.expression(expr) for expr in exprs]

    def guards(self, guards: Iterable[Guard]) -> list[list[Any]]:
        return [[self.expression(guard.condition), guard.message] for guard in guards]

    def buffer(self, buffer: Buffer) -> list[Any]:
        packed = None if buffer.packed_bytes is None else self.expression(buffer.packed_bytes)
        shape = self.expressions(buffer.shape)
        return [buffer.name, buffer.dtype, shape, buffer.kind, buffer.index, packed]

    def step(self, step: Step) -> dict[str, Any]:
        match step:
            case KernelStep():
                return {
                    "step": "kernel",
                    "function": step.function,
                    "parameters": self.expressions(step.parameters),
                    "buffers": list(step.buffers),
                    "outputs": list(step.outputs),
                    "sizes": self.expressions(step.sizes),
                    "label": step.label,
                    "checks": list(step.checks),
                    "variant": step.variant,
                    "multiply_adds": self.expressions((step.useful, step.spent)),
                    "kernel": step.kernel,
                }
            case OpaqueStep():
                return {
                    "step": "opaque",
                    "operator": step.operator,
                    "payload": base64.b64encode(step.payload).decode("ascii"),
                    "inputs": list(step.inputs),
                    "outputs": list(step.outputs),
                    "label": step.label,
                }
            case BindStep():
                return {
                    "step": "bind",
                    "buffer": step.buffer,
                    "symbols": list(step.symbols),
                    "guards": self.guards(step.guards),
                }

    def program(self, program: Program) -> dict[str, Any]:
        data: dict[str, Any] = {
            "name": program.name,
            "buffers": [self.buffer(buffer) for buffer in program.buffers],
            "steps": [self.step(step) for step in program.steps],
            "symbols": list(program.symbols),
            "input_names": list(program.input_names),
            "output_names": list(program.output_names),
            "bindings": [
                [source.symbol, source.input_index, source.axis, self.expression(source.formula)]
                for source in program.bindings
            ],
            "guards": self.guards(program.guards),
            "dimensions": [d.row() for d in program.dimensions],
            "operators": [[o.operator, o.count, o.opaque] for o in program.operators],
            "choices": [
                [
                    c.symbol,
                    c.label,
                    list(c.names),
                    self.expressions(c.costs),
                    c.function,
                    list(c.arguments),
                ]
                for c in program.choices
            ],
            "threads_symbol": program.threads_symbol,
            "ragged": None if program.ragged is None else program.ragged.row(),
            **({"fixed": list(program.fixed)} if program.fixed else {}),
        }
        data["expressions"] = self.listing.rows
        return data


class _Reader:
    """Reads what :class:`_Writer` wrote, checking the type of every value."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.data = data
        try:
            self.table = read_listing(data["expressions"])
        except (IndexError, TilewrightError) as error:
            raise ValueError("an expression is malformed") from error

    def expression(self, number: Any) -> Expr:
        position = integer(number)
        if not 0 <= position < len(self.table):
            raise ValueError(f"expression {position} is not in the table")
        return self.table[position]

    def expressions(self, numbers: Iterable[Any]) -> tuple[Expr, ...]:
        return tuple(self.expression(number) for number in numbers)

    def guards(self, items: Iterable[Any]) -> tuple[Guard, ...]:
        return tuple(Guard(self.expression(number), text(message)) for number, message in items)

    def buffer(self, item: Any) -> Buffer:
        name, dtype, shape, kind, index, packed = item
        if kind not in BUFFER_KINDS:
            raise ValueError(f"{kind!r} is not a kind of buffer")
        return Buffer(
            name=text(name),
            dtype=text(dtype),
            shape=self.expressions(shape),
            kind=kind,
            index=integer(index),
            packed_bytes=None if packed is None else self.expression(packed),
        )

    def step(self, item: Mapping[str, Any]) -> Step:
        match item["step"]:
            case "kernel":
                grid, rounds, scratch, work, used = self.expressions(item["sizes"])
                useful, spent = self.expressions(item["multiply_adds"])
                return KernelStep(
                    function=text(item["function"]),
                    parameters=self.expressions(item["parameters"]),
                    buffers=integers(item["buffers"]),
                    outputs=integers(item["outputs"]),
                    grid=grid,
                    rounds=rounds,
                    scratch=scratch,
                    work=work,
                    used=used,
                    label=text(item["label"]),
                    checks=texts(item["checks"]),
                    variant=text(item["variant"]),
                    useful=useful,
                    spent=spent,
                    kernel=integer(item["kernel"]),
                )
            case "opaque":
                return OpaqueStep(
                    operator=text(item["operator"]),
                    payload=base64.b64decode(text(item["payload"]), validate=True),
                    inputs=integers(item["inputs"]),
                    outputs=integers(item["outputs"]),
                    label=text(item["label"]),
                )
            case "bind":
                buffer, symbols = integer(item["buffer"]), texts(item["symbols"])
                return BindStep(buffer, symbols, self.guards(item["guards"]))
            case other:
                raise ValueError(f"{other!r} is not a kind of step")

    def program(self) -> Program:
        data = self.data
        buffers = tuple(self.buffer(item) for item in data["buffers"])
        ragged = RaggedBatch.of(data["ragged"])
        if ragged is not None:
            inputs, outputs = (
                [len(b.shape) for b in buffers if b.kind == kind] for kind in ("input", "output")
            )
            ragged.check(inputs[:-1], outputs)
        return Program(
            name=text(data["name"]),
            buffers=buffers,
            steps=tuple(self.step(item) for item in data["steps"]),
            symbols=texts(data["symbols"]),
            input_names=texts(data["input_names"]),
            output_names=texts(data["output_names"]),
            bindings=tuple(
                SymbolSource(
                    text(symbol),
                    optional_integer(index),
                    optional_integer(axis),
                    self.expression(formula),
                )
                for symbol, index, axis, formula in data["bindings"]
            ),
            guards=self.guards(data["guards"]),
            dimensions=tuple(map(Dimension.of, data["dimensions"])),
            operators=tuple(
                OperatorCount(text(name), integer(count), integer(opaque))
                for name, count, opaque in data["operators"]
            ),
            choices=tuple(
                Choice(
                    text(symbol),
                    text(label),
                    texts(names),
                    self.expressions(costs),
                    text(function),
                    texts(arguments),
                )
                for symbol, label, names, costs, function, arguments in data["choices"]
            ),
            threads_symbol=text(data["threads_symbol"]),
            ragged=ragged,
            fixed=texts(data.get("fixed", [])),
        )
