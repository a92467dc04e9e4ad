"""Shape expressions as 64-bit integer arithmetic in LLVM IR. Start with :class:`IndexEmitter`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from llvmlite import ir

from tilewright.shape import Expr, encode

I64 = ir.IntType(64)


def word(value: int) -> ir.Constant:
    """A 64-bit constant."""
    return ir.Constant(I64, value)


class IndexEmitter:
    """Evaluates expressions over named 64-bit values.

    Division is floor division as in the expressions; a divisor of 0 (an extent of 0, whose loops do
    not run) counts as 1, so that nothing traps.
    """

    def __init__(self, builder: ir.IRBuilder) -> None:
        self.builder = builder
        self._binary: dict[int, Callable[[ir.Value, ir.Value], ir.Value]] = {
            2: self._add,
            3: self._subtract,
            4: self._multiply,
            5: self._floor_divide,
            6: self._remainder,
            7: self._minimum,
            8: self._maximum,
            9: self._compare("=="),
            10: self._compare("<"),
            11: self._compare("<="),
            13: self._ceil_divide,
            14: self._and,
            15: self._or,
        }

    def emit(self, expression: Expr, names: Mapping[str, ir.Value]) -> ir.Value:
        """The value of ``expression``; every free symbol must be in ``names``."""
        if expression.is_constant:
            return word(expression.value)
        free = expression.free_symbols
        code = encode(expression, {name: slot for slot, name in enumerate(free)})
        return self.run(code, [names[name] for name in free])

    def run(self, code: Sequence[int], values: Sequence[ir.Value]) -> ir.Value:
        """The result of byte-code whose slots hold ``values``."""
        stack: list[ir.Value] = []
        kept: list[ir.Value] = []
        position = 0
        while position < len(code):
            operation = code[position]
            position += 1
            match operation:
                case 0:
                    stack.append(word(code[position]))
                    position += 1
                case 1:
                    stack.append(values[code[position]])
                    position += 1
                case 12:
                    other, chosen, condition = stack.pop(), stack.pop(), stack.pop()
                    stack.append(self.builder.select(self._is_true(condition), chosen, other))
                case 16:
                    truth = self.builder.icmp_signed("==", stack.pop(), word(0))
                    stack.append(self.builder.zext(truth, I64))
                case 17:
                    kept.append(stack[-1])
                case 18:
                    stack.append(kept[code[position]])
                    position += 1
                case _:
                    right, left = stack.pop(), stack.pop()
                    stack.append(self._binary[operation](left, right))
        return stack[0]

    def truth(self, expression: Expr, names: Mapping[str, ir.Value]) -> ir.Value:
        """Whether ``expression`` is not 0, as i1."""
        return self._is_true(self.emit(expression, names))

    def _is_true(self, value: ir.Value) -> ir.Value:
        """Whether a value is not 0, as i1: what a truth value was made of, if it is one."""
        if isinstance(value, ir.CastInstr) and value.opname == "zext":
            (made_of,) = value.operands
            if isinstance(made_of.type, ir.IntType) and made_of.type.width == 1:
                return made_of
        return self.builder.icmp_signed("!=", value, word(0))

    def _add(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self.builder.add(a, b, flags=("nsw",))

    def _subtract(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self.builder.sub(a, b, flags=("nsw",))

    def _multiply(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self.builder.mul(a, b, flags=("nsw",))

    def _divisor(self, b: ir.Value) -> ir.Value:
        if isinstance(b, ir.Constant):
            return b
        return self.builder.select(self.builder.icmp_signed("==", b, word(0)), word(1), b)

    def _floor_divide(self, a: ir.Value, b: ir.Value) -> ir.Value:
        known = _positive(b)
        if _is_power_of_two(known):  # a shift rounds down as well
            return self.builder.ashr(a, word(known.bit_length() - 1))
        divisor = self._divisor(b)
        quotient = self.builder.sdiv(a, divisor)
        rest = self.builder.sub(a, self.builder.mul(quotient, divisor))
        if known:
            return self.builder.add(quotient, self._sign(rest))
        return self.builder.sub(quotient, self.builder.zext(self._crosses(rest, divisor), I64))

    def _crosses(self, rest: ir.Value, divisor: ir.Value) -> ir.Value:
        """Whether a truncated division left a rest of the other sign than the divisor's."""
        nonzero = self.builder.icmp_signed("!=", rest, word(0))
        signs = self.builder.icmp_signed("<", self.builder.xor(rest, divisor), word(0))
        return self.builder.and_(nonzero, signs)

    def _sign(self, value: ir.Value) -> ir.Value:
        """All bits of a negative value, 0 of others."""
        return self.builder.ashr(value, word(63))

    def _remainder(self, a: ir.Value, b: ir.Value) -> ir.Value:
        known = _positive(b)
        if _is_power_of_two(known):
            return self.builder.and_(a, word(known - 1))
        divisor = self._divisor(b)
        rest = self.builder.srem(a, divisor)
        if known:
            return self.builder.add(rest, self.builder.and_(self._sign(rest), divisor))
        shifted = self.builder.add(rest, divisor)
        return self.builder.select(self._crosses(rest, divisor), shifted, rest)

    def _ceil_divide(self, a: ir.Value, b: ir.Value) -> ir.Value:
        negated = self._floor_divide(self.builder.sub(word(0), a), b)
        return self.builder.sub(word(0), negated)

    def _minimum(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self.builder.select(self.builder.icmp_signed("<", a, b), a, b)

    def _maximum(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self.builder.select(self.builder.icmp_signed(">", a, b), a, b)

    def _compare(self, operation: str) -> Callable[[ir.Value, ir.Value], ir.Value]:
        def compare(a: ir.Value, b: ir.Value) -> ir.Value:
            return self.builder.zext(self.builder.icmp_signed(operation, a, b), I64)

        return compare

    def _and(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self._both(a, b, self.builder.and_)

    def _or(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self._both(a, b, self.builder.or_)

    def _both(
        self, a: ir.Value, b: ir.Value, combine: Callable[[ir.Value, ir.Value], ir.Value]
    ) -> ir.Value:
        return self.builder.zext(combine(self._is_true(a), self._is_true(b)), I64)


def _positive(divisor: ir.Value) -> int:
    """The value of a divisor that is known and positive, 0 for others.

    Only negative quotients of such a one need to be rounded.
    """
    return max(0, int(divisor.constant)) if isinstance(divisor, ir.Constant) else 0


def _is_power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0
