"""What the tests of windows in both layouts share."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.shape import Expr, maximum


@dataclass(frozen=True)
class WindowCase:
    """A window with the same stride, dilation and padding along every axis."""

    name: str
    kernel: tuple[int, ...]
    stride: int = 1
    dilation: int = 1
    padding: int = 0
    after: int = 0

    def sizes(self, of: list[Expr]) -> tuple[Expr, ...]:
        """Sizes of the result; ``after`` is the padding behind the data."""
        made: list[Expr] = []
        for size, taps in zip(of, self.kernel, strict=True):
            room = size + self.padding + self.after - (taps - 1) * self.dilation - 1
            made.append(maximum(0, room // self.stride + 1))
        return tuple(made)
