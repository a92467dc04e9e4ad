# pyright: basic
"""The models of tables as calls of PyTorch: node by node, or its fused function for attention.

Every operator of the tables has an entry in ``FUNCTIONS``, which makes a function of tensors from
the node. Imports torch at the top: load this module only when the peer is asked for. Start with
`prepare_model`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import onnx
import torch
import torch.nn.functional as F
from onnx import helper, numpy_helper

from tilewright.bench.operators import Problem
from tilewright.bench.peers.operators import Prepared
from tilewright.support.errors import UnsupportedError

Tensor = torch.Tensor
Function = Callable[..., Any]


@dataclass(frozen=True)
class Node:
    """One node: its attributes, and the constants among its operands by place."""

    attributes: Mapping[str, Any]
    constants: Mapping[int, Tensor]
    outputs: int

    def __getitem__(self, name: str) -> Any:
        return self.attributes.get(name)

    def listed(self, place: int) -> list[Any]:
        """The numbers of a constant operand."""
        return self.constants[place].tolist()


def prepare_model(problem: Problem) -> Prepared:
    """All nodes, one after the other; constants are known beforehand."""
    graph = onnx.ModelProto.FromString(problem.model).graph
    known = {t.name: torch.from_numpy(numpy_helper.to_array(t).copy()) for t in graph.initializer}
    known |= {name: torch.from_numpy(array) for name, array in problem.inputs.items()}
    fixed = {tensor.name for tensor in graph.initializer}
    steps: list[tuple[Function, list[str], list[str]]] = []
    for node in graph.node:
        attributes = {found.name: helper.get_attribute_value(found) for found in node.attribute}
        constants = {k: known[name] for k, name in enumerate(node.input) if name in fixed}
        if node.op_type not in FUNCTIONS:
            raise UnsupportedError(f"The operator {node.op_type} has no function of PyTorch.")
        made = FUNCTIONS[node.op_type](Node(attributes, constants, len(node.output)))
        steps.append((made, [name for name in node.input if name], list(node.output)))
    results = [value.name for value in graph.output]

    def call() -> list[Tensor]:
        values = dict(known)
        for function, operands, names in steps:
            found = function(*(values[name] for name in operands))
            if len(names) == 1:
                values[names[0]] = found
            else:
                values.update(zip(names, found, strict=True))
        return [values[name] for name in results]

    return Prepared(call, lambda: tuple(tensor.numpy() for tensor in call()))


def prepare_attention(problem: Problem) -> Prepared:
    """The fused function on queries, keys, values and perhaps a mask."""
    tensors = {name: torch.from_numpy(array) for name, array in problem.inputs.items()}
    nodes = onnx.ModelProto.FromString(problem.model).graph.node
    # A mask that the model makes itself, or asks for, is the causal one.
    is_causal = any(
        node.op_type == "LessOrEqual" or any(a.name == "is_causal" and a.i for a in node.attribute)
        for node in nodes
    )
    call = partial(
        F.scaled_dot_product_attention,
        *(tensors[name] for name in "qkv"),
        attn_mask=tensors.get("mask"),
        is_causal=is_causal,
    )
    return Prepared(call, lambda: (call().numpy(),))


# ---------------------------------------------------------------- operators


def _plain(function: Function) -> Callable[[Node], Function]:
    return lambda node: function


def _quotient(a: Tensor, b: Tensor) -> Tensor:
    return torch.div(a, b, rounding_mode=None if a.is_floating_point() else "trunc")


def _reduction(function: Function) -> Callable[[Node], Function]:
    def make(node: Node) -> Function:
        axes, kept = tuple(node.listed(1)), node["keepdims"] == 1
        return lambda x, _: function(x, axes, keepdim=kept)

    return make


def _along(function: Function) -> Callable[[Node], Function]:
    def make(node: Node) -> Function:
        return lambda x, *_: function(x, node["axis"])

    return make


def _scan(node: Node) -> Function:
    axis = int(node.constants[1])
    if not node["reverse"]:
        return lambda x, _: torch.cumsum(x, axis)
    # Reversed and exclusive: what comes after each element.
    return lambda x, _: torch.flip(torch.cumsum(torch.flip(x, [axis]), axis), [axis]) - x


def _layer(node: Node) -> Function:
    shape, epsilon = list(node.constants[1].shape), node["epsilon"]
    return lambda x, scale, bias: F.layer_norm(x, shape, scale, bias, epsilon)


def _rms(node: Node) -> Function:
    shape, epsilon = list(node.constants[1].shape), node["epsilon"]
    return lambda x, scale: F.rms_norm(x, shape, scale, epsilon)


def _group(node: Node) -> Function:
    groups, epsilon = node["num_groups"], node["epsilon"]
    return lambda x, scale, bias: F.group_norm(x, groups, scale, bias, epsilon)


def _instance(node: Node) -> Function:
    epsilon = node["epsilon"]
    return lambda x, scale, bias: F.instance_norm(x, weight=scale, bias=bias, eps=epsilon)


def _batch(node: Node) -> Function:
    epsilon = node["epsilon"]
    return lambda x, s, b, m, v: F.batch_norm(x, m, v, s, b, eps=epsilon)


def _halved(pads: Sequence[int]) -> list[int]:
    return list(pads[: len(pads) // 2])


def _pooling(name: str) -> Callable[[Node], Function]:
    def make(node: Node) -> Function:
        kernel = node["kernel_shape"]
        function = getattr(F, f"{name}_pool{len(kernel)}d")
        pads, strides = _halved(node["pads"] or [0] * 2 * len(kernel)), node["strides"]
        if name == "max":
            return lambda x: function(x, kernel, strides, pads)
        counted = node["count_include_pad"] == 1
        return lambda x: function(x, kernel, strides, pads, False, counted)

    return make


def _convolution(node: Node) -> Function:
    kernel = node["kernel_shape"]
    function, rank = getattr(F, f"conv{len(kernel)}d"), len(kernel)
    strides, dilations = node["strides"] or [1] * rank, node["dilations"] or [1] * rank
    pads, groups = _halved(node["pads"]), node["group"]
    return lambda x, w, b=None: function(x, w, b, strides, pads, dilations, groups)


def _padding(node: Node) -> Function:
    listed, mode = node.listed(1), node["mode"].decode()
    rank = len(listed) // 2
    pairs = list(zip(listed[:rank], listed[rank:], strict=True))
    if mode == "constant":
        flat = [side for pair in reversed(pairs) for side in pair]
        return lambda x, _: F.pad(x, flat)
    # Other modes take the last axes alone.
    moved = [axis for axis, pair in enumerate(pairs) if any(pair)]
    order = [axis for axis in range(rank) if axis not in moved] + moved
    back = [order.index(axis) for axis in range(rank)]
    flat = [side for axis in reversed(moved) for side in pairs[axis]]
    own = "replicate" if mode == "edge" else mode
    return lambda x, _: F.pad(x.permute(order), flat, own).permute(back).contiguous()


def _resizing(node: Node) -> Function:
    factors = [float(factor) for factor in node.listed(2)[2:]]
    if node["mode"] == b"nearest":
        return lambda x, _: F.interpolate(x, scale_factor=factors)
    aligned = node["coordinate_transformation_mode"] == b"align_corners"
    return lambda x, _: F.interpolate(
        x, scale_factor=factors, mode="bilinear", align_corners=aligned
    )


def _gathering(node: Node) -> Function:
    axis = node["axis"]
    if axis == 0:
        return lambda x, indices: F.embedding(indices, x)
    return lambda x, indices: torch.index_select(x, axis, indices)


def _slicing(node: Node) -> Function:
    (start,), (axis,), (step,) = node.listed(1), node.listed(3), node.listed(4)
    index = (*(slice(None) for _ in range(axis)), slice(start, None, step))
    return lambda x, *_: x[index].contiguous()


def _scattering(node: Node) -> Function:
    axis = node["axis"]
    if node["reduction"] == b"add":
        return lambda x, indices, updates: torch.scatter_add(x, axis, indices, updates)
    return lambda x, indices, updates: torch.scatter(x, axis, indices, updates)


def _replaced_rows(x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    return x.index_copy(0, indices[:, 0], updates)


def _splitting(node: Node) -> Function:
    axis, count = node["axis"], node.outputs
    # The others give parts of their own; a chunk of the first axis would be a view of the operand.
    return lambda x: [
        part.clone(memory_format=torch.contiguous_format) for part in torch.chunk(x, count, axis)
    ]


def _joining(node: Node) -> Function:
    return lambda *parts: torch.cat(parts, node["axis"])


def _cast(node: Node) -> Function:
    dtype = torch.from_numpy(helper.tensor_dtype_to_np_dtype(node["to"]).type([0])).dtype
    return lambda x: x.to(dtype)


def _one_hot(node: Node) -> Function:
    axis, depth = node["axis"], int(node.constants[1])

    def run(indices: Tensor, *_: Tensor) -> Tensor:
        hot = F.one_hot(indices, depth).to(torch.float32)
        return hot if axis == -1 else hot.movedim(-1, axis).contiguous()

    return run


def _triangle(node: Node) -> Function:
    function, k = (torch.triu if node["upper"] else torch.tril), int(node.constants.get(1, 0))
    return lambda x, *_: function(x, k)


def _expansion(node: Node) -> Function:
    asked = tuple(node.listed(1))
    return lambda x, _: x.expand(torch.broadcast_shapes(x.shape, asked)).contiguous()


def _gelu(node: Node) -> Function:
    return partial(F.gelu, approximate=(node["approximate"] or b"none").decode())


FUNCTIONS: Mapping[str, Callable[[Node], Function]] = {
    "Abs": _plain(torch.abs),
    "Add": _plain(torch.add),
    "ArgMax": _along(torch.argmax),
    "ArgMin": _along(torch.argmin),
    "AveragePool": _pooling("avg"),
    "BatchNormalization": _batch,
    "Cast": _cast,
    "Clip": _plain(torch.clamp),
    "Concat": _joining,
    "Conv": _convolution,
    "Cos": _plain(torch.cos),
    "CumSum": _scan,
    "Div": _plain(_quotient),
    "Erf": _plain(torch.erf),
    "Exp": _plain(torch.exp),
    "Expand": _expansion,
    "Gather": _gathering,
    "GatherElements": lambda node: lambda x, indices: torch.gather(x, node["axis"], indices),
    "GatherND": _plain(lambda x, indices: x.index_select(0, indices[:, 0])),
    "Gelu": _gelu,
    "GlobalAveragePool": _plain(partial(F.adaptive_avg_pool2d, output_size=1)),
    "GlobalMaxPool": _plain(partial(F.adaptive_max_pool2d, output_size=1)),
    "Greater": _plain(torch.gt),
    "GroupNormalization": _group,
    "HardSwish": _plain(F.hardswish),
    "InstanceNormalization": _instance,
    "LayerNormalization": _layer,
    "LeakyRelu": lambda node: partial(F.leaky_relu, negative_slope=node["alpha"]),
    "Log": _plain(torch.log),
    "LogSoftmax": _along(torch.log_softmax),
    "MaxPool": _pooling("max"),
    "Mod": lambda node: torch.fmod if node["fmod"] else torch.remainder,
    "Mul": _plain(torch.mul),
    "OneHot": _one_hot,
    "Pad": _padding,
    "Pow": _plain(torch.pow),
    "RMSNormalization": _rms,
    "Reciprocal": _plain(torch.reciprocal),
    "ReduceL2": _reduction(lambda x, axes, keepdim: torch.linalg.vector_norm(x, 2, axes, keepdim)),
    "ReduceLogSumExp": _reduction(torch.logsumexp),
    "ReduceMax": _reduction(torch.amax),
    "ReduceMean": _reduction(torch.mean),
    "ReduceSum": _reduction(torch.sum),
    "Relu": _plain(torch.relu),
    "Reshape": _plain(lambda x, shape: x.reshape([s or x.shape[k] for k, s in enumerate(shape)])),
    "Resize": _resizing,
    "ScatterElements": _scattering,
    "ScatterND": _plain(_replaced_rows),
    "Shape": _plain(lambda x: x.shape),
    "Sigmoid": _plain(torch.sigmoid),
    "Sin": _plain(torch.sin),
    "Slice": _slicing,
    "Softmax": _along(torch.softmax),
    "Softplus": _plain(F.softplus),
    "Split": _splitting,
    "Sqrt": _plain(torch.sqrt),
    "Sub": _plain(torch.sub),
    "Tanh": _plain(torch.tanh),
    "Tile": _plain(lambda x, repeats: x.repeat(repeats.tolist())),
    "Transpose": lambda node: lambda x: x.permute(node["perm"]).contiguous(),
    "Trilu": _triangle,
    "Where": _plain(torch.where),
}
