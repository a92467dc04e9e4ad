"""The order of atoms and expressions: by their text where it is short, or else by a digest.

Prices share parts again and again, so that their text may be millions of characters long where
there are a few thousand parts. A digest is as short for any of them, and is made once from those of
the parts. Either follows from the structure alone, so that the order is the same in every process.
Start with :func:`expression_key`.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from tilewright.shape.printing import atom_text, expression_text
from tilewright.shape.table import Operation

if TYPE_CHECKING:
    from tilewright.shape.expr import Atom, Expr

LONGEST_TEXT = 200  # characters; longer ones are not kept
_DIGEST_BYTES = 16  # of what stands for a text that is longer
_SYMBOL, _SHORT, _LONG = range(3)


class Key(NamedTuple):
    """A place in the order: symbols, then what has a short text, then what has a digest instead."""

    rank: int
    text: str
    digest: bytes


def atom_key(atom: Atom) -> Key:
    """The key of an atom; its text is that of :func:`atom_text`."""
    if atom.operation is Operation.SYMBOL:
        return Key(_SYMBOL, atom.name, b"")
    keys: list[Key] = []
    for operand in atom.operands:  # no comprehension: expressions are deep, and so are the calls
        keys.append(operand.key)
    if _may_be_short(keys):
        text = atom_text(atom)
        if len(text) <= LONGEST_TEXT:
            return Key(_SHORT, text, b"")
    return _digested([b"%d" % atom.operation.value, *map(_content, keys)])


def expression_key(expression: Expr) -> Key:
    """The key of an expression; its text is that of :func:`expression_text`."""
    keys: list[Key] = []
    for monomial, _ in expression.terms:
        for atom in monomial.atoms:
            keys.append(atom.key)
    if _may_be_short(keys):
        text = expression_text(expression)
        if len(text) <= LONGEST_TEXT:
            return Key(_SHORT, text, b"")
    parts: list[bytes] = []
    for monomial, coefficient in expression.terms:
        parts.append(b"%d %d" % (coefficient, len(monomial.atoms)))
        parts += [_content(atom.key) for atom in monomial.atoms]
    return _digested(parts)


def _may_be_short(keys: Iterable[Key]) -> bool:
    left = LONGEST_TEXT
    for key in keys:
        left -= len(key.text)
        if left < 0 or key.rank == _LONG:
            return False
    return True


def _content(key: Key) -> bytes:
    return key.digest or key.text.encode()


def _digested(parts: Iterable[bytes]) -> Key:
    """What tells any list of parts from others: each is preceded by its length."""
    whole = blake2b(digest_size=_DIGEST_BYTES)
    for part in parts:
        whole.update(b"%d:" % len(part))
        whole.update(part)
    return Key(_LONG, "", whole.digest())


__all__ = ["LONGEST_TEXT", "Key", "atom_key", "expression_key"]
