"""If, Loop and Scan whose bodies the extension calls, and those that Python calls.

Needs: a CPU.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnx.parser
import pytest
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from tilewright.ops.reference_corrections import CORRECTIONS
from tilewright.runtime.control import ControlOperator, ControlStep
from tilewright.runtime.program import CONTROL
from tilewright.support.errors import ArtifactError, ExecutionError, ResourceError

Array = np.ndarray[Any, Any]
HEAD = '<ir_version: 9, opset_import: ["" : 17]>\n'

SUMS = """
g (int64 m, float[n, 3] x) => (float[n, 3] y, float[k, n] z) {
  last = Constant<value: tensor = int64[1] {1}>()
  half = Constant<value: tensor = float {0.5}>()
  y, z = Loop (m, , x) <body = b (int64 turn, bool going, float[n, 3] s)
    => (bool still, float[n, 3] t, float[n] sums) {
      still = Identity(going)
      t = Mul(s, half)
      sums = ReduceSum<keepdims = 0>(t, last)
    }>
}"""

GROWING = """
g (bool c, float[n, 2] x, int64 limit) => (float[k, 2] y, int64[t] lengths) {
  first = Constant<value: tensor = int64 {0}>()
  y, lengths = Loop ( , c, x) <body = b (int64 turn, bool going, float[a, 2] s)
    => (bool still, float[b, 2] more, int64 length) {
      more = Concat<axis = 0>(s, x)
      sizes = Shape(more)
      length = Gather(sizes, first)
      still = Less(length, limit)
    }>
}"""

SCAN = """
g (float[b, 3] h, float[{sizes}] xs) => (float[b, 3] y, float[{made}] ys, float[t, b] sums) {{
  last = Constant<value: tensor = int64[1] {{1}}>()
  y, ys, sums = Scan <num_scan_inputs = 1, scan_input_axes = [{axis}],
    scan_output_axes = [{out_axis}, 0], scan_input_directions = [{back}],
    scan_output_directions = [{out_back}, 1], body = r (float[b, 3] s, float[b, 3] x)
    => (float[b, 3] t, float[b, 3] each, float[b] total) {{
      a = Add(s, x)
      t = Tanh(a)
      each = Mul(t, x)
      total = ReduceSum<keepdims = 0>(each, last)
    }}>(h, xs)
}}"""

NESTED = """
g (int64 m, bool c, float[n, 3] x) => (float[n, 3] y) {
  always = Constant<value: tensor = bool {1}>()
  two = Constant<value: tensor = int64 {2}>()
  y = Loop (m, c, x) <body = outer (int64 turn, bool going, float[n, 3] s)
    => (bool still, float[n, 3] t) {
      still = Identity(going)
      odd = Mod(turn, two)
      is_odd = Cast<to = 9>(odd)
      t = If (is_odd) <
        then_branch = inside () => (float[n, 3] u) {
          u = Loop (turn, always, s) <body = inner (int64 i, bool on, float[n, 3] p)
            => (bool again, float[n, 3] q) { again = Identity(on) q = Sub(p, x) }>
        }, else_branch = outside () => (float[n, 3] u) { u = Add(s, x) }>
    }>
}"""

KEPT = """
g (bool c, float[n, 3] x) => (int64[2, k] y, int64[2] sizes) {
  y = If (c) <then_branch = a () => (int64[2, k] u) { u = NonZero(x) },
    else_branch = b () => (int64[2, j] u) { t = Neg(x) s = Relu(t) u = NonZero(s) }>
  sizes = Shape(y)
}"""

ENDLESS = """
g (bool c, float[n] x) => (float[n] y) {
  y = Loop ( , c, x) <body = b (int64 turn, bool going, float[n] s)
    => (bool still, float[n] t) { still = Identity(going) t = Neg(s) }>
}"""

PICKED = """
g (int64 m, int64[t] places, float[n] x) => (float[k] y) {
  first = Constant<value: tensor = float {0}>()
  total, y = Loop (m, , first) <body = b (int64 turn, bool going, float s)
    => (bool still, float t, float each) {
      still = Identity(going)
      place = Gather(places, turn)
      each = Gather(x, place)
      t = Add(s, each)
    }>
}"""


def compiled(text: str) -> tuple[tw.CompiledModel, Callable[..., list[Array]]]:
    """A model, and what onnx's reference makes of it."""
    model = onnx.parser.parse_model(HEAD + text)
    reference = ReferenceEvaluator(model, new_ops=list(CORRECTIONS))

    def run(**feeds: Any) -> list[Array]:
        made: list[Any] = list(reference.run(None, feeds))
        return [np.asarray(value) for value in made]

    return tw.compile(model, fallback="error"), run


def agree(found: Sequence[Array], wanted: Sequence[Array]) -> None:
    """The same shapes and dtypes, and about the same numbers."""
    for mine, other in zip(found, wanted, strict=True):
        assert (mine.dtype, mine.shape) == (other.dtype, other.shape)
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)


def numbers(*shape: int) -> Array:
    """Random ones."""
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def native(model: tw.CompiledModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on, no step may be called by Python."""

    def refuse(*_: Any) -> None:
        raise AssertionError

    assert model.program.steps
    monkeypatch.setattr(ControlOperator, "__call__", refuse)


@pytest.mark.parametrize("turns", [-1, 0, 1, 2, 3, 4, 5, 17, 100, 1500])
def test_results_of_turns_are_stacked(turns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, reference = compiled(SUMS)
    native(model, monkeypatch)
    for rows in (0, 1, 7, 300):
        feeds = {"m": np.array(turns), "x": numbers(rows, 3)}
        found = list(model.run(feeds).values())
        if turns > 0:
            agree(found, reference(**feeds))
        else:
            agree(found, [feeds["x"], np.empty((0, rows), np.float32)])


def test_results_are_the_callers_own() -> None:
    model, _ = compiled(SUMS)
    given = numbers(4, 3)
    for turns in (0, 2):
        first, _ = model(np.array(turns), given)
        kept = first.copy()
        second, _ = model(np.array(turns), given)
        second[:] = 7.0
        np.testing.assert_array_equal(first, kept)
        np.testing.assert_array_equal(given, numbers(4, 3))


def test_results_where_the_caller_wants_them() -> None:
    model, reference = compiled(SUMS)
    feeds = {"m": np.array(5), "x": numbers(4, 3)}
    own = {"y": np.empty((4, 3), np.float32), "z": np.empty((5, 4), np.float32)}
    found = model.run(feeds, out=own)
    assert found["y"] is own["y"] and found["z"] is own["z"]
    agree(list(own.values()), reference(**feeds))


def test_states_that_grow_from_turn_to_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    model, reference = compiled(GROWING)
    native(model, monkeypatch)
    for going in (True, False):
        for rows, limit in ((1, 0), (1, 40), (3, 9), (50, 20_000)):
            feeds = {"c": np.array(going), "x": numbers(rows, 2), "limit": np.array(limit)}
            found = list(model.run(feeds).values())
            if going:
                agree(found, reference(**feeds))
            else:
                agree(found, [feeds["x"], np.empty(0, np.int64)])


@pytest.mark.parametrize("back", [(0, 0), (1, 0), (0, 1)])
@pytest.mark.parametrize("axes", [(0, 0), (1, 0), (2, 2), (0, 1), (-1, -1)])
def test_scans_along_any_axis(
    axes: tuple[int, int], back: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def sizes(axis: int, *rest: Any) -> list[Any]:
        made = list(rest[1:])
        made.insert(axis % 3, rest[0])
        return made

    places = {"axis": axes[0], "out_axis": axes[1], "back": back[0], "out_back": back[1]}
    shapes = {name: ", ".join(map(str, sizes(axis, "t", "b", 3)))
              for name, axis in zip(("sizes", "made"), axes, strict=True)}  # fmt: skip
    model, reference = compiled(SCAN.format(**places, **shapes))
    native(model, monkeypatch)
    for length, batch in ((1, 1), (5, 1), (33, 4), (7, 0)):
        feeds = {"h": numbers(batch, 3), "xs": numbers(*sizes(axes[0], length, batch, 3))}
        agree(list(model.run(feeds).values()), reference(**feeds))
    nothing = model.run({"h": numbers(2, 3), "xs": numbers(*sizes(axes[0], 0, 2, 3))})
    assert nothing["ys"].shape == tuple(sizes(axes[1], 0, 2, 3))
    assert nothing["sums"].shape == (0, 2)
    np.testing.assert_array_equal(nothing["y"], numbers(2, 3))


def test_bodies_inside_of_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    model, reference = compiled(NESTED)
    native(model, monkeypatch)
    for turns in (1, 2, 3, 8):
        for rows in (0, 1, 40):
            feeds = {"m": np.array(turns), "c": np.array(True), "x": numbers(rows, 3)}
            agree([model.run(feeds)["y"]], reference(**feeds))
    feeds = {"m": np.array(4), "c": np.array(False), "x": numbers(2, 3)}
    np.testing.assert_array_equal(model.run(feeds)["y"], feeds["x"])


def test_sizes_that_a_branch_finds_out(monkeypatch: pytest.MonkeyPatch) -> None:
    model, reference = compiled(KEPT)
    native(model, monkeypatch)
    for going in (True, False):
        for x in (numbers(5, 3), np.zeros((4, 3), np.float32), numbers(500, 3)):
            feeds = {"c": np.array(going), "x": x}
            agree(list(model.run(feeds).values()), reference(**feeds))


def test_several_threads_call_one_model() -> None:
    """Each with its own states, at shapes of its own."""
    model, reference = compiled(NESTED)
    cases = [{"m": np.array(m), "c": np.array(True), "x": numbers(m * 50, 3)} for m in range(1, 9)]
    wanted = [reference(**feeds) for feeds in cases]

    def call(number: int) -> None:
        for round_ in range(20):
            case = (number + round_) % len(cases)
            agree([model.run(cases[case])["y"]], wanted[case])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(call, range(4)))


def test_an_error_inside_of_a_turn_leaves_the_model_as_it_was() -> None:
    model, _ = compiled(PICKED)
    x = np.arange(5, dtype=np.float32)
    for _ in range(3):
        with pytest.raises(ExecutionError, match="Gather"):
            model(np.array(3), np.array([1, 9, 2]), x)
        np.testing.assert_array_equal(model(np.array(3), np.array([1, 4, 2]), x), [1, 4, 2])


def test_a_limit_of_bytes_holds_for_all_that_turns_make() -> None:
    model, _ = compiled(GROWING)
    feeds = {"c": np.array(True), "x": numbers(1, 2), "limit": np.array(1000)}
    model.max_bytes = 4096
    with pytest.raises(ResourceError, match="max_bytes"):
        model.run(feeds)
    model.run(feeds | {"limit": np.array(10)})
    model.max_bytes = None
    assert model.run(feeds)["y"].shape == (1000, 2)


def test_a_signal_ends_a_loop_without_end() -> None:
    model, _ = compiled(ENDLESS)
    # Python leaves a signal ignored that whoever started it ignores, as shells do behind an "&".
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        model(np.array(True), numbers(3))
    timer.join()
    signal.signal(signal.SIGINT, before)
    np.testing.assert_array_equal(model(np.array(False), numbers(3)), numbers(3))


def test_other_threads_of_python_run_meanwhile() -> None:
    """Turns are made without the interpreter's lock, however short they are."""
    model, _ = compiled(SUMS)
    ended = threading.Event()
    counted = 0

    def call() -> None:
        model(np.array(300_000), numbers(1, 3))
        ended.set()

    thread = threading.Thread(target=call)
    thread.start()
    while not ended.wait(1e-3):
        counted += 1
    thread.join()
    assert counted > 3


def test_bodies_that_need_python_are_called_from_there() -> None:
    text = """
    g (int64 m, float[n, 2, 2] x) => (float[n, 2, 2] y, float[k, n] z) {
      y, z = Loop (m, , x) <body = b (int64 turn, bool going, float[n, 2, 2] s)
        => (bool still, float[n, 2, 2] t, float[n] each) {
          still = Identity(going)
          t = Add(s, x)
          each = Det(t)
        }>
    }"""
    model = tw.compile(onnx.parser.parse_model(HEAD + text))
    x = numbers(3, 2, 2)
    for turns in (0, 1, 4):
        found = model.run({"m": np.array(turns), "x": x})
        wanted = [np.linalg.det((turn + 2) * x) for turn in range(turns)]
        np.testing.assert_allclose(found["z"], np.reshape(wanted, (turns, 3)), rtol=1e-3)
        np.testing.assert_allclose(found["y"], (turns + 1) * x, rtol=1e-5)


@pytest.mark.parametrize("kind", ["Add", "Det"])
def test_what_no_turn_has_made_has_the_sizes_that_operands_tell(kind: str) -> None:
    """Of Det, which needs Python, and of Add, in whose place the extension knows the sizes."""
    first = {"Add": "c = Identity(x)", "Det": "c = Det(x)"}[kind]
    size = {"Add": "", "Det": ", 2, 2"}[kind]
    text = f"""
    g (int64 m, float[n, q{size}] xs, float[n, r] ys, float[q{size}] x, float[r] y)
      => (float[a, n] scanned, float[k, b] looped) {{
      scanned = Scan <num_scan_inputs = 2, scan_output_axes = [-1], body = b
        (float[q{size}] x, float[r] y) => (float[w] z) {{ {first}  z = Add(c, y) }}> (xs, ys)
      looped = Loop (m, , ) <body = b (int64 turn, bool going) => (bool still, float[w] z) {{
        still = Identity(going)
        {first}
        z = Add(c, y)
      }}>
    }}"""
    model = tw.compile(onnx.parser.parse_model(HEAD + text))
    for turns, q, r in ((2, 3, 3), (0, 3, 3), (0, 3, 1), (0, 1, 4), (1, 1, 4)):
        tail = (2, 2) if kind == "Det" else ()
        xs, ys = numbers(turns, q, *tail), numbers(turns, r)
        x, y = numbers(q, *tail), numbers(r)
        given = {"m": np.array(turns), "xs": xs, "ys": ys, "x": x, "y": y}
        found = model.run(given)
        assert found["scanned"].shape == (max(q, r), turns)
        assert found["looped"].shape == (turns, max(q, r))


def test_what_no_turn_has_made_has_its_rank_where_the_reference_makes_it() -> None:
    """In a body that handles strings, which tells the sizes of what it makes only when it runs."""
    text = """
    g (int64 m, float[n, 2] x) => (float[k, n, 2] y) {
      none, y = Loop (m, , x) <body = b (int64 turn, bool going, float[n, 2] s)
        => (bool still, float[n, 2] t, z) {
          still = Identity(going)
          t = Identity(s)
          words = Cast<to = 8>(s)
          z = Cast<to = 1>(words)
        }>
    }"""
    model = tw.compile(onnx.parser.parse_model(HEAD + text))
    assert model.info.fallbacks == {"Cast": 2}
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    for turns in (0, 1, 4):
        found = model.run({"m": np.array(turns), "x": x})["y"]
        assert found.shape[0] == turns and found.shape[2] == 2
        assert (found == x).all()


@pytest.mark.parametrize("damage", ["[]", '["Loop",[9],[0],[[0]],[],0,[],[],[],[]]', "nonsense"])
def test_a_damaged_payload_is_refused(damage: str) -> None:
    with pytest.raises(ArtifactError, match="damaged"):
        ControlStep.of(CONTROL + damage.encode()).description([None, None], [1])
