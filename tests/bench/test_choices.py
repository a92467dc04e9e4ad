"""What is chosen along dimensions, as the runtime chooses it, and what choices lose at a shape."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest

from support.oldest_level import of_a_module
from support.text_models import model
from tilewright.bench.choices import Region, Regions, Regret, Regrets, regions_along, regrets_at
from tilewright.bench.figures import region_strips
from tilewright.bench.variants import chosen_variants
from tilewright.cli import main
from tilewright.compile import compile_stages
from tilewright.runtime.model import CompiledModel
from tilewright.runtime.program import Dimension

__all__ = ["of_a_module"]

PRODUCTS = "g (float[n, 256] x, float[256, 256] w) => (float[n, 256] y) { y = MatMul (x, w) }"


def test_regions_are_what_the_runtime_chooses() -> None:
    made = compile_stages(model(PRODUCTS), dims={"n": (0, 4096)}, target="zen4")
    (program,) = made.contents.programs.values()
    (dimension,) = program.dimensions
    found = regions_along(program, {"n": 40}, dimension, 2)
    assert found.dimension == "n" and found.sizes[0] == 1 and found.sizes[-1] == 4096
    assert len(program.choices) == len(found.varying) + found.steady > 0
    (region,) = found.varying
    for size, taken in list(zip(found.sizes, region.taken, strict=True))[::9]:
        assert chosen_variants(program, {"n": size}, 2) == (taken,)
    pieces = list(region.stretches(found.sizes))
    assert pieces[0][0] == 1 and pieces[-1][1] == 4096 and len(pieces) > 1
    assert all(a[1] < b[0] and a[2] != b[2] for a, b in pairwise(pieces))


def test_sizes_are_those_that_a_dimension_may_have() -> None:
    made = compile_stages(model(PRODUCTS), dims={"n": (0, 4096)}, target="zen4")
    (program,) = made.contents.programs.values()
    found = regions_along(program, {"n": 8}, Dimension("n", 5, 40, 8, "given", ""), 1)
    assert found.sizes == (8, 16, 24, 32, 40)
    assert regions_along(program, {"n": 0}, Dimension("n", 0, 0, 1, "given", ""), 1).sizes == ()


def test_strips_are_drawn_within_their_box() -> None:
    kernels = tuple(f"MatMul <{n}>" for n in range(3))
    strips = (
        Region(kernels, ("first & only kernel", "other"), (0, 0, 1, 0), True),
        Region(("a",), ("tall", "wide", "flat"), (2, 0, 1, 1), False),
    )
    for sizes, base in (((1, 2, 3, 4), 1), ((1, 64, 4096, 65536), 0), ((7, 8, 9, 10), 9)):
        figure = region_strips(Regions("n", sizes, {"n": base}, strips, 5))
        root = ElementTree.fromstring(figure)
        _, _, width, height = map(float, root.attrib["viewBox"].split())
        pieces = [e for e in root.iter() if e.tag.endswith("rect")]
        assert len(pieces) == 3 + 3
        for piece in pieces:
            left, wide = float(piece.attrib["x"]), float(piece.attrib["width"])
            assert wide > 0 and left >= 0 and left + wide <= width + 1
            assert float(piece.attrib["y"]) + 18 <= height
        dashed = [e for e in root.iter() if "stroke-dasharray" in e.attrib]
        assert len(dashed) == (base > 0)
        tips = ["".join(e.itertext()) for e in root.iter() if e.tag.endswith("title")]
        assert any("way 2 (other)" in tip for tip in tips)
    assert region_strips(Regions("n", (3,), {"n": 3}, (), 1))


def test_a_loss_is_one_beyond_noise() -> None:
    def regret(seconds: float, least: float) -> Regret:
        return Regret(("k",), "a", "b", seconds, least, 2)

    assert regret(1.0, 0.99).lost == 0.0 and regret(1.0, 0.75).lost == 0.25
    assert Regrets((regret(1.0, 0.75), regret(1.0, 1.0)), 1.0, 0).lost == pytest.approx(0.125)
    assert Regrets((), 0.0, 0).lost == 0.0


def test_regrets_of_kernels_that_are_alike_are_one() -> None:
    text = """g (float[n, 64] x, float[64, 64] w) => (float[n, 64] y) {
        a = MatMul (x, w)
        b = Tanh (a)
        y = MatMul (b, w)
    }"""
    made = compile_stages(model(text), dims={"n": (0, 512)})
    called = CompiledModel.from_contents(made.contents, num_threads=1)
    inputs = {"x": np.ones((40, 64), np.float32), "w": np.ones((64, 64), np.float32)}
    found = regrets_at(made.contents, called, {"n": 40}, inputs, 5.0)
    assert found.others == 0 and 0 < found.share <= 1 and 0 <= found.lost < 1
    assert sum(len(regret.kernels) for regret in found.found) == len(called.program.choices)
    for regret in found.found:
        assert 0 < regret.least <= regret.seconds and regret.timed >= 2
        assert regret.lost == 0 or regret.taken != regret.fastest
    assert not regrets_at(made.contents, called, {"n": 40}, inputs, 0.0).found


def test_a_page_about_a_ragged_model(tmp_path: Path) -> None:
    text = """g (float[batch, length, 16] x, float[16, 16] w) => (float[batch, length, 16] y) {
        a = MatMul (x, w)
        y = Tanh (a)
    }"""
    path, to = tmp_path / "m.onnx", tmp_path / "page.html"
    onnx.save(model(text), path)
    dims = ["--dim", "batch=1..2", "--dim", "length=1..8@batch"]
    assert main(["report", str(path), "-o", str(to), *dims, "--rounds", "1", "--threads", "1"]) == 0
    shown = to.read_text()
    assert "are left out" in shown and "Time of each step at" in shown and "Along length" in shown
    assert "the machine allows" not in shown and "<h2>Roofline" not in shown
