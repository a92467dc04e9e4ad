"""Renaming, merging, splitting and ordering axes."""

from __future__ import annotations

import numpy as np
import pytest

from support.operator_harness import check_node, fission, run
from tilewright.ops.record import NoRule
from tilewright.support.errors import DimensionError, InvalidModelError


def _numbers(*shape: int, dtype: object = np.float32) -> np.ndarray:
    return np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)  # type: ignore[arg-type]


def _integers(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


@pytest.mark.parametrize(
    ("start", "end"), [(0, None), (1, None), (-2, None), (0, -1), (1, 9), (5, 2)]
)
def test_shape_of_a_part(start: int, end: int | None) -> None:
    attributes = {"start": start} | ({} if end is None else {"end": end})
    check_node("Shape", [_numbers(2, 3, 4)], attributes, also=[[_numbers(0, 1, 7)]])


def test_size_of_any_type() -> None:
    check_node("Size", [_numbers(2, 3)], also=[[_numbers(0, 3)]])
    names = np.array(["a", "b"], dtype=object)
    assert run(fission("Size", [names], opset=13), [names])[0] == 2


@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize(
    "shape",
    [(4, 6), (-1, 6), (2, -1, 3), (0, 0, 2, 2), (0, -1), (24,), (1, 24), (-1,), (0, -1, 2, 2)],
)
def test_reshape(shape: tuple[int, ...], fixed: bool) -> None:
    wanted = _integers(*shape)
    where = {"constants": (1,)} if not fixed else {"fixed": (1,)}
    check_node("Reshape", [_numbers(2, 3, 4), wanted], **where)


def test_reshape_of_nothing() -> None:
    inputs = [_numbers(2, 3), _integers(2, 3)]
    graph = fission("Reshape", inputs, {"allowzero": 1}, opset=14, fixed=(1,))
    for data, shape in (
        (_numbers(0, 3), (3, 0)),
        (_numbers(1, 1), (1, 1)),
        (_numbers(2, 0), (0, 5)),
    ):
        assert run(graph, [data, _integers(*shape)])[0].size == data.size


def test_reshape_allows_zero_where_it_says_so() -> None:
    wanted = _integers(0, 3, 5)
    attributes = {"allowzero": 1}
    for where in ({"constants": (1,)}, {"fixed": (1,)}):
        check_node("Reshape", [_numbers(2, 0), wanted], attributes, **where)


@pytest.mark.parametrize("shape", [(5, 5), (-1, 5), (2, 3, 5), (-2, 3)])
def test_reshape_that_does_not_fit(shape: tuple[int, ...]) -> None:
    data = _numbers(2, 3, 4)
    with pytest.raises((DimensionError, InvalidModelError)):
        run(fission("Reshape", [data, _integers(*shape)], opset=13, constants=(1,)), [data, None])
    graph = fission("Reshape", [data, _integers(*shape)], opset=13, fixed=(1,))
    with pytest.raises(DimensionError):
        run(graph, [data, _integers(*shape)])


@pytest.mark.parametrize("axis", [0, 1, 2, 3, -1, -3])
def test_flatten(axis: int) -> None:
    graph = check_node("Flatten", [_numbers(2, 3, 4)], {"axis": axis})
    for shape in ((0, 3, 4), (1, 1, 1), (2, 0, 1)):
        head, tail = (int(np.prod(part)) for part in (shape[:axis], shape[axis:]))
        assert run(graph, [_numbers(*shape)])[0].shape == (head, tail)


def test_flatten_beyond_the_axes() -> None:
    with pytest.raises(InvalidModelError, match="Axis 4"):
        fission("Flatten", [_numbers(2, 3)], {"axis": 4}, opset=13)


@pytest.mark.parametrize("axes", [(0,), (0, 2), (-2,), (-4, 2)])
def test_squeeze(axes: tuple[int, ...]) -> None:
    data = _numbers(1, 3, 1, 4)
    check_node("Squeeze", [data, _integers(*axes)], constants=(1,))
    own = run(fission("Squeeze", [data], {"axes": list(axes)}, opset=11), [data])[0]
    np.testing.assert_array_equal(own, np.squeeze(data, axes))


def test_squeeze_demands_a_size_of_one() -> None:
    graph = fission("Squeeze", [_numbers(1, 3), _integers(0)], opset=13, constants=(1,))
    with pytest.raises(DimensionError, match="squeezed"):
        run(graph, [_numbers(2, 3)])


def test_squeeze_of_all_axes() -> None:
    check_node("Squeeze", [_numbers(1, 3, 1)], symbolic=False)
    graph = fission("Squeeze", [_numbers(2, 3)], opset=13)
    assert run(graph, [_numbers(4, 0)])[0].shape == (4, 0)
    with pytest.raises(DimensionError, match="vanish"):
        run(graph, [_numbers(1, 3)])


@pytest.mark.parametrize("axes", [(0,), (2, 0), (-1,), (1, 2, 4), (-1, -2)])
def test_unsqueeze(axes: tuple[int, ...]) -> None:
    data = _numbers(3, 4)
    check_node("Unsqueeze", [data, _integers(*axes)], constants=(1,))
    own = run(fission("Unsqueeze", [data], {"axes": list(axes)}, opset=11), [data])[0]
    np.testing.assert_array_equal(own, np.expand_dims(data, axes))


def test_transpose() -> None:
    check_node("Transpose", [_numbers(2, 3, 4)], also=[[_numbers(1, 0, 2)]])
    check_node("Transpose", [_numbers(2, 3, 4)], {"perm": [1, 2, 0]})
    check_node("Transpose", [_numbers()])


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_concat(axis: int) -> None:
    parts = [_numbers(2, 3, 4), _numbers(2, 3, 4), _numbers(2, 3, 4)]
    shape = [2, 3, 4]
    shape[axis] = 0
    other = [_numbers(*shape), _numbers(2, 3, 4), _numbers(*shape)]
    check_node("Concat", parts, {"axis": axis}, also=[other])


def test_concat_of_parts_that_differ() -> None:
    graph = fission("Concat", [_numbers(2, 3), _numbers(2, 3)], {"axis": 0}, opset=13)
    with pytest.raises(DimensionError, match="concatenated operands differ"):
        run(graph, [_numbers(2, 3), _numbers(2, 1)])


@pytest.mark.parametrize(("count", "sizes"), [(2, (6, 5, 3)), (3, (7, 8, 9, 5)), (4, (10, 4, 0))])
def test_split_into_equal_parts_but_the_last(count: int, sizes: tuple[int, ...]) -> None:
    attributes = {"axis": 1, "num_outputs": count}
    graph = fission("Split", [_numbers(2, 8)], attributes, opset=18, outputs=count)
    for size in sizes:
        data = _numbers(2, size)
        part = -(-size // count)
        cuts = [part * i for i in range(1, count)]
        for own, wanted in zip(run(graph, [data]), np.split(data, cuts, 1), strict=True):
            np.testing.assert_array_equal(own, wanted)


def test_split_whose_last_part_would_be_negative() -> None:
    graph = fission("Split", [_numbers(8)], {"num_outputs": 4}, opset=18, outputs=4)
    with pytest.raises(DimensionError, match="last part"):
        run(graph, [_numbers(5)])


def test_split_must_be_even_without_a_number_of_outputs() -> None:
    graph = fission("Split", [_numbers(6)], opset=13, outputs=3)
    assert [len(part) for part in run(graph, [_numbers(9)])] == [3, 3, 3]
    with pytest.raises(DimensionError, match="equal parts"):
        run(graph, [_numbers(7)])


@pytest.mark.parametrize("where", [{"constants": (1,)}, {"fixed": (1,)}])
def test_split_by_sizes(where: dict[str, tuple[int, ...]]) -> None:
    check_node("Split", [_numbers(6, 2), _integers(1, 0, 5)], outputs=3, **where)
    graph = fission("Split", [_numbers(6, 2), _integers(1, 5)], opset=13, outputs=2, **where)
    with pytest.raises(DimensionError, match="whole axis"):
        run(graph, [_numbers(5, 2), _integers(1, 5)])
    with pytest.raises(NoRule):
        fission("Split", [_numbers(6, 2), _integers(1, 5)], opset=13, outputs=3, **where)


@pytest.mark.parametrize("where", [{"constants": (1,)}, {"fixed": (1,)}])
@pytest.mark.parametrize(
    ("data", "shape"),
    [((3, 1), (2, 1, 6)), ((3, 4), (1, 1)), ((1,), (0, 3)), ((), (2, 2)), ((1, 1), (1, 1))],
)
def test_expand(
    data: tuple[int, ...], shape: tuple[int, ...], where: dict[str, tuple[int, ...]]
) -> None:
    check_node("Expand", [_numbers(*data), _integers(*shape)], **where)


def test_expand_by_sizes_of_run_time() -> None:
    graph = fission("Expand", [_numbers(3, 1), _integers(3, 4)], opset=13, fixed=(1,))
    for data, shape in (((3, 1), (1, 5)), ((1, 5), (4, 1)), ((2, 5), (1, 1)), ((1, 0), (3, 1))):
        own = run(graph, [_numbers(*data), _integers(*shape)])[0]
        np.testing.assert_array_equal(own, _numbers(*data) * np.ones(shape, np.float32))
    with pytest.raises(DimensionError, match="broadcast"):
        run(graph, [_numbers(3, 2), _integers(3, 4)])
    with pytest.raises(DimensionError, match="negative"):
        run(graph, [_numbers(3, 1), _integers(3, -4)])


@pytest.mark.parametrize("where", [{"constants": (1,)}, {"fixed": (1,)}])
@pytest.mark.parametrize("repeats", [(1, 1), (2, 3), (0, 2), (1, 4)])
def test_tile(repeats: tuple[int, ...], where: dict[str, tuple[int, ...]]) -> None:
    also = [[_numbers(0, 3), _integers(*repeats)], [_numbers(1, 1), _integers(*repeats)]]
    check_node("Tile", [_numbers(2, 3), _integers(*repeats)], also=also, **where)


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_and_space(mode: str) -> None:
    check_node("DepthToSpace", [_numbers(1, 8, 2, 3)], {"blocksize": 2, "mode": mode},
               also=[[_numbers(2, 4, 1, 1)], [_numbers(0, 4, 2, 2)]])  # fmt: skip
    check_node("SpaceToDepth", [_numbers(1, 3, 4, 6)], {"blocksize": 2, "mode": mode},
               also=[[_numbers(2, 1, 2, 2)], [_numbers(1, 3, 0, 2)]])  # fmt: skip


def test_space_that_does_not_divide() -> None:
    graph = fission("SpaceToDepth", [_numbers(1, 3, 4, 6)], {"blocksize": 2}, opset=13)
    with pytest.raises(DimensionError, match="multiples of 2"):
        run(graph, [_numbers(1, 3, 4, 5)])


def test_types_of_the_reference_are_left_to_it() -> None:
    names = np.array([["a", "b"]], dtype=object)
    with pytest.raises(NoRule):
        fission("Transpose", [names], opset=13)
