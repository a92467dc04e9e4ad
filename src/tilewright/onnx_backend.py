"""The ONNX Backend API: ``prepare``, ``run_model``, ``run_node`` and ``supports_device``.

    import onnx, tilewright.onnx_backend as backend
    outputs = backend.run_model(onnx.load("model.onnx"), [x])

Inputs of a model that decide its structure (axes, number of results) have to be known when it is
compiled: such a model is compiled at its first run, once for each of their values. Read
:class:`TilewrightRep`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.backend.base import Backend, BackendRep

from tilewright.compile import compile_model
from tilewright.frontend.onnx import StructuralInputs, import_model
from tilewright.frontend.onnx.boundary import third_party
from tilewright.runtime.model import CompiledModel
from tilewright.support.errors import InputError, UnsupportedError

MOST_KEPT = 16  # compiled models of one representation, one for each set of structural values
Values = dict[str, Any]


class TilewrightRep(BackendRep):
    """A model ready to run.

    It is compiled at once, unless inputs decide its structure or do not state their number of axes:
    then, at the first run with such inputs.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        weights = {tensor.name for tensor in model.graph.initializer}
        self._model = model
        self._inputs = [v for v in model.graph.input if v.name not in weights]
        self._outputs = [v.name for v in model.graph.output]
        self._kept: OrderedDict[tuple[object, ...], CompiledModel] = OrderedDict()
        self._stated: dict[tuple[int, ...], tuple[onnx.ModelProto, tuple[str, ...]]] = {}
        self._open = [
            v.name
            for v in self._inputs
            if v.type.HasField("tensor_type") and not v.type.tensor_type.HasField("shape")
        ]
        if not self._open:
            prepared, structural = self._prepared({})
            if not structural:
                self._compiled(prepared, (), {})

    def run(self, inputs: Any, **options: Any) -> tuple[Any, ...]:
        """The outputs in the model's order; ``inputs`` is a list, a mapping, or a single array."""
        values = self._named(inputs)
        prepared, structural = self._prepared(values)
        constants = {
            name: np.asarray(values[name])
            for name in structural
            if isinstance(values.get(name), np.ndarray | np.generic)
        }
        model = self._compiled(prepared, self._ranks(values), constants)
        feeds = {name: value for name, value in values.items() if name not in constants}
        results = model.run(feeds)
        return tuple(results[name] for name in self._outputs)

    def _named(self, inputs: Any) -> Values:
        names = [v.name for v in self._inputs]
        if isinstance(inputs, Mapping):
            return {str(name): value for name, value in inputs.items()}
        if isinstance(inputs, np.ndarray) or not isinstance(inputs, Sequence):
            inputs = [inputs]
        if len(inputs) > len(names):
            raise InputError(
                f"{len(inputs)} inputs are given, the model has {len(names)}",
                hint=f"Give {', '.join(names) or 'none'}",
            )
        return dict(zip(names, inputs, strict=False))

    def _ranks(self, values: Values) -> tuple[int, ...]:
        return tuple(np.ndim(values[name]) for name in self._open if name in values)

    def _prepared(self, values: Values) -> tuple[onnx.ModelProto, tuple[str, ...]]:
        """The model with all numbers of axes stated, and the inputs that decide its structure."""
        ranks = self._ranks(values)
        if ranks not in self._stated:
            model = _with_ranks(self._model, dict(zip(self._open, ranks, strict=False)))
            try:
                structural = import_model(model).report.structural_inputs
            except StructuralInputs as error:
                structural = error.inputs
            self._stated[ranks] = model, structural
        return self._stated[ranks]

    def _compiled(
        self, model: onnx.ModelProto, ranks: tuple[int, ...], constants: Values
    ) -> CompiledModel:
        contents = ((n, str(a.dtype), a.shape, a.tobytes()) for n, a in constants.items())
        key = (ranks, *contents)
        if key not in self._kept:
            self._kept[key] = compile_model(model, constants=constants)
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]


def _with_ranks(model: onnx.ModelProto, ranks: Mapping[str, int]) -> onnx.ModelProto:
    """The model with the number of axes of some inputs stated."""
    if not ranks:
        return model
    out = onnx.ModelProto()
    out.CopyFrom(model)
    for value in out.graph.input:
        if value.name in ranks:
            shape = value.type.tensor_type.shape
            shape.SetInParent()
            for _ in range(ranks[value.name]):
                shape.dim.add()
    return out


class TilewrightBackend(Backend):
    """tilewright as an ONNX backend, for the CPU."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> TilewrightRep:
        """The model ready to run. Raises only subclasses of ``TilewrightError``."""
        if not cls.supports_device(device):
            raise UnsupportedError(f"there is no device {device}", hint="use CPU")
        return TilewrightRep(model)

    @classmethod
    def run_model(
        cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> tuple[Any, ...]:
        """The outputs of one run."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype[Any], tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """The outputs of one operator, in its version of ``opset_version`` or the newest."""
        opset = int(kwargs.pop("opset_version", onnx.defs.onnx_opset_version()))
        arrays = [np.asarray(value) for value in inputs]
        present = [name for name in node.input if name]
        stated = [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array in zip(present, arrays, strict=True)
        ]
        outputs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
        graph = helper.make_graph([node], "node", stated, outputs)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid(node.domain, opset)])
        with third_party("the types of the outputs cannot be told", where=node.op_type):
            inferred = onnx.shape_inference.infer_shapes(model)
        return cls.run_model(inferred, arrays, device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether the device is the CPU."""
        return device.split(":")[0] == "CPU"


is_compatible = TilewrightBackend.is_compatible
prepare = TilewrightBackend.prepare
run_model = TilewrightBackend.run_model
run_node = TilewrightBackend.run_node
supports_device = TilewrightBackend.supports_device
