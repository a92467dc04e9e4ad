"""Quantities as people write them: bytes, durations, counts, lists.

Pure functions from numbers to short English text. Imports nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def format_bytes(count: int) -> str:
    """A number of bytes in binary units with three digits: "0 B", "1.50 KiB", "340 MiB"."""
    value, unit = float(count), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{count} B" if unit == 0 else f"{_digits(value)} {_UNITS[unit]}"


def format_seconds(seconds: float) -> str:
    """A duration: "12.3 µs", "4.56 ms", "7.89 s", "2 min 5 s"."""
    if seconds >= 120:
        whole = round(seconds)
        return f"{whole // 60} min {whole % 60} s"
    for factor, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= factor:
            return f"{_digits(seconds / factor)} {unit}"
    return f"{_digits(seconds / 1e-6)} µs"


def format_count(count: int, singular: str, plural: str | None = None) -> str:
    """A number with its noun: "1 kernel", "2 kernels"."""
    return f"{count} {singular if count == 1 else plural or singular + 's'}"


def article(noun: str) -> str:
    """A noun with its article, by its first letter: "an int", "a float", "a uint8"."""
    return f"{'an' if noun[:1].lower() in tuple('aeio') else 'a'} {noun}"


def format_list(items: Sequence[str]) -> str:
    """Items in a sentence: "a", "a and b", "a, b and c", or "none"."""
    if len(items) < 2:
        return items[0] if items else "none"
    return f"{', '.join(items[:-1])} and {items[-1]}"


def format_sizes(sizes: Sequence[tuple[str, int]]) -> str:
    """Sizes of dimensions: "batch=1, sequence=5", or "no dimensions"."""
    return ", ".join(f"{name}={size}" for name, size in sizes) or "no dimensions"


def _digits(value: float) -> str:
    places = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{places}f}"


def distinct(name: str, taken: set[str]) -> str:
    """The name, or the first of name-2, name-3, … that is not ``taken``; it is entered there."""
    found, number = name, 2
    while found in taken:
        found, number = f"{name}-{number}", number + 1
    taken.add(found)
    return found
