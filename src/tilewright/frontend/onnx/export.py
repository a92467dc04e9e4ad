"""A primitive graph written back as an ONNX model, so that others can run it and show it.

Every primitive becomes standard operators; shape expressions become integer arithmetic on the
shapes of the inputs. Operators that run on the ONNX reference evaluator become functions of the
model. Start with
:func:`to_onnx`. The other ``export_`` modules are its parts.
"""

from __future__ import annotations

import string
from collections.abc import Sequence

import onnx
from onnx import helper

from tilewright.frontend.onnx.export_linear import write_convolve, write_window
from tilewright.frontend.onnx.export_maps import write_map
from tilewright.frontend.onnx.export_writer import OnnxWriter
from tilewright.frontend.onnx.tensor_types import data_type
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node
from tilewright.ir.primitives import (
    ArgReduce,
    Broadcast,
    Cast,
    Concat,
    Constant,
    Contract,
    Convolve,
    Dimension,
    Gather,
    GatherElements,
    GatherND,
    Input,
    Iota,
    Map,
    Opaque,
    Pad,
    Project,
    Reduce,
    Reshape,
    Scan,
    ScatterElements,
    ScatterND,
    Slice,
    Transpose,
    Window,
)
from tilewright.shape import Expr, constant, less, select
from tilewright.support.errors import UnsupportedError

OPSET = 21  # of ONNX, as long as no operator needs another one
OPSET_OF_RUNNING_PRODUCT = 26  # the first that has CumProd
DOMAIN = "tilewright.opaque"
_REDUCE = {
    "sum": "ReduceSum",
    "product": "ReduceProd",
    "maximum": "ReduceMax",
    "minimum": "ReduceMin",
}
_SCATTER = {
    "none": "none",
    "add": "add",
    "multiply": "mul",
    "maximum": "max",
    "minimum": "min",
}


def to_onnx(graph: Graph) -> onnx.ModelProto:
    """An ONNX model that computes what ``graph`` computes; guards are left out.

    Raises ``UnsupportedError`` for inputs and outputs that are sequences or optionals: their type
    is not known.
    """
    return _Export(graph).model()


class _Export:
    """State of writing one graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        names = [self._input(n).name for n in graph.inputs] + [name for name, _ in graph.outputs]
        self.writer = OnnxWriter(graph.scope, names)
        self.values: dict[Node, str] = {}
        self.results: dict[Node, list[str]] = {}
        self.functions: dict[bytes, onnx.FunctionProto] = {}
        self.extra: list[onnx.FunctionProto] = []
        self.opset = OPSET

    @staticmethod
    def _input(value: Node) -> Input:
        assert isinstance(value.primitive, Input)
        return value.primitive

    def model(self) -> onnx.ModelProto:
        """Write everything and assemble the model."""
        inputs = [self._declare(n) for n in self.graph.inputs]
        bindings = {b.source: b.symbols for b in self.graph.bindings}
        for current in self.graph.nodes():
            if current not in self.values:
                self.values[current] = self._write(current)
            if current in bindings:
                self._bind(self.values[current], bindings[current])
        outputs: list[onnx.ValueInfoProto] = []
        for name, value in self.graph.outputs:
            self.writer.nodes.append(helper.make_node("Identity", [self.values[value]], [name]))
            outputs.append(self._info(name, value))
        body = helper.make_graph(
            self.writer.nodes, self.graph.name or "graph", inputs, outputs, self.writer.initializers
        )
        functions = [*self.functions.values(), *self.extra]
        opsets = {"": self.opset, **({DOMAIN: 1} if self.functions else {})}
        for function in self.extra:
            opsets.setdefault(function.domain, 1)
        return helper.make_model(
            body,
            functions=functions,
            opset_imports=[helper.make_opsetid(d, v) for d, v in opsets.items()],
            ir_version=10 if self.opset == OPSET else onnx.IR_VERSION,
            producer_name="tilewright",
        )

    def _info(self, name: str, value: Node) -> onnx.ValueInfoProto:
        if value.dtype is DType.OBJECT:
            raise UnsupportedError(
                "a sequence or an optional cannot be written",
                where=f'"{name}"',
                hint="export a graph whose inputs and outputs are tensors",
            )
        sizes = [s.value if s.is_constant else str(s) for s in value.shape]
        return helper.make_tensor_value_info(name, data_type(value.dtype), sizes)

    def _declare(self, value: Node) -> onnx.ValueInfoProto:
        """An input, and the dimensions that its sizes determine."""
        primitive = self._input(value)
        self.values[value] = primitive.name
        for axis, size in enumerate(value.shape):
            self._measure(primitive.name, axis, size)
        return self._info(primitive.name, value)

    def _measure(self, name: str, axis: int, size: Expr) -> None:
        """Make the one dimension of a size that is linear in it known, if it is not yet."""
        unknown = [s for s in size.free_symbols if s not in self.writer.symbols]
        if len(unknown) != 1 or len(size.free_symbols) != 1:
            return
        offset = size.evaluate({unknown[0]: 0})
        slope = size.evaluate({unknown[0]: 1}) - offset
        if slope == 0 or size.evaluate({unknown[0]: 2}) - offset != 2 * slope:
            return
        writer = self.writer
        found = writer.emit("Shape", [name], start=axis, end=axis + 1)
        found = writer.emit("Squeeze", [found, writer.integers([0])])
        if offset:
            found = writer.emit("Sub", [found, writer.integer(offset)])
        if slope != 1:
            found = writer.emit("Div", [found, writer.integer(slope)])
        writer.symbols[unknown[0]] = found

    def _bind(self, source: str, symbols: Sequence[str]) -> None:
        writer = self.writer
        flat = writer.emit("Reshape", [source, writer.integers([-1])])
        flat = writer.emit("Cast", [flat], to=onnx.TensorProto.INT64)
        for index, name in enumerate(symbols):
            taken = writer.emit("Gather", [flat, writer.integer(index)], axis=0)
            writer.symbols[name] = taken

    # ------------------------------------------------------------ primitives

    def _write(self, current: Node) -> str:
        """The value of a node whose operands are written."""
        x = [self.values[i] for i in current.inputs]
        writer = self.writer
        match current.primitive:
            case Constant(array=array):
                return writer.constant(array)
            case Dimension(value=value):
                return writer.expression(value)
            case Iota(shape=shape, axis=axis):
                return self._iota(shape, axis)
            case Map(function=function):
                return write_map(writer, function, x, current.inputs[0].dtype)
            case Cast(dtype=dtype):
                return writer.emit("Cast", x, to=data_type(dtype))
            case Opaque(payload=payload, outputs=outputs):
                self.results[current] = self._opaque(payload, x, len(outputs))
                self._measure_results(current)
                return self.results[current][0]
            case Project(index=index):
                return self.results[current.inputs[0]][index]
            case Convolve() as primitive:
                return write_convolve(writer, primitive, x, current.inputs)
            case Window() as primitive:
                return write_window(writer, primitive, x[0], current.inputs[0])
            case _:
                return self._moved(current, x)

    def _moved(self, current: Node, x: list[str]) -> str:
        writer = self.writer
        match current.primitive:
            case Reduce(kind=kind, axes=axes):
                return writer.emit(_REDUCE[kind], [x[0], writer.integers(axes)], keepdims=0)
            case ArgReduce(kind=kind, axis=axis, last=last):
                name = "ArgMax" if kind == "maximum" else "ArgMin"
                return writer.emit(name, x, axis=axis, keepdims=0, select_last_index=int(last))
            case Scan(kind=kind, axis=axis, exclusive=exclusive, reverse=reverse):
                if kind == "product":
                    self.opset = max(self.opset, OPSET_OF_RUNNING_PRODUCT)
                name = "CumSum" if kind == "sum" else "CumProd"
                operands = [x[0], writer.integer(axis)]
                return writer.emit(name, operands, exclusive=int(exclusive), reverse=int(reverse))
            case Broadcast(shape=shape, axes=axes):
                return self._broadcast(x[0], current.inputs[0], shape, axes)
            case Reshape(shape=shape):
                return writer.emit("Reshape", [x[0], writer.sizes(shape)], allowzero=1)
            case Transpose(permutation=permutation):
                return writer.emit("Transpose", x, perm=list(permutation)) if permutation else x[0]
            case Slice() as primitive:
                return self._slice(x[0], primitive)
            case Pad(low=low, high=high):
                return writer.emit("Pad", [x[0], writer.sizes((*low, *high)), x[1]])
            case Concat(axis=axis):
                return writer.emit("Concat", x, axis=axis)
            case Contract(batch=batch, summed=summed):
                return self._contract(x, current.inputs, batch, summed)
            case _:
                return self._indexed(current, x)

    def _indexed(self, current: Node, x: list[str]) -> str:
        writer = self.writer
        match current.primitive:
            case Gather(axis=axis):
                return writer.emit("Gather", x, axis=axis)
            case GatherElements(axis=axis):
                return writer.emit("GatherElements", x, axis=axis)
            case GatherND(batch=batch):
                return writer.emit("GatherND", x, batch_dims=batch)
            case ScatterElements(axis=axis, reduction=reduction):
                kind = _SCATTER[reduction]
                return writer.emit("ScatterElements", x, axis=axis, reduction=kind)
            case ScatterND(reduction=reduction):
                return writer.emit("ScatterND", x, reduction=_SCATTER[reduction])
            case _:
                raise UnsupportedError(f"{current!r} cannot be written as ONNX")

    def _iota(self, shape: Sequence[Expr], axis: int) -> str:
        writer = self.writer
        bounds = [writer.integer(0), writer.expression(shape[axis]), writer.integer(1)]
        view = [1] * len(shape)
        view[axis] = -1
        line = writer.emit("Reshape", [writer.emit("Range", bounds), writer.integers(view)])
        if all(s.is_constant and s.value == 1 for a, s in enumerate(shape) if a != axis):
            return line
        return writer.emit("Expand", [line, writer.sizes(shape)])

    def _broadcast(self, x: str, operand: Node, shape: Sequence[Expr], axes: Sequence[int]) -> str:
        writer = self.writer
        view = [constant(1)] * len(shape)
        for axis, size in zip(axes, operand.shape, strict=True):
            view[axis] = size
        if list(axes) != list(range(len(shape))):
            x = writer.emit("Reshape", [x, writer.sizes(view)], allowzero=1)
        return writer.emit("Expand", [x, writer.sizes(shape)])

    def _slice(self, x: str, primitive: Slice) -> str:
        """The end before element 0 has no number in ONNX; any very negative one stands for it."""
        writer = self.writer
        ends: list[Expr] = []
        for start, size, step in zip(
            primitive.starts, primitive.sizes, primitive.steps, strict=True
        ):
            end = start + size * step
            ends.append(select(less(end, 0), constant(-(1 << 31)), end))
        axes = list(range(len(ends)))
        if not axes:
            return x
        operands = [
            writer.sizes(primitive.starts),
            writer.sizes(ends),
            writer.integers(axes),
            writer.sizes(primitive.steps),
        ]
        return writer.emit("Slice", [x, *operands])

    def _contract(
        self,
        x: list[str],
        operands: Sequence[Node],
        batch: Sequence[tuple[int, int]],
        summed: Sequence[tuple[int, int]],
    ) -> str:
        letters = iter(string.ascii_letters)
        left: dict[int, str] = {}
        right: dict[int, str] = {}
        for i, j in (*batch, *summed):
            left[i] = right[j] = next(letters)
        free_left = [a for a in range(operands[0].rank) if a not in left]
        free_right = [a for a in range(operands[1].rank) if a not in right]
        left.update((a, next(letters)) for a in free_left)
        right.update((a, next(letters)) for a in free_right)
        result = [left[i] for i, _ in batch]
        result += [left[a] for a in free_left] + [right[a] for a in free_right]
        first = "".join(left[a] for a in range(operands[0].rank))
        second = "".join(right[a] for a in range(operands[1].rank))
        return self.writer.emit("Einsum", x, equation=f"{first},{second}->{''.join(result)}")

    # ------------------------------------------------------------ opaque operators

    def _opaque(self, payload: bytes, x: list[str], count: int) -> list[str]:
        """A call of a function whose body is the payload's node."""
        function = self.functions.get(payload)
        if function is None:
            model = onnx.load_model_from_string(payload)
            body = model.graph
            function = helper.make_function(
                DOMAIN,
                f"call_{len(self.functions)}",
                [v.name for v in body.input],
                [v.name for v in body.output],
                list(body.node),
                list(model.opset_import),
            )
            self.functions[payload] = function
            # A function may not know an operator in another version than the model.
            opsets = {o.domain: o.version for o in model.opset_import}
            self.opset = max(self.opset, opsets.get("", 0))
            known = {(f.domain, f.name) for f in self.extra}
            self.extra += [f for f in model.functions if (f.domain, f.name) not in known]
        return self.writer.emit_many(function.name, x, count, DOMAIN)

    def _measure_results(self, current: Node) -> None:
        """Dimensions that only the results of an opaque operator determine."""
        primitive = current.primitive
        assert isinstance(primitive, Opaque)
        for name, result in zip(self.results[current], primitive.outputs, strict=True):
            if result.dtype is not DType.OBJECT:
                for axis, size in enumerate(result.shape):
                    self._measure(name, axis, size)
