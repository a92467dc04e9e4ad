"""What can be proved of the accesses of a tile program, from the facts about its sizes.

Axes count from 0 to below their extents. Expressions over sizes alone that are involved stand for
themselves, as symbols with bounds. Start with :class:`AccessProofs`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from tilewright.ir.tile_access import Access, Axis, Trace
from tilewright.shape import Expr, Scope, Truth, constant, symbol
from tilewright.shape.expr import Atom, apply_operation, from_atoms, rebuild
from tilewright.shape.table import Operation

MOST_APPLICATIONS = 4  # in what a proof is tried of: it takes long for more, and hardly succeeds


class AccessProofs:
    """Proofs about the accesses of ``found``, whose axes are names of ``scope``.

    ``accesses`` are those that may happen; ``extents`` and what ``simple`` gives are the
    expressions that proofs are about. Of what ``happens`` at some sizes it need not be asked
    whether it never does, which takes longer than all else.
    """

    def __init__(
        self, found: Trace, scope: Scope, happens: Callable[[Access], bool] | None = None
    ) -> None:
        self.scope = scope.copy()
        self.accesses = _that_may_happen(found.accesses, scope, happens)
        axes = dict.fromkeys(axis for access in self.accesses for axis in access.nest)
        self.simple = _Abstraction(scope, self.scope, axes)
        self.extents = {axis.name: self.simple.of(axis.extent) for axis in axes}
        for name, extent in self.extents.items():
            self.scope.declare(name, 0, extent - 1)
        for axis in axes:
            for most in _below_minimum(axis.extent):
                self.scope.declare(axis.name, 0, self.simple.of(most) - 1)
        self._inside: dict[Expr, frozenset[Atom]] = {}

    def is_simple(self, *expressions: Expr) -> bool:
        """Whether there are so few applications that it pays to try a proof."""
        found: set[Atom] = set()
        for expression in expressions:
            found |= _applications(expression, self.extents, self._inside)
        return len(found) <= MOST_APPLICATIONS

    def is_natural(self, expression: Expr, scope: Scope | None = None) -> bool:
        """Whether the value is proved to be 0 or more, wherever the axes have values."""
        if not self.is_simple(expression):
            return False
        facts = self.scope if scope is None else scope
        for name in expression.free_symbols:
            extent = self.extents.get(name)
            affine = expression.affine((name,)) if extent is not None else None
            if extent is None or affine is None or not extent.is_constant:
                continue
            slope, rest = affine[0][name], affine[1]
            if facts.is_natural(slope):
                expression = rest
            elif facts.is_natural(-slope):
                expression = rest + slope * (extent - 1)
        return facts.is_natural(expression)

    def same(self, left: Expr, right: Expr) -> bool:
        """Whether two expressions are proved to be equal."""
        return self.scope.is_equal(left, right) is Truth.YES

    def is_chain(self, access: Access, axes: Sequence[Axis], reach: Expr) -> bool:
        """Whether each slope is more than all smaller ones with their axes, and ``reach``, make."""
        affine = self.simple.of(access.offset).affine([axis.name for axis in axes])
        scope = self.scope.occupied([self.extents[axis.name] for axis in access.nest])
        if affine is None or scope is None:
            return scope is None  # these loops never run
        slopes = affine[0]
        several = [a for a in axes if not (a.extent.is_constant and a.extent.value == 1)]
        for axis in sorted(several, key=lambda a: _magnitude(slopes[a.name])):
            slope = slopes[axis.name]
            if not self.is_natural(slope - reach - 1, scope):
                return False
            reach = reach + slope * symbol(axis.name)
        return True


def _applications(
    expression: Expr, extents: Mapping[str, Expr], known: dict[Expr, frozenset[Atom]]
) -> frozenset[Atom]:
    """Those in an expression and in the extents of its axes; ``known`` keeps what is found."""
    kept = known.get(expression)
    if kept is None:
        found: set[Atom] = set()
        for monomial, _ in expression.terms:
            for atom in monomial.atoms:
                if atom.operation is not Operation.SYMBOL:
                    found.add(atom)
                elif atom.name in extents:
                    found |= _applications(extents[atom.name], extents, known)
                for operand in atom.operands:
                    found |= _applications(operand, extents, known)
        kept = known[expression] = frozenset(found)
    return kept


def touches_alike(proofs: AccessProofs, read: Access, write: Access) -> bool:
    """Whether two accesses touch one element only in the same iteration of all common loops."""
    nests = [[a for a in access.nest if a.extent is not constant(1)] for access in (read, write)]
    common = [axis for axis in nests[0] if axis in nests[1]]
    if any(nest[: len(common)] != common for nest in nests):
        return False
    if any(axis.task for nest in nests for axis in nest[len(common) :]):
        return False
    names = [axis.name for axis in common]
    parts = [proofs.simple.of(access.offset).affine(names) for access in (read, write)]
    if parts[0] is None or parts[1] is None:
        return False
    (slopes, inner), (others, other) = parts[0], parts[1]
    if any(not proofs.same(slopes[name], others[name]) for name in names):
        return False
    reaches = [constant(0)] if inner == other else [inner, other]
    return all(
        proofs.is_natural(reach) and proofs.is_chain(access, common, reach)
        for reach in reaches
        for access in (read, write)
    )


class _Abstraction:
    """Expressions in which every involved one over sizes alone is a symbol with its bounds.

    Block sizes are such: for a proof it matters that they are the same in two places and at least
    1, not how they come about.
    """

    def __init__(self, scope: Scope, facts: Scope, axes: Iterable[Axis]) -> None:
        self.scope = scope
        self.facts = facts
        self.axes = {axis.name for axis in axes}
        self._atoms: dict[Atom, Expr] = {}
        self._done: dict[Expr, Expr] = {}

    def of(self, expression: Expr) -> Expr:
        """The expression with its involved parts replaced."""
        found = self._done.get(expression)
        if found is None:
            # In their order, which decides the names of the symbols, and so what a proof finds.
            atoms = dict.fromkeys(a for monomial, _ in expression.terms for a in monomial.atoms)
            replace = {a: self._atom(a) for a in atoms if a.operation is not Operation.SYMBOL}
            found = rebuild(expression, replace) if replace else expression
            self._done[expression] = found
        return found

    def _atom(self, atom: Atom) -> Expr:
        found = self._atoms.get(atom)
        if found is None:
            whole = from_atoms((atom,))
            if self.axes.isdisjoint(whole.free_symbols) and _is_involved(atom):
                bounds = self.scope.bounds(whole)
                found = self.facts.fresh("_size", bounds.low, bounds.high)
            else:
                found = apply_operation(atom.operation, tuple(map(self.of, atom.operands)))
            self._atoms[atom] = found
        return found


def _is_involved(atom: Atom) -> bool:
    """Whether an application has another one inside."""
    return any(
        inner.operation is not Operation.SYMBOL
        for operand in atom.operands
        for monomial, _ in operand.terms
        for inner in monomial.atoms
    )


def _that_may_happen(
    accesses: Iterable[Access], scope: Scope, happens: Callable[[Access], bool] | None
) -> list[Access]:
    """The accesses of whose loops none is proved never to run."""
    runs: set[Axis] = set()
    found: list[Access] = []
    for access in accesses:
        unknown = [axis for axis in access.nest if axis not in runs]
        is_seen = not unknown or (happens is not None and happens(access))
        if is_seen or not any(_is_empty(axis, scope) for axis in unknown):
            runs.update(unknown)
            found.append(access)
    return found


def _is_empty(axis: Axis, scope: Scope) -> bool:
    """Whether a loop never runs, whatever the sizes, as far as that is simple to prove."""
    known: dict[Expr, frozenset[Atom]] = {}
    for bound in (axis.extent, *_below_minimum(axis.extent)):
        if len(_applications(bound, {}, known)) <= MOST_APPLICATIONS:
            high = scope.bounds(bound).high
            if high is not None and high <= 0:
                return True
    return False


def _below_minimum(extent: Expr) -> Iterator[Expr]:
    """What an extent with a minimum in it is at most, by each operand of that."""
    for monomial, size in extent.terms:
        atom = monomial.atoms[0] if len(monomial.atoms) == 1 else None
        if atom is not None and size == 1 and atom.operation is Operation.MINIMUM:
            yield from (rebuild(extent, {atom: operand}) for operand in atom.operands)


def _magnitude(slope: Expr) -> tuple[int, int, str]:
    """A key by which slopes are in order for most sizes."""
    degree = max((len(monomial.atoms) for monomial, _ in slope.terms), default=0)
    return degree, max((abs(size) for _, size in slope.terms), default=0), str(slope)


__all__ = ["AccessProofs", "touches_alike"]
