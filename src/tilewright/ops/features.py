"""Operators of the domain ai.onnx.ml on matrices of features: rows are samples, columns features.

Their parameters are attributes. Those on strings and maps, and trees, stay with the reference.
Start with :func:`_matrix`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, node
from tilewright.ir.primitives import ArgReduce
from tilewright.ops.build import Builder, array, cast
from tilewright.ops.contributed import standard
from tilewright.ops.linear import matmul
from tilewright.ops.operands import along
from tilewright.ops.record import NoRule, Rule, RuleContext, operator
from tilewright.ops.types import require_native
from tilewright.support.errors import InvalidModelError

Array = np.ndarray[Any, Any]
DOMAIN = "ai.onnx.ml"
LEAST_NORM = 1e-30  # what rows of zeros are divided by
MOST_KEYS = 256  # every element is compared with each; of more, a dictionary takes less


def _features(name: str) -> Callable[[Rule], Rule]:
    return operator(name, domain=DOMAIN)


def _matrix(context: RuleContext) -> tuple[Builder, Node]:
    """A builder and operand 0, which must have a row for each sample."""
    require_native(context)
    x = context.operand(0)
    if x.rank != 2:
        raise NoRule(f"data of {x.rank} axes", where=context.where)
    return Builder(context), x


def _numbers(context: RuleContext, name: str, kind: str = "float32") -> Array:
    """A list of numbers, of none where the attribute is missing."""
    return np.asarray(context.attributes.get(name, ()), dtype=kind).reshape(-1)


def _floats(x: Node) -> Node:
    """``x`` in the type that results are computed in."""
    return x if x.dtype is DType.FLOAT64 else cast(x, DType.FLOAT32)


def _columns(b: Builder, values: Array, x: Node, what: str) -> Node:
    """A value for each column of ``x``, or one for all of them."""
    made = array(values, x.dtype)
    if values.size == 1:
        return b.expand(made, x.shape)
    return along(b, made, x.shape, x.rank - 1, what)


@_features("ArrayFeatureExtractor")
def _array_feature_extractor(context: RuleContext) -> Sequence[Node]:
    """Elements of the last axis; those of a vector become a row."""
    require_native(context)
    b, x, indices = Builder(context), context.operand(0), context.operand(1)
    flat = standard(context, "Reshape", [indices, array([-1], DType.INT64)], {})[0]
    found = standard(context, "Gather", [x, flat], {"axis": x.rank - 1})[0]
    return [b.unsqueeze(found, [0]) if x.rank == 1 else found]


@_features("Binarizer")
def _binarizer(context: RuleContext) -> Sequence[Node]:
    require_native(context)
    b, x = Builder(context), context.operand(0)
    if not x.dtype.is_float:
        raise NoRule(f"data of type {x.dtype.value}", where=context.where)
    return [cast(b.map("less", context.number("threshold", 0.0), x), x.dtype)]


@_features("Scaler")
def _scaler(context: RuleContext) -> Sequence[Node]:
    """(x - offset) * scale, in float32 whatever the data are."""
    require_native(context)
    b, x = Builder(context), _floats(context.operand(0))
    offset, scale = (_numbers(context, name) for name in ("offset", "scale"))
    if not x.rank or not offset.size or not scale.size:
        raise InvalidModelError("Scaler needs offsets and scales", where=context.where)
    moved = b.subtract(x, _columns(b, offset, x, "the offset"))
    return [cast(b.multiply(moved, _columns(b, scale, x, "the scale")), DType.FLOAT32)]


@_features("Normalizer")
def _normalizer(context: RuleContext) -> Sequence[Node]:
    """Rows divided by their norm, in float32 whatever the data are."""
    require_native(context)
    b, x = Builder(context), _floats(context.operand(0))
    if not x.rank:
        raise InvalidModelError("Normalizer needs data with an axis", where=context.where)
    sizes, last = b.map("absolute", x), [x.rank - 1]
    norm = context.text("norm", "MAX")
    if norm == "MAX":
        sizes = b.maximum(b.reduce("maximum", sizes, last, keep=True), LEAST_NORM)
    elif norm == "L1":
        sizes = b.maximum(b.reduce("sum", sizes, last, keep=True), LEAST_NORM)
    elif norm == "L2":
        squared = b.reduce("sum", b.multiply(x, x), last, keep=True)
        sizes = b.maximum(b.map("square_root", squared), LEAST_NORM)
    else:
        raise InvalidModelError(f"there is no norm {norm!r}", where=context.where)
    return [cast(b.divide(x, sizes), DType.FLOAT32)]


@_features("Imputer")
def _imputer(context: RuleContext) -> Sequence[Node]:
    """A value of its column in the place of every missing one."""
    b, x = _matrix(context)
    if x.dtype.is_float:
        values, missing = _numbers(context, "imputed_value_floats"), "replaced_value_float"
        replaced: float = context.number(missing, 0.0)
    else:
        values = _numbers(context, "imputed_value_int64s", "int64")
        replaced = context.integer("replaced_value_int64", 0)
    if not values.size:
        raise InvalidModelError("Imputer has no values of the data's type", where=context.where)
    is_missing = b.map("is_nan", x) if np.isnan(replaced) else b.map("equal", x, replaced)
    return [b.select(is_missing, _columns(b, values, x, "what is imputed"), x)]


@_features("FeatureVectorizer")
def _feature_vectorizer(context: RuleContext) -> Sequence[Node]:
    """Columns of all operands side by side, each with as many as it is said to have."""
    require_native(context)
    b = Builder(context)
    wanted = context.integer_list("inputdimensions")
    parts: list[Node] = []
    for index, count in zip(range(len(context.inputs)), wanted, strict=False):
        part = cast(context.operand(index), DType.FLOAT32)
        part = b.unsqueeze(part, [1]) if part.rank == 1 else part
        if part.rank != 2 or not part.shape[1].is_constant:
            raise NoRule("the number of features is not known", where=context.where)
        kept = min(count, part.shape[1].value)
        part = b.slice_axis(part, 1, 0, kept)
        parts.append(b.pad(part, [0, 0], [0, count - kept]))
    if not parts:
        raise InvalidModelError("FeatureVectorizer has no operands", where=context.where)
    return [b.concat(parts, 1)]


@_features("OneHotEncoder")
def _one_hot_encoder(context: RuleContext) -> Sequence[Node]:
    """A column for each category, in which the elements of that category have a 1."""
    require_native(context)
    b, x = Builder(context), context.operand(0)
    categories = _numbers(context, "cats_int64s", "int64")
    if not x.dtype.is_integer or not categories.size or not context.integer("zeros", 1):
        raise NoRule("other categories than integers, all of them known", where=context.where)
    wide = b.unsqueeze(cast(x, DType.INT64), [x.rank])
    return [cast(b.map("equal", wide, array(categories, DType.INT64)), DType.FLOAT32)]


_KEYS = (("keys_int64s", DType.INT64), ("keys_floats", DType.FLOAT32), ("keys_tensor", None))
_VALUES = (
    ("values_int64s", "default_int64", DType.INT64, -1),
    ("values_floats", "default_float", DType.FLOAT32, -0.0),
    ("values_tensor", "default_tensor", None, None),
)


@_features("LabelEncoder")
def _label_encoder(context: RuleContext) -> Sequence[Node]:
    """The value of every key, and the default of what is no key."""
    require_native(context)
    b, x = Builder(context), context.operand(0)
    keys, values = _keys(context), _values(context)
    if keys.size > MOST_KEYS:
        raise NoRule(f"{keys.size} keys", where=context.where)
    place = array(np.arange(1, keys.size + 1), DType.INT64)
    known = b.map("equal", b.unsqueeze(x, [x.rank]), array(keys, x.dtype))
    found = b.reduce("maximum", b.select(known, place, 0), [x.rank])
    return [b.gather(array(values, DType.of(values.dtype)), found, 0)]


def _keys(context: RuleContext) -> Array:
    """Numbers, of the type of the data; a table of strings or of NaNs has no rule."""
    dtype = context.operand(0).dtype
    for name, kind in _KEYS:
        if name in context.attributes:
            keys = np.asarray(context.attributes[name]).reshape(-1)
            fits = kind in (None, dtype) and keys.dtype.kind in "if" and not np.isnan(keys).any()
            if fits and keys.size:
                return keys.astype(dtype.numpy)
    raise NoRule("keys that are no numbers", where=context.where)


def _values(context: RuleContext) -> Array:
    """The default, and then the values in the order of their keys."""
    for name, default, kind, usual in _VALUES:
        if name in context.attributes:
            values = np.asarray(context.attributes[name]).reshape(-1)
            other = np.asarray(context.attributes.get(default, usual)).reshape(-1)
            if values.dtype.kind in "if" and other.dtype.kind in "if" and other.size == 1:
                made = np.concatenate([other.astype(values.dtype), values])
                return made if kind is None else made.astype(kind.numpy)
    raise NoRule("values that are no numbers", where=context.where)


def _linear(b: Builder, x: Node, count: int) -> Node:
    """``count`` weighted sums of the columns of each row, with what is added to each."""
    weights = _numbers(b.context, "coefficients").reshape(count, -1).T
    scores, added = matmul(b, x, array(weights, x.dtype)), _numbers(b.context, "intercepts")
    return b.add(scores, array(added, x.dtype)) if added.size else scores


def _transformed(context: RuleContext, scores: Node) -> Node:
    """Scores as ``post_transform`` wants them."""
    name = context.text("post_transform", "NONE")
    if name == "NONE":
        return scores
    if name == "LOGISTIC":
        return standard(context, "Sigmoid", [scores], {})[0]
    if name == "SOFTMAX":
        return standard(context, "Softmax", [scores], {"axis": 1})[0]
    raise NoRule(f"scores are transformed by {name}", where=context.where)


@_features("LinearRegressor")
def _linear_regressor(context: RuleContext) -> Sequence[Node]:
    b, x = _matrix(context)
    scores = _linear(b, _floats(x), context.integer("targets", 1))
    return [cast(_transformed(context, scores), DType.FLOAT32)]


@_features("LinearClassifier")
def _linear_classifier(context: RuleContext) -> Sequence[Node]:
    """The class with the highest score, and the scores; that of one of two classes tells both."""
    b, x = _matrix(context)
    classes = _numbers(context, "classlabels_ints", "int64")
    if classes.size < 2:
        raise NoRule("labels that are no integers", where=context.where)
    count = _numbers(context, "intercepts").size
    if count != classes.size and (count, classes.size) != (1, 2):
        raise NoRule(f"{count} intercepts of {classes.size} classes", where=context.where)
    scores = _linear(b, _floats(x), count)
    if count == 1:
        scores = b.concat([b.map("negate", scores), scores], 1)
    best = node(ArgReduce("maximum", 1, last=False), scores)
    scores = cast(_transformed(context, scores), DType.FLOAT32)
    return [b.gather(array(classes, DType.INT64), best, 0), scores]


@_features("SVMRegressor")
def _svm_regressor(context: RuleContext) -> Sequence[Node]:
    """A weighted sum of a function of each row with every support vector."""
    b, x = _matrix(context)
    x = _floats(x)
    weights, added = (_numbers(context, name) for name in ("coefficients", "rho"))
    count = context.integer("n_supports", 0)
    if count:
        vectors = array(_numbers(context, "support_vectors").reshape(count, -1), x.dtype)
        x = _compared(b, x, vectors)
    scores = matmul(b, x, array(weights.reshape(-1, 1), x.dtype))
    scores = b.add(scores, float(added[0])) if added.size else scores
    if context.integer("one_class", 0):
        scores = b.select(b.map("less", 0.0, scores), array(1, x.dtype), -1.0)
    return [cast(_transformed(context, scores), DType.FLOAT32)]


def _compared(b: Builder, x: Node, vectors: Node) -> Node:
    """The function that ``kernel_type`` names of every row with every vector."""
    kernel = b.context.text("kernel_type", "LINEAR")
    gamma, zero, degree = (*map(float, _numbers(b.context, "kernel_params")), 0.0, 0.0, 0.0)[:3]
    if kernel == "RBF":  # not by squares and products, which lose what two vectors differ by
        apart = b.subtract(b.unsqueeze(x, [1]), b.unsqueeze(vectors, [0]))
        squared = b.reduce("sum", b.multiply(apart, apart), [2])
        return b.map("exponential", b.multiply(squared, -gamma))
    products = standard(b.context, "Gemm", [x, vectors], {"transB": 1})[0]
    if kernel == "LINEAR":
        return products
    moved = b.add(b.multiply(products, gamma), zero)
    if kernel == "POLY":
        return standard(b.context, "Pow", [moved, array(degree, x.dtype)], {})[0]
    if kernel == "SIGMOID":
        return standard(b.context, "Tanh", [moved], {})[0]
    raise InvalidModelError(f"there is no kernel {kernel!r}", where=b.context.where)
