"""Reports of kernels and the page about a model: figures that agree, markup that is well formed.

Needs the CPU; what is timed is not judged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest

from support.oldest_level import of_a_module
from support.text_models import model
from tilewright.bench.explain import Called, Explained, ModelReport, signed_seconds
from tilewright.bench.figures import (
    PHONE,
    WINDOW,
    Paper,
    kernel_bars,
    latency_lines,
    roofline,
    standalone,
)
from tilewright.cli import main
from tilewright.support.errors import InputError

__all__ = ["of_a_module"]

SHAPE = {"n": 40}
NAMESPACE = "{http://www.w3.org/2000/svg}"


def two_layers() -> Any:
    """A product, the softmax of its rows, and a product of that which ends in an activation."""
    return model(
        """g (float[n, 64] x, float[64, 96] w, float[96, 32] v) => (float[n, 32] y) {
            a = MatMul (x, w)
            b = Softmax <axis = -1> (a)
            c = MatMul (b, v)
            y = Tanh (c)
        }"""
    )


@pytest.fixture(scope="module")
def report() -> ModelReport:
    explained = Explained(two_layers(), 1, dims={"n": (0, 512)})
    inputs = {
        "x": np.ones((40, 64), np.float32),
        "w": np.ones((64, 96), np.float32),
        "v": np.ones((96, 32), np.float32),
    }
    return explained.at(SHAPE, explained.called(inputs, 0.02))


def test_figures_of_kernels_agree_with_each_other(report: ModelReport) -> None:
    assert report.shape == SHAPE and report.threads == 1 and report.other == 0.0
    assert sum(kernel.multiply_adds for kernel in report.kernels) == 40 * (64 * 96 + 96 * 32)
    for kernel in report.kernels:
        assert kernel.measured > 0 and kernel.modelled > 0 and kernel.limit > 0
        assert kernel.share_of_limit == kernel.limit / kernel.measured
        assert kernel.runner_up_time >= kernel.modelled or not kernel.runner_up
        assert kernel.bytes > 0 and kernel.threads == 1
    operators = {text.split()[0] for kernel in report.kernels for text in kernel.operators}
    assert operators >= {"MatMul", "Softmax", "Tanh"}
    (kernel,) = report.kernels  # the weights of a softmax, multiplied: as in attention
    assert kernel.kind == "attention" and len(kernel.operators) == 4
    assert kernel.bytes == 4 * (40 * 64 + 64 * 96 + 96 * 32 + 40 * 32)
    assert kernel.saving == kernel.apart - kernel.modelled and kernel.apart > 0
    assert json.loads(json.dumps(report.to_json()))["limit"] == report.limit


def test_the_best_rejected_choice_computes_the_same(report: ModelReport) -> None:
    (kernel,) = report.kernels
    other = kernel.rejected
    assert other is not None and other.replaced == (("attention", kernel.label),)
    kinds = [kind for kind, _ in other.kernels]
    assert len(kinds) > 1 and "contraction" in kinds and other.described == " + ".join(kinds)
    assert other.more > -kernel.modelled
    (written,) = report.to_json()["kernels"]
    assert written["rejected"]["more"] == other.more
    assert f"saves {signed_seconds(other.more)}" in texts(kernel_bars(report))[1]
    assert signed_seconds(-2e-6) == "-" + signed_seconds(2e-6)


def test_a_ragged_model_is_refused() -> None:
    from tilewright import Dim

    text = "g (float[n, m, 8] x) => (float[n, m, 8] y) { y = Tanh (x) }"
    explained = Explained(model(text), dims={"m": Dim(0, 8, ragged="n")})
    with pytest.raises(InputError, match="ragged"):
        explained.at({"n": 2, "m": 3}, Called(0.0, {}, {}))


def texts(figure: str) -> list[str]:
    root = ElementTree.fromstring(figure)
    assert root.tag == f"{NAMESPACE}svg"
    return ["".join(found.itertext()) for found in root.iter(f"{NAMESPACE}text")]


@pytest.mark.parametrize("paper", [WINDOW, PHONE])
def test_figures_are_drawings_within_their_box(report: ModelReport, paper: Paper) -> None:
    bars, points = kernel_bars(report, paper), roofline(report, paper)
    lines = latency_lines("n", {"onnxruntime": [(1, 1e-5), (50_000, 1.2)]}, paper)
    assert len(re.findall("fill='var\\(--own\\)'", bars)) == len(report.kernels)
    assert report.kernels[0].label in texts(bars)[0] or len(report.kernels) > 1
    assert len(re.findall("<circle", points)) == len(report.kernels)
    for figure in (bars, points, lines):
        root = ElementTree.fromstring(figure)
        _, _, width, height = map(float, root.attrib["viewBox"].split())
        for found in root.iter():
            for name, most in (("x", width), ("cx", width), ("y", height), ("cy", height)):
                assert 0 <= float(found.attrib.get(name, 0)) <= most
            ends = found.attrib.get("text-anchor", "start")
            if found.tag == f"{NAMESPACE}text" and ends != "middle":
                characters = len(found.text or "") * (6 if ends == "start" else -6)
                assert 0 <= float(found.attrib["x"]) + characters <= width
    assert "--own: " in standalone(bars) and texts(standalone(bars))


def test_lines_of_engines_are_named() -> None:
    lines = {"tilewright": [(1, 1e-3), (8, 4e-3)], "a < b": [(1, 1e-3), (8, 4e-3)]}
    figure = latency_lines("batch", lines)
    assert {"tilewright", "a < b", "batch", "1", "5", "2.00 ms"} <= set(texts(figure))
    assert texts(latency_lines("batch", {"one": [(3, 0.5)]}))


class Checker(HTMLParser):
    """Counts what is open, and what a page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.loaded: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loaded += [str(value) for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "br"):
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def run(*arguments: object) -> str:
        assert main([str(argument) for argument in arguments]) == 0
        return capsys.readouterr().out

    return run


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    onnx.save(two_layers(), tmp_path / "two.onnx")
    return tmp_path / "two.onnx"


def test_explain_shows_and_draws(command: Callable[..., str], saved: Path) -> None:
    drawn = saved.with_suffix(".svg")
    options = ["--shape", "n=40", "--seconds", "0.1", "--threads", "1", "--dim", "n=0..512"]
    text = command("explain", saved, *options, "--svg", drawn)
    assert "MatMul" in text and "of limit" in text and "at n=40" in text
    assert texts(drawn.read_text())
    document = json.loads(command("explain", saved, *options, "--json"))
    assert document["kernels"] and document["shape"] == {"n": 40}


def test_the_plan_as_a_model_of_functions(command: Callable[..., str], saved: Path) -> None:
    to = saved.with_name("plan.onnx")
    command("explain", saved, "--seconds", "0.1", "--dim", "n=0..512", "--onnx", to)
    made = onnx.load(to)
    onnx.checker.check_model(made, full_check=True)
    assert [n.op_type for n in made.graph.node] == [f.name for f in made.functions]
    inside = [n.op_type for function in made.functions for n in function.node]
    assert inside.count("Contract") == 2 and "HyperbolicTangent" in inside and "Reduce" in inside
    for node in made.graph.node:
        told = {a.name: a.s.decode() for a in node.attribute}
        assert float(told["takes_us"]) > 0 and told["operators"]
        # Nothing is saved where the variant that is chosen is what separate kernels are.
        assert re.fullmatch(r"-?\d+\.\d", told["saves_us"]) and "contraction" in told["instead"]
    assert main(["explain", str(saved), "--onnx", str(saved), "--seconds", "0.1"]) != 0
    assert onnx.load(saved).graph.node[0].op_type == "MatMul"


def test_the_page_loads_nothing_and_is_well_formed(
    command: Callable[..., str], saved: Path
) -> None:
    to = saved.with_suffix(".html")
    command("report", saved, "-o", to, "--dim", "n=1..64", "--rounds", "1", "--threads", "1")
    checker = Checker()
    checker.feed(to.read_text())
    checker.close()
    assert not checker.stack and not checker.loaded
    text = " ".join(checker.texts)
    assert "Compiled once" in text and "Memory" in text and "Along n" in text
    assert "width=device-width" in to.read_text()
    command(
        "report", saved, "-o", to, "--dim", "n=1..4", "--rounds", "1"
    )  # its own may be replaced


def test_sizes_that_depend_on_values_are_assumed_in_prices() -> None:
    found = model(
        """g (float[n, 8] x, int64[2] s) => (float[a, b] y) {
            r = Reshape (x, s)
            y = Softmax <axis = -1> (r)
        }"""
    )
    inputs = {"x": np.ones((6, 8), np.float32), "s": np.array([3, 16])}
    explained = Explained(found, 1)
    report = explained.at({"n": 6}, explained.called(inputs, 0.02))
    assert report.assumed and all(name.startswith("value_") for name in report.assumed)
    assert report.kernels and all(kernel.modelled > 0 for kernel in report.kernels)
