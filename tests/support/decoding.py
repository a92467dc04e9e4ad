"""A tiny reference of the machine that runs the byte-code of `encode`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

BINARY: dict[int, Callable[[int, int], int]] = {
    2: lambda x, y: x + y,
    3: lambda x, y: x - y,
    4: lambda x, y: x * y,
    5: lambda x, y: x // y,
    6: lambda x, y: x % y,
    7: min,
    8: max,
    9: lambda x, y: int(x == y),
    10: lambda x, y: int(x < y),
    11: lambda x, y: int(x <= y),
    13: lambda x, y: -(-x // y),
    14: lambda x, y: int(bool(x) and bool(y)),
    15: lambda x, y: int(bool(x) or bool(y)),
}


def run(words: Sequence[int], slots: Sequence[int]) -> int:
    """The value that the words compute; every word is used and one value is left."""
    stack: list[int] = []
    kept: list[int] = []
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        if word == 17:
            kept.append(stack[-1])
        elif word == 18:
            stack.append(kept[words[position]])
            position += 1
        elif word in (0, 1):
            argument = words[position]
            position += 1
            stack.append(argument if word == 0 else slots[argument])
        elif word == 12:
            otherwise, chosen, condition = stack.pop(), stack.pop(), stack.pop()
            stack.append(chosen if condition else otherwise)
        elif word == 16:
            stack.append(int(not stack.pop()))
        else:
            right, left = stack.pop(), stack.pop()
            stack.append(BINARY[word](left, right))
    (value,) = stack
    return value
