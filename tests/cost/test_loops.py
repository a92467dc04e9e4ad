"""The price of loops without products: what it grows with, and that it orders variants."""

from __future__ import annotations

import pytest

from tilewright.cost import LoopPrice, Machine, loop_price
from tilewright.cost.masks import masks_pay
from tilewright.cost.vector_work import Core, ends_under_mask
from tilewright.ir.tile import Loop
from tilewright.ir.tile_parse import parse_program
from tilewright.shape import Expr, constant, symbol
from tilewright.target import preset

MACHINE = Machine(preset("zen4"))
SUMS = """\
buffer b0: float32
result o0: float32
work 1
grid _i1 < rows
  for masked _i2 in 0 .. columns
    _r3 = sum of b0[_i1*columns + _i2]
  o0[_i1] = _r3
"""
SWEEPS = """\
buffer b0: float32
result o0: float32
work 1
grid _i1 < rows
  for masked _i2 in 0 .. columns
    _r3 = sum of b0[_i1*columns + _i2]
  for masked _i4 in 0 .. columns
    o0[_i1*columns + _i4] = subtract(b0[_i1*columns + _i4], _r3)
"""


def price(text: str) -> LoopPrice:
    """Of a program whose tensors have as many elements as it has rows and columns."""
    elements = symbol("rows") * symbol("columns")
    written = symbol("rows") if text is SUMS else elements
    return loop_price(parse_program(text), MACHINE, {"b0": elements, "o0": written})


def alone(text: str, rows: int, columns: int) -> int:
    """Picoseconds on one thread."""
    return price(text).alone.evaluate({"rows": rows, "columns": columns})


@pytest.mark.parametrize("text", [SUMS, SWEEPS])
@pytest.mark.parametrize(("rows", "columns"), [(0, 0), (0, 5), (5, 0), (1, 1), (7, 17), (1000, 3)])
def test_prices_are_not_negative(text: str, rows: int, columns: int) -> None:
    assert alone(text, rows, columns) >= 0


def test_a_vector_is_paid_whole() -> None:
    """Lanes without use cost what others do: one element takes about as long as a vector."""
    assert alone(SUMS, 100, 1) == pytest.approx(alone(SUMS, 100, 15), rel=0.2)
    assert alone(SUMS, 100, 17) > alone(SUMS, 100, 16)


def test_a_function_takes_as_long_for_one_element() -> None:
    """Seven elements after half a vector take several times as long as one vector under a mask."""
    text = """
buffer b0: float32
result o0: float32
work 1
grid _i1 < rows
  for{} _i2 in 0 .. columns
    o0[_i1*columns + _i2] = exponential(b0[_i1*columns + _i2])
"""
    single, masked = text.format(""), text.format(" masked")
    assert alone(single, 1000, 31) > 2.5 * alone(masked, 1000, 31)
    assert alone(single, 1000, 32) == alone(masked, 1000, 32)


@pytest.mark.parametrize(
    ("reduced", "pays"),
    [
        ("exponential(b0[_i1*columns + _i2])", True),
        ("1.0", False),
        ("b1[_i1*columns + _i2]", False),
    ],
)
def test_narrow_vectors_have_masks_for_words_alone(reduced: str, pays: bool) -> None:
    """What a loop reduces counts as well, and nothing at all may be in memory."""
    text = SUMS.replace("b0[_i1*columns + _i2]", reduced).replace("work", "buffer b1: int8\nwork")
    (loop, _) = parse_program(text).body
    target = preset("zen3")
    assert isinstance(loop, Loop)
    assert masks_pay(Core(target, Machine(target).core.loops), loop) is pays


@pytest.mark.parametrize(
    ("value", "is_masked"),
    [("add(b0[_i1*37 + _i2], b0[_i1*37 + _i2])", False), ("exponential(b1[_i1*37 + _i2])", True)],
)
def test_light_work_on_bytes_has_masks_where_registers_hold_them(
    value: str, is_masked: bool
) -> None:
    """Code for other vectors moves bytes under a mask one by one, and takes none for light work."""
    text = f"""
buffer b0: int8
buffer b1: float32
result o0: {"float32" if is_masked else "int8"}
result o1: int8
work 1
grid _i1 < rows
  for masked _i2 in 0 .. 37
    o0[_i1*37 + _i2] = {value}
    o1[_i1*37 + _i2] = b0[_i1*37 + _i2]
"""
    (loop,) = parse_program(text).body
    assert isinstance(loop, Loop)
    for name, expected in (("zen3", is_masked), ("zen4", True)):
        target = preset(name)
        assert ends_under_mask(Core(target, Machine(target).core.loops), loop) is expected


def test_bytes_come_from_the_level_that_holds_them() -> None:
    """An element of what lies in memory takes several times that of one in the first cache."""
    near, far = alone(SUMS, 8, 512) / (8 * 512), alone(SUMS, 1 << 17, 512) / (1 << 26)
    assert far > 3 * near


def test_a_later_sweep_reads_from_near() -> None:
    """Rows that stay in the first cache are read from memory once, longer ones in each sweep."""
    short, long = alone(SWEEPS, 1 << 14, 1 << 10), alone(SWEEPS, 1, 1 << 24)
    assert long > 1.2 * short


def test_threads_share_tasks() -> None:
    """Few tasks are done by as few threads; small work by one."""
    sizes = {"rows": 64, "columns": 1 << 16}
    one, two = (price(SUMS).time(MACHINE, threads).evaluate(sizes) for threads in (1, 2))
    assert 1.5 * two < one
    single = {"rows": 1, "columns": 1 << 20}
    one, two = (price(SUMS).time(MACHINE, threads).evaluate(single) for threads in (1, 2))
    assert one == two


def small(body: str, rows: int = 1000, flag: int = 0) -> LoopPrice:
    """Of many tasks that all read the same short row, and have more scratch than they use."""
    text = (
        "buffer b0: float32\nresult o0: float32\nscratch s0: float32 of 8192, fixed\nwork 1\n"
        f"grid _i1 < rows\n{body}"
    )
    made = loop_price(parse_program(text), MACHINE, {"b0": constant(512), "o0": constant(512)})
    known = {"rows": rows, "flag": flag}
    values = (made.alone, made.computed, made.shared, made.tasks)
    return LoopPrice(*(constant(value.evaluate(known)) for value in values))


def lanes(target: str, source: str, more: str = "") -> str:
    """A loop over 32 vectors."""
    return (
        "  for _i2 in 0 .. 32\n    for independent _i3 in 0 .. 16\n"
        f"      {target} = {source}\n{more}"
    )


COPIED = lanes("s0[16*_i2 + _i3]", "b0[16*_i2 + _i3]")
PICKED = lanes("o0[16*_i2 + _i3]", "s0[32*_i2 + 2*_i3]")


def test_elements_that_lie_apart_share_lines() -> None:
    """Every second one of a row that stays in the first cache is read from there."""
    near = small(COPIED + PICKED)
    assert near.alone.value < 1.05 * near.computed.value


def test_vectors_across_lines_cost_more() -> None:
    within, across = (
        small(lanes("o0[16*_i2 + _i3]", f"s0[16*_i2 + _i3 + {shift}]", "")).computed.value
        for shift in (16, 17)
    )
    stores = small(lanes("o0[16*_i2 + _i3 + 1]", "s0[16*_i2 + _i3]")).computed.value
    costs = MACHINE.core.loops
    assert within == across  # the port of stores is busier
    assert stores / within == pytest.approx(costs.store / costs.aligned_store, rel=0.1)


def test_a_branch_that_is_not_taken_costs_a_test() -> None:
    branch = "  for _i5 in 0 .. flag == 1\n" + "".join(
        f"  {line}\n" for line in COPIED.replace("_i2", "_i6").replace("_i3", "_i7").splitlines()
    )
    plain, skipped, taken = small(PICKED), small(branch + PICKED), small(branch + PICKED, flag=1)
    assert skipped.alone.value < 1.05 * plain.alone.value
    assert taken.alone.value > 1.3 * plain.alone.value


def test_thin_blocks_are_turned_as_vectors() -> None:
    """Three columns side by side take far less than three that lie apart."""
    turned = "  s0[0], row 512 = transposed b0[0], row {}: 512 x 3\n  o0[_i1] = s0[0]\n"
    beside, apart = (small(turned.format(row)).computed.value for row in (3, 5))
    assert 3 * beside < apart


def test_squares_of_bytes_as_wide_as_a_register_cost_less() -> None:
    """Where not two of them fit beside each other, smaller squares are turned."""
    text = (
        "buffer b0: int8\nresult o0: int8\nscratch s0: int8 of 16384, fixed\nwork 1\n"
        "grid _i1 < 1\n  s0[0], row 128 = transposed b0[0], row 128: {0} x {0}\n"
        "  o0[_i1] = s0[0]\n"
    )
    registers, smaller = (
        whole(text.format(side), {}, {"b0": 16384, "o0": 1}).computed.value for side in (128, 127)
    )
    assert registers < smaller


def whole(text: str, sizes: dict[str, int], elements: dict[str, int] | None = None) -> LoopPrice:
    """The price of a program at such sizes, with tensors of as many elements."""
    known = {name: constant(count) for name, count in (elements or {}).items()}
    made = loop_price(parse_program(text), MACHINE, known)
    values = (made.alone, made.computed, made.shared, made.tasks)
    return LoopPrice(*(constant(value.evaluate(sizes)) for value in values))


def sweeps(needed: str, columns: int) -> float:
    """Cycles of a row of two sweeps, the second of which subtracts ``needed``."""
    text = SWEEPS.replace("_r3)", f"{needed})")
    text = text.replace("o0[_i1*columns + _i4] = ", "_r5 = sum of ") + "  o0[_i1] = add(_r3, _r5)\n"
    price = whole(text, {"rows": 100, "columns": columns}).computed.value
    return price / 100 * MACHINE.target.clock_ghz / 1000


def test_a_sum_is_an_instruction_more() -> None:
    """Sums of one value are added for every vector, each by the pipes that add."""
    sums = "    _r3 = sum of b0[_i1*columns + _i2]\n"
    several = "".join(
        f"    _r{number} = sum of {value}\n"
        for number, value in ((3, "%0:subtract(b0[_i1*columns + _i2], 0.5)"), (4, "%0"), (5, "%0"))
    )
    sizes = {"rows": 10, "columns": 4096}
    three, one = (whole(text, sizes).computed.value for text in (SUMS.replace(sums, several), SUMS))
    cycles = (three - one) / 10 / 256 * MACHINE.target.clock_ghz / 1000
    costs = MACHINE.core.loops
    assert cycles == pytest.approx(4 * costs.addition - max(costs.load, costs.addition), rel=0.05)


def test_a_multiply_add_takes_the_pipes_that_do_both() -> None:
    """There are fewer of those than of pipes for simple instructions."""

    def cycles(function: str, count: int) -> float:
        value = "b0[_i2]"
        for _ in range(count):
            value = function.format(value)
        text = (
            "buffer b0: float32\nresult o0: float32\nwork 1\ngrid _i1 < 1\n"
            f"  for independent _i2 in 0 .. 4096\n    o0[_i2] = {value}\n"
        )
        computed = whole(text, {}, {"b0": 4096, "o0": 4096}).computed.value
        return computed * MACHINE.target.clock_ghz / 1000 / (4096 / 16)

    def each(function: str) -> float:
        return (cycles(function, 40) - cycles(function, 20)) / 20

    rate = MACHINE.target.multiply_adds_per_cycle("float32")
    assert each("multiply_add({}, 2.0, 3.0)") == pytest.approx(16 / rate, rel=0.02)
    assert each("multiply({}, 2.0)") == pytest.approx(MACHINE.core.loops.instruction, rel=0.02)


def test_a_multiply_add_does_not_take_as_long_as_a_mixture() -> None:
    """Vectors of 32 bytes: two a cycle, though additions among multiplications come slower."""
    narrow = Machine(preset("zen3"))
    text = (
        "buffer b0: float32\nresult o0: float32\nwork 1\ngrid _i1 < 1\n"
        "  for independent _i2 in 0 .. 4096\n    o0[_i2] = {}\n"
    )

    def cycles(count: int) -> float:
        value = "b0[_i2]"
        for _ in range(count):
            value = f"multiply_add({value}, 2.0, 3.0)"
        sizes = {"b0": constant(4096), "o0": constant(4096)}
        computed = loop_price(parse_program(text.format(value)), narrow, sizes).computed.value
        return computed * narrow.target.clock_ghz / 1000 / (4096 / 8)

    each = (cycles(40) - cycles(20)) / 20
    assert each == pytest.approx(8 / narrow.target.multiply_adds_per_cycle("float32"), rel=0.02)
    assert each < narrow.core.loops.instruction


def test_a_sweep_waits_for_the_one_before() -> None:
    """All of a chain is felt behind a long sweep, and a part of it behind a short one."""
    costs = MACHINE.core.loops
    apart, late, chained = (
        sweeps(needed, 4096) for needed in ("0.5", "_r3", "divide(1.0, square_root(_r3))")
    )
    assert late - apart == pytest.approx(costs.wait, rel=0.02)
    assert chained - late == pytest.approx(2 * costs.chained, rel=0.1)
    assert 1 < sweeps("_r3", 16) - sweeps("0.5", 16) < costs.wait / 2


def test_a_load_waits_for_what_no_store_hands_on() -> None:
    """Stored across two lines, under a mask, or met beside a line; not where vectors are whole.

    They are in scratch memory of which all loops use the first elements and no more.
    """

    def computed(stored: int, loaded: int, length: str, n: int = 64) -> float:
        text = (
            "buffer b0: float32\nresult o0: float32\nscratch s0: float32 of 4096, fixed\nwork 1\n"
            "grid _i1 < rows\n"
            f"  for masked _i2 in 0 .. {length}\n    s0[_i2 + {stored}] = b0[_i2]\n"
            f"  for masked _i3 in 0 .. {length}\n    o0[_i3] = s0[_i3 + {loaded}]\n"
        )
        price = whole(text, {"rows": 1, "n": n}, {"b0": 4096, "o0": 4096})
        return price.computed.value * MACHINE.target.clock_ghz / 1000

    handed = MACHINE.core.loops.handed
    together = computed(0, 0, "64")
    assert computed(0, 16, "64") == pytest.approx(together, rel=0.01)
    assert computed(3, 3, "64") - together > 0.9 * handed
    assert computed(0, 3, "64") - together > 0.9 * handed
    assert computed(16, 16, "n", 65) - computed(16, 16, "n", 64) > handed
    assert computed(0, 0, "n", 65) - computed(0, 0, "n", 64) < handed
    assert computed(3, 0, "n", 0) < handed


LEFT_OVER = """\
buffer b0: float32
result o0: float32
work 1
grid _i1 < rows
  for _i2 in 0 .. 8*(columns//8)
    for masked _i3 in 0 .. 256
      _r4 = sum of b0[_i1*columns*256 + _i2*256 + _i3]
  for _i5 in 8*(columns//8) .. columns
    for masked _i6 in 0 .. 256
      _r7 = sum of b0[_i1*columns*256 + _i5*256 + _i6]
  o0[_i1] = 1.0
"""


def test_what_a_loop_leaves_to_the_next_is_read_as_well() -> None:
    """A row of 15 is read by a loop over 8 and one over 7, of which neither reads the other's."""
    rows, columns = 20_000, 15
    sizes = {"rows": rows, "columns": columns}
    price = whole(LEFT_OVER, sizes, {"b0": rows * columns * 256, "o0": rows})
    moved = rows * columns * 1024 / MACHINE.target.levels[-1].bandwidth
    assert price.alone.value > 0.9 * moved / MACHINE.target.clock_ghz * 1000


def test_phases_follow_each_other() -> None:
    """A sweep that memory limits and one that computes in the first cache take both their times."""
    sums = SUMS.replace("  o0[_i1] = _r3\n", "")
    computing = (
        "  for masked _i4 in 0 .. columns\n"
        "    _r5 = sum of exponential(exponential(b0[_i4]))\n  o0[_i1] = _r5\n"
    )
    grid = SUMS[: SUMS.index("  for")]
    sizes = {"rows": 1 << 16, "columns": 512}
    elements = {"b0": 1 << 25, "o0": 1 << 16}
    reading, second, both = (
        whole(text, sizes, elements).alone.value
        for text in (sums + "  o0[_i1] = 1.0\n", grid + computing, sums + computing)
    )
    assert both > 0.9 * (reading + second)


def test_a_size_may_have_any_name() -> None:
    """Rows that end in gaps cost the same, whatever their length is called."""
    text = (
        "buffer b0: float32\nresult o0: float32\nwork 1\ngrid _i1 < rows\n"
        "  for _i2 in 0 .. 31\n    o0[_i1*columns + _i2] = b0[_i1]\n"
    )
    elements = {"b0": 1 << 20, "o0": 31 << 20}
    sizes = {"rows": 1 << 20, "columns": 31, "length": 31}
    named = [whole(t, sizes, elements) for t in (text, text.replace("columns", "length"))]
    assert named[0].alone.value == named[1].alone.value
    assert named[0].alone.value < whole(text, sizes | {"columns": 64}, elements).alone.value


def test_a_distance_that_no_run_has_does_no_harm() -> None:
    """A variant that is not meant for rows so long has a price there, too."""
    text = (
        "buffer b0: float32\nresult o0: float32\nwork 1\ngrid _i1 < rows\n"
        "  for _i2 in 0 .. 31\n    o0[_i1*(rows//(256//columns)) + _i2] = b0[_i1]\n"
    )
    elements = {"b0": 1 << 20, "o0": 31 << 20}
    assert whole(text, {"rows": 1 << 20, "columns": 288}, elements).alone.value > 0


STEPPED = """
buffer b0: float32
result o0: float32
work 1
grid _i1 < rows
  for _i2 in 0 .. 8
    for _i3 in 0 .. parts
      for masked _i4 in {}
        o0[_i1*8192 + 1024*_i2 + _i4] = exponential(b0[_i4])
"""


def test_a_loop_is_as_long_as_in_the_mean_of_the_one_around_it() -> None:
    """Of ten vectors, eight at a time, a first turn does eight, and the last one two.

    It does not matter that the beginning of the loop depends on a second one, farther out.
    """
    sizes, elements = {"rows": 100, "parts": 2, "half": 80}, {"b0": 256, "o0": 819200}
    stepped, second, known = (
        whole(STEPPED.format(bounds), sizes, elements).computed.value
        for bounds in (
            "128*_i3 .. min(128*_i3 + 128, 160)",
            "128*_i3 + _i2 .. min(128*_i3 + 128, 160) + _i2",
            "128*_i3 .. 128*_i3 + half",
        )
    )
    assert stepped == pytest.approx(known, rel=0.05)
    assert second == pytest.approx(known, rel=0.05)


def test_a_few_columns_are_picked_out_behind_their_loads_and_stores() -> None:
    """A third and a fourth column take as much more, though each vector has more to pick."""
    turned = "  s0[0], row 512 = transposed b0[0], row {0}: 512 x {0}\n  o0[_i1] = s0[0]\n"
    two, three, four = (small(turned.format(n)).computed.value for n in (2, 3, 4))
    assert four - three == pytest.approx(three - two, rel=0.01)


@pytest.mark.parametrize(("level", "taken"), [("zen4", 1), ("zen3", 2)])
def test_comparisons_that_others_take_in_cost_nothing(level: str, taken: int) -> None:
    """What denies a comparison is one itself; where there are masks, both of them are one more."""
    machine = Machine(preset(level))

    def each(condition: str) -> float:
        """Cycles of a vector for one choice by a condition."""
        value = "b0[_i2]"
        for _ in range(20):
            value = f"select({condition}, 1.0, {value})"
        text = (
            "buffer b0: float32\nresult o0: float32\nwork 1\ngrid _i1 < 1\n"
            f"  for independent _i2 in 0 .. 4096\n    o0[_i2] = {value}\n"
        )
        sizes = {"b0": constant(4096), "o0": constant(4096)}
        price = loop_price(parse_program(text), machine, sizes)
        vectors = 4096 * 4 / machine.target.vector_bytes
        return price.computed.evaluate({}) * machine.target.clock_ghz / 1000 / vectors / 20

    plain = "less_equal(b0[_i2], 0.5)"
    denied, known = f"logical_not({plain})", "logical_not(is_nan(b0[_i2]))"
    assert each(denied) == each(plain)
    both = each(f"logical_and({denied}, {known})")
    more = (both - each(plain)) / machine.core.loops.instruction
    assert more == pytest.approx(taken, rel=0.1)


def halves(columns: int, threads: int) -> Expr:
    """Picoseconds of rows of which every task doubles so many of the ``2 * columns`` columns."""
    place = f"{2 * columns}*rows*_i0 + {columns}*_i1 + {2 * columns}*_i2 + _i3"
    text = (
        "buffer b0: float32\nresult o0: float32\nwork 1\ngrid _i0 < batch, _i1 < 2\n"
        f"  for _i2 in 0 .. rows\n    for independent _i3 in 0 .. {columns}\n"
        f"      o0[{place}] = multiply(b0[{place}], 2.0)\n"
    )
    return loop_price(parse_program(text), MACHINE).time(MACHINE, threads)


def test_threads_that_store_parts_of_the_same_lines_wait_for_each_other() -> None:
    """In the middle of every row, unless it ends a line or the threads have rows of their own."""
    each = 1000 * MACHINE.core.threads.parted_ns
    for columns, lines in ((264, 1.0), (272, 0.25)):
        for batch, parts in ((1, 1), (2, 0), (3, 1)):
            sizes = {"rows": 400, "batch": batch}
            one, two = (halves(columns, threads).evaluate(sizes) for threads in (1, 2))
            tasks = 2 * batch
            shared = one * -(-tasks // 2) / tasks + 1000 * MACHINE.target.sync_ns
            shared += 400 * each * lines * parts
            assert two == pytest.approx(min(shared, one), rel=0.03)
