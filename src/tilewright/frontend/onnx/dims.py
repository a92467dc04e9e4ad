"""Dimensions of graph inputs: their names, ranges and symbols.

A named dimension (``dim_param``) is a symbol; an expression over other names stays one; any other
text is turned into a name, and so is one that begins with ``_``, as names of the compiler's own do;
a size without a name is called after its input and axis. Ranges come from the caller, from demands
of the model, or are 0..``DEFAULT_HIGH``. Start with :class:`DimensionTable`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import EllipsisType
from typing import Any, SupportsIndex, cast

from tilewright.frontend.onnx.report import DimensionReport
from tilewright.shape import Expr, Scope, constant, parse
from tilewright.support.arguments import as_integer, show, whole_number
from tilewright.support.errors import DimensionError, InvalidModelError

DEFAULT_HIGH = 1 << 16  # of dimensions without a range
_NAME = re.compile(r"[^\W\d_]\w*\Z")
_WORDS = re.compile(r"\w+")
_RESERVED = re.compile(r"_[\w.]*\Z")  # index variables and sizes have such names


def _is_name(text: str) -> bool:
    """Whether a text can be the name of a symbol: a letter of any script, then letters and digits.

    As in Python, so that it can be the name of an argument as well.
    """
    return _NAME.match(text) is not None and text.isidentifier()


@dataclass(frozen=True, init=False)
class Dim:
    """The declared range of a dimension, both ends included.

    ``Dim(1, 64)`` has two ends, ``Dim(1, None)`` is open above and ``Dim(None, 64)`` below, and
    ``Dim(5)`` is the one size 5. ``Dim()`` is open at both ends. An open end lies where the model
    sets a limit, such as at its last position, and at 0 or 65536 otherwise.
    ``Dim(0, 512, multiple_of=8)`` has the multiples of 8 alone.

    ``Dim(0, 512, ragged="batch")`` is the length of sequences that each have their own, one for
    every entry of the dimension "batch".
    """

    low: int
    high: int
    multiple_of: int
    ragged: str | None
    is_open: bool = field(init=False, compare=False, repr=False)

    def __init__(
        self,
        low: SupportsIndex | None = None,
        high: SupportsIndex | EllipsisType | None = ...,
        multiple_of: SupportsIndex = 1,
        ragged: str | None = None,
    ) -> None:
        factor = whole_number("multiple_of", multiple_of, 1, DimensionError)
        if high is ... and low is not None and factor != 1:
            raise DimensionError(
                "A dimension that is a multiple of a number needs both ends",
                hint=f"Write Dim({show(low)}, None, {factor}) for an open end",
            )
        if high is ...:
            high = low
        first = 0 if low is None else whole_number("low", low, 0, DimensionError)
        last = DEFAULT_HIGH
        if high is not None:
            last = whole_number("high", high, 0, DimensionError)
        if first > last:
            raise DimensionError(
                f"A dimension cannot have the range {first}..{last}",
                hint="Name the largest size, which is 65536 unless given"
                if high is None
                else "Give 0 <= low <= high",
            )
        object.__setattr__(self, "low", first)
        object.__setattr__(self, "high", last)
        object.__setattr__(self, "multiple_of", factor)
        object.__setattr__(self, "is_open", high is None)
        object.__setattr__(self, "ragged", ragged)


End = SupportsIndex | None
DimLike = Dim | SupportsIndex | range | tuple[End, End] | tuple[End, End, SupportsIndex]


def as_dims(given: object) -> dict[str, Dim]:
    """Ranges by name from what users write: see :func:`as_dim`. Raises ``DimensionError``."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise DimensionError(
            f"'dims' is {show(given)}, which is no mapping",
            hint='Give names and ranges, such as dims={"batch": (1, 64)}',
        )
    ranges: dict[str, Dim] = {}
    for name, extent in cast("Mapping[object, object]", given).items():
        if not isinstance(name, str):
            raise DimensionError(
                f"'dims' names a dimension {show(name)}, which is no text",
                hint='Give names and ranges, such as dims={"batch": (1, 64)}',
            )
        ranges[name] = as_dim(name, extent)
    return ranges


def as_dim(name: str, given: object) -> Dim:
    """The range that a ``Dim``, a size, a Python range, or a tuple of ends and a divisor means."""
    where = f'dimension "{name}"'
    try:
        match given:
            case Dim():
                return given
            case range():
                return _from_range(given)
            case (_, _) | (_, _, _) if isinstance(given, tuple | list):
                return Dim(*cast("tuple[Any, ...]", given))
            case _ if as_integer(given) is not None:
                return Dim(cast("SupportsIndex", given))
            case _:
                raise DimensionError(
                    f"{show(given)} is not a range",
                    hint="Give tilewright.Dim(low, high, multiple_of), (low, high), or one size",
                )
    except DimensionError as error:
        raise DimensionError(error.message, where=where, hint=error.hint) from None


def _from_range(given: range) -> Dim:
    """The sizes that a Python range lists; its end is not one of them."""
    if not given or given.step < 1:
        raise DimensionError(f"{given} lists no sizes", hint="Write range(low, high + 1)")
    if len(given) > 1 and given.start % given.step:
        raise DimensionError(
            f"The sizes of {given} are not the multiples of {given.step}",
            hint=f"Start at a multiple of {given.step}",
        )
    return Dim(given.start, given[-1], given.step if len(given) > 1 else 1)


@dataclass(frozen=True)
class Implied:
    """A range that a demand of the model implies, with the demand as a sentence."""

    dim: Dim
    reason: str


Size = int | str | None  # a constant, the model's text, or nothing


class DimensionTable:
    """Turns the sizes that a model states for its inputs into expressions.

    Call :meth:`survey` with every input, then :meth:`settle`, then :meth:`report`.
    """

    def __init__(
        self, scope: Scope, given: Mapping[str, Dim], implied: Mapping[str, Implied]
    ) -> None:
        self.scope = scope
        self.given = dict(given)
        self.implied = dict(implied)
        self._inputs: list[tuple[str, tuple[Size, ...]]] = []
        self._by_text: dict[str, Expr] = {}
        self._names: dict[str, str] = {}  # symbol name -> the model's text
        self._stated: set[str] = set()  # texts and the words in them, which unnamed sizes leave
        self._static: dict[str, int] = {}
        self._places: dict[str, list[tuple[str, int]]] = {}
        self._origins: dict[str, tuple[Dim, str, str]] = {}

    def survey(self, name: str, sizes: tuple[Size, ...]) -> None:
        """Take note of an input; all inputs come before :meth:`settle`."""
        self._inputs.append((name, sizes))

    def settle(self) -> dict[str, tuple[Expr, ...]]:
        """The symbolic shape of every input; declares the symbols.

        Raises ``DimensionError`` when a range was given for what is not a dimension of the model.
        """
        texts = [s for _, sizes in self._inputs for s in sizes if isinstance(s, str)]
        self._stated.update(texts, *map(_WORDS.findall, texts))
        for text in texts:
            if _is_name(text):
                self._declare(text, text)
        for text in texts:
            if _RESERVED.match(text) and text not in self._by_text:
                self._declare(self._free_name(text), text)
        shapes = {
            name: tuple(self._size(name, axis, size) for axis, size in enumerate(sizes))
            for name, sizes in self._inputs
        }
        self._check_given()
        return shapes

    def _size(self, name: str, axis: int, size: Size) -> Expr:
        if isinstance(size, int):
            if size < 0:
                raise InvalidModelError(
                    f"the size {size} is stated for an axis of the input",
                    where=f'input "{name}", axis {axis}',
                    hint="Give the axis a name or no size in the model, if it is dynamic",
                )
            self._static[f"{name}_{axis}"] = size
            return constant(size)
        text = size if size else self._own_name(name, axis)
        expression = self._by_text.get(text)
        if expression is None:
            expression = self._expression(text) if size else None
            if expression is None:
                expression = self._declare(self._free_name(text), text)
            self._by_text[text] = expression
        for symbol_name in expression.free_symbols:
            self._places.setdefault(symbol_name, []).append((name, axis))
        return expression

    def _own_name(self, name: str, axis: int) -> str:
        """What a size without a name is called: after its input and axis, and as no other is."""
        own, number = f"{name}_{axis}", 2
        while own in self._stated:
            own, number = f"{name}_{axis}_{number}", number + 1
        self._stated.add(own)
        return own

    def _expression(self, text: str) -> Expr | None:
        """The text read as an expression whose symbols the inputs determine, or None."""
        try:
            expression = parse(text)
        except DimensionError:
            return None
        texts = {s: self._by_text[s] for s in expression.free_symbols if s in self._by_text}
        expression = expression.substitute(texts)
        unknown = [s for s in expression.free_symbols if s not in self._names]
        if not expression.free_symbols or len(unknown) > 1 or any(map(_RESERVED.match, unknown)):
            return None
        if unknown:
            # One new symbol can be read back from the size only if the size is linear in it.
            name = unknown[0]
            values = [expression.substitute({name: v}) for v in (0, 1, 2)]
            slope = values[1] - values[0]
            if not slope.is_constant or slope.value == 0 or values[2] - values[1] is not slope:
                return None
            self._declare(name, name)
        return expression

    def _free_name(self, text: str) -> str:
        stem = re.sub(r"\W+", "_", text).strip("_") or "dim"
        if not _is_name(stem):
            stem = f"dim_{stem}"
        name, number = stem, 1
        while name in self._names:
            name, number = f"{stem}_{number}", number + 1
        return name

    def _declare(self, name: str, text: str) -> Expr:
        if name not in self._names:
            dim, origin, reason = self._range(text, name)
            self._names[name] = text
            self._origins[name] = (dim, origin, reason)
            self._by_text[text] = self.scope.declare(name, dim.low, dim.high, dim.multiple_of)
        return self._by_text[text]

    def _range(self, text: str, name: str) -> tuple[Dim, str, str]:
        """The range of a dimension, who gave it and why; an open end leaves the model its say."""
        given = next((self.given[key] for key in (text, name) if key in self.given), None)
        if given is not None and not given.is_open:
            return given, "given", ""
        for key in (text, name):
            if key in self.implied:
                return self.implied[key].dim, "model", self.implied[key].reason
        return given or Dim(), "default", ""

    def _check_given(self) -> None:
        known = [*self._names, *(t for t in self._names.values() if t not in self._names)]
        for key in self.given:
            if key in known:
                continue
            listing = ", ".join(known) or "none; every size of its inputs is a constant"
            if key in self._static:
                message = f'the size "{key}" is {self._static[key]} in the model and cannot vary'
                hint = f"export the model with that axis dynamic; dynamic dimensions: {listing}"
                raise DimensionError(message, hint=hint)
            raise DimensionError(
                f'the model has no dimension "{key}"', hint=f"use one of its dimensions: {listing}"
            )

    def report(self) -> tuple[DimensionReport, ...]:
        """Every symbol with its range and places."""
        return tuple(
            DimensionReport(
                name,
                text,
                dim.low,
                dim.high,
                dim.multiple_of,
                origin,
                tuple(self._places.get(name, ())),
                reason,
            )
            for name, (dim, origin, reason), text in (
                (name, self._origins[name], text) for name, text in self._names.items()
            )
        )
