"""Where the rows lie that register tiles ask for ahead. Needs nothing."""

from itertools import pairwise, product

import pytest

from tilewright.backend.cpu.prefetch import next_of_batch
from tilewright.shape import symbol


@pytest.mark.parametrize("sizes", [(5,), (3, 1), (1, 4), (2, 3), (2, 1, 3)])
def test_the_last_axis_of_a_batch_moves_on_first(sizes: tuple[int, ...]) -> None:
    """Every element but the last is followed by the next one, over the ends of inner axes too."""
    names, strides = [f"b{n}" for n in range(len(sizes))], [10**n for n in range(len(sizes))]
    offset = sum((symbol(n) * s for n, s in zip(names, strides, strict=True)), start=symbol("at"))
    batch = [(name, symbol(f"of_{name}")) for name in names]
    following, more = next_of_batch(offset, batch)
    extents = {f"of_{n}": size for n, size in zip(names, sizes, strict=True)}
    elements = [
        {**extents, **dict(zip(names, place, strict=True)), "at": 7}
        for place in product(*map(range, sizes))
    ]
    for here, there in pairwise(elements):
        assert more.evaluate(here) == 1
        assert following.evaluate(here) == offset.evaluate(there)
    assert more.evaluate(elements[-1]) == 0
    assert following.evaluate(elements[-1]) == offset.evaluate(elements[-1])


def test_without_a_batch_there_is_no_other_element() -> None:
    following, more = next_of_batch(symbol("at"), [])
    assert following.evaluate({"at": 3}) == 3
    assert more.evaluate({}) == 0
