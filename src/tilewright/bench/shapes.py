"""Which shapes to check a model at: the edges of every dimension, random ones, or those named.

``"edge,random:20"`` or ``"batch=1,seq=5;batch=2,seq=0"``, or both separated by semicolons. Edges
are where kernels go wrong: 0, 1, one below, at and one above a tile, primes, the largest size that
the budget of memory and time allows. May import support, shape and runtime. Start with
:func:`choose_shapes`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.bench.inputs import parse_sizes
from tilewright.runtime.model import CompiledModel
from tilewright.runtime.program import NATIVE_ITEM_SIZES, Dimension
from tilewright.shape import parse
from tilewright.support.errors import DimensionError, InputError, TilewrightError

Sizes = dict[str, int]

# Zero and one, small sizes, around the tiles of 6 and 16 rows and the vectors of 4 to 64 elements,
# and primes that no tile divides.
EDGES = (0, 1, 2, 5, 6, 7, 15, 16, 17, 31, 32, 33, 63, 64, 65, 97)
# The size of the other dimensions while one goes through its edges: first axes are few examples,
# the rest gets the first size that the model takes.
_EXAMPLES = 3
_PLAIN = (33, 64, 224, 16, 7, 2)
OPEN_END = 1 << 16  # up to which a dimension is tried that has no largest size
_DRAWS = 20  # of a shape, until one is within the budget
# For each byte of the inputs of a shape that cannot be estimated.
_REFUSED_BYTES, _REFUSED_SECONDS = 32, 1e-6


@dataclass(frozen=True)
class Budget:
    """What one call may need: bytes beside the constants, and estimated seconds on one thread."""

    bytes: int = 1 << 30
    seconds: float = 1.0


def choose_shapes(
    model: CompiledModel, text: str, *, seed: int = 0, budget: Budget | None = None
) -> tuple[Sizes, ...]:
    """The shapes that ``text`` asks for, each once, in order.

    Raises InputError for text that asks for nothing known.
    """
    limit = budget or Budget()
    chosen: list[Sizes] = []
    for piece in filter(None, (part.strip() for part in text.split(";"))):
        if "=" in piece:
            chosen.append(_named(model, piece))
            continue
        for word in (part.strip() for part in piece.split(",")):
            name, _, count = word.partition(":")
            if name == "edge" and not count:
                chosen += edge_shapes(model, limit)
            elif name == "random" and count.isdecimal():
                chosen += random_shapes(model, int(count), seed, limit)
            else:
                raise InputError(
                    f"{word!r} does not say which shapes to take",
                    where=f"shapes {text!r}",
                    hint='Write for example "edge,random:20" or "batch=1,seq=5;batch=2,seq=7"',
                )
    unique = {tuple(sizes.items()): sizes for sizes in chosen}
    if not unique:
        raise InputError("No shape is asked for", hint='Write for example "edge,random:20"')
    return tuple(unique.values())


def _named(model: CompiledModel, piece: str) -> Sizes:
    given = parse_sizes(piece)
    check_sizes(model, given)
    return {dimension.name: given[dimension.name] for dimension in model.dimensions}


def check_sizes(model: CompiledModel, given: Mapping[str, int]) -> None:
    """Raise DimensionError unless ``given`` has a size in its range for every dimension."""
    text = ",".join(f"{name}={size}" for name, size in given.items())
    names = [dimension.name for dimension in model.dimensions]
    wrong = [name for name in given if name not in names]
    missing = [name for name in names if name not in given]
    if wrong or missing:
        problem = f"there is no dimension {wrong[0]}" if wrong else f"{missing[0]} has no size"
        raise DimensionError(
            f"The shape {text!r} does not fit the model: {problem}",
            hint=f"Give a size for each of {', '.join(names) or 'no dimension'}",
        )
    for dimension in model.dimensions:
        size = given[dimension.name]
        if _fitted(dimension, size) != size:
            every = f" in steps of {dimension.multiple_of}" if dimension.multiple_of > 1 else ""
            end = "" if dimension.high is None else str(dimension.high)
            raise DimensionError(
                f"{dimension.name}={size} is outside of the range {dimension.low}..{end}{every}",
                where=f"shape {text!r}",
                hint="Give a size in the range, or compile the model for a wider one with --dim",
            )


def edge_shapes(model: CompiledModel, budget: Budget) -> list[Sizes]:
    """Every edge of each dimension beside plain sizes of the others, and edges of all at once."""
    dimensions = model.dimensions
    if not dimensions:
        return [{}]
    base = plain_sizes(model, budget)
    chosen: list[Sizes] = [
        {d.name: _fitted(d, edge) for d in dimensions} for edge in (0, 1, 2) if len(dimensions) > 1
    ]
    for dimension in dimensions:
        sizes = dict.fromkeys(_fitted(dimension, edge) for edge in EDGES)
        largest = _largest(model, base, dimension, budget)
        chosen += [{**base, dimension.name: size} for size in (*sizes, largest)]
    return [sizes for sizes in chosen if _is_affordable(model, sizes, budget)]


def shapes_along(
    model: CompiledModel, base: Mapping[str, int], of: Dimension, budget: Budget
) -> list[Sizes]:
    """The powers of two of one dimension that it may have, within the budget, and its base."""
    sizes = {_fitted(of, 1 << power) for power in range(17)} | {base[of.name]}
    shapes = [{**base, of.name: size} for size in sorted(sizes) if size > 0]
    return [shape for shape in shapes if _is_affordable(model, shape, budget)]


def random_shapes(model: CompiledModel, count: int, seed: int, budget: Budget) -> list[Sizes]:
    """``count`` seeded shapes, evenly distributed in the logarithm of each size."""
    generator = np.random.default_rng(seed)
    chosen: list[Sizes] = []
    for _ in range(count):
        for _ in range(_DRAWS):
            sizes = {d.name: _draw(generator, d) for d in model.dimensions}
            if _is_affordable(model, sizes, budget):
                chosen.append(sizes)
                break
    return chosen


def _draw(generator: np.random.Generator, dimension: Dimension) -> int:
    low, high = dimension.low, _high(dimension)
    value = math.exp(generator.uniform(math.log(low + 1), math.log(high + 2))) - 1
    return _fitted(dimension, int(value))


def _high(dimension: Dimension) -> int:
    return OPEN_END if dimension.high is None else dimension.high


def _fitted(dimension: Dimension, size: int) -> int:
    """The nearest size that the dimension may have, rounded up to its multiple where that fits."""
    step, high = dimension.multiple_of, _high(dimension)
    lowest, highest = -(-dimension.low // step) * step, high // step * step
    return min(max(-(-size // step) * step, lowest), highest)


def plain_sizes(
    model: CompiledModel, budget: Budget, examples: int = _EXAMPLES, tried: Sequence[int] = _PLAIN
) -> Sizes:
    """A shape that the model accepts within the budget, with so many examples.

    The other sizes are the first of those ``tried`` that is possible.
    """
    first_axes = {spec.shape[0] for spec in model.inputs if len(spec.shape) > 1}

    def plain(size: int) -> Sizes:
        few = {d.name: examples if d.name in first_axes else size for d in model.dimensions}
        return {d.name: _fitted(d, few[d.name]) for d in model.dimensions}

    for size in tried:
        if _is_accepted(model, plain(size)) and _is_affordable(model, plain(size), budget):
            return plain(size)
    return plain(tried[-1])


def _largest(model: CompiledModel, base: Mapping[str, int], of: Dimension, budget: Budget) -> int:
    """The largest size of one dimension within the budget, found by halving."""

    def fits(size: int) -> bool:
        return _is_affordable(model, {**base, of.name: _fitted(of, size)}, budget)

    good, bad = base[of.name], _high(of) + 1
    while bad - good > 1:
        middle = _high(of) if bad > _high(of) else (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return _fitted(of, good)


def _is_accepted(model: CompiledModel, sizes: Sizes) -> bool:
    try:
        model.memory(**sizes)
    except TilewrightError:
        return False
    return True


def _is_affordable(model: CompiledModel, sizes: Sizes, budget: Budget) -> bool:
    """Whether a call stays within the budget."""
    needed = estimated_cost(model, sizes)
    return needed.bytes <= budget.bytes and needed.seconds <= budget.seconds


def estimated_cost(model: CompiledModel, sizes: Mapping[str, int]) -> Budget:
    """What a call needs, beside the constants.

    Sizes of 0 count as 1: nothing to compute for the model may still be much for a reference. Where
    the model refuses the shape, it is guessed from the inputs what a reference may need.
    """
    known = {name: max(size, 1) for name, size in sizes.items()}
    try:
        memory = model.memory(**known)
        work = sum(kernel.work for kernel in model.explain(**known))
    except DimensionError:
        size = _input_bytes(model, known)
        return Budget(_REFUSED_BYTES * size, _REFUSED_SECONDS * size)
    except TilewrightError:
        return Budget(1 << 62, math.inf)
    return Budget(memory.total - memory.constants, work / 1e9)


def _input_bytes(model: CompiledModel, sizes: Mapping[str, int]) -> int:
    extents = [[parse(extent).evaluate(sizes) for extent in spec.shape] for spec in model.inputs]
    widths = [NATIVE_ITEM_SIZES.get(spec.dtype, 1) for spec in model.inputs]
    return sum(width * math.prod(shape) for width, shape in zip(widths, extents, strict=True))
