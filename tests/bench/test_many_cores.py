"""Simulated calls of models: kernels, grids and choices are those of the compiled model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from support.text_models import model
from tilewright.bench.many_cores import ManyCores
from tilewright.cli import main
from tilewright.compile import compile_model
from tilewright.cost import Loss
from tilewright.support.errors import InputError

DIMS = {"n": (0, 4096)}


def layer() -> Any:
    """A product with an activation, a running sum in rows, and a small kernel of a few tasks."""
    return model(
        """g (float[n, 256] x, float[256, 512] w) => (float[n, 512] y, float[n, 256] z) {
            a = MatMul (x, w)
            y = Tanh (a)
            i = Constant <value = int64 {1}> ()
            z = CumSum (x, i)
        }"""
    )


@pytest.fixture(scope="module")
def cores() -> ManyCores:
    return ManyCores(layer(), dims=DIMS)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("rows", [1, 63, 2048])
def test_steps_are_those_that_the_runtime_takes(cores: ManyCores, rows: int, threads: int) -> None:
    uses = compile_model(layer(), dims=DIMS, num_threads=threads).explain(n=rows)
    (call,) = cores.at({"n": rows}, [threads])
    found = [(run.step.label, run.step.tasks.count, run.workers) for run in call.steps]
    assert sorted(found) == sorted((use.label, use.grid, use.threads) for use in uses)
    assert [run.step.work for run in call.steps] == [
        use.work for run in call.steps for use in uses if use.label == run.step.label
    ]


def test_more_threads_are_faster_and_used_less(cores: ManyCores) -> None:
    calls = cores.at({"n": 4096}, [1, 2, 16])
    assert calls[0].utilisation == pytest.approx(1.0)
    assert calls[0].time > calls[1].time > calls[2].time
    assert 1.5 < calls[0].time / calls[1].time <= 2.0
    assert calls[2].utilisation < calls[1].utilisation <= 1.0


def test_empty_and_small_calls(cores: ManyCores) -> None:
    (empty,) = cores.at({"n": 0}, [4])
    assert empty.steps == () and empty.time == 0 and empty.utilisation == 1.0
    (small,) = cores.at({"n": 1}, [64])
    assert max(small.lost, key=lambda loss: small.lost[loss]) in (Loss.LITTLE_WORK, Loss.FEW_TASKS)
    empty, shared = cores.at({"n": 0}, [1, 2])
    assert shared.speed_up(empty) == 1.0


def test_a_described_machine_needs_not_be_here() -> None:
    cores = ManyCores(layer(), dims=DIMS, target="zen3")
    assert cores.machine.target.units == 64
    (call,) = cores.at({"n": 4096}, [64])
    assert 0.0 < call.utilisation < 1.0


def test_a_shape_names_all_dimensions(cores: ManyCores) -> None:
    with pytest.raises(InputError, match="dimensions"):
        cores.at({"m": 3}, [1])


def test_timed_beside_the_simulation(cores: ManyCores) -> None:
    inputs = {"x": np.ones((9, 256), np.float32), "w": np.ones((256, 512), np.float32)}
    found = cores.measured(lambda _: inputs, [1, 2])
    assert set(found) == {1, 2} and min(found.values()) > 0


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(layer(), path)
    arguments = ["simulate", str(path), "--shape", "n=512", "--threads", "16,2"]
    assert main([*arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [call["threads"] for call in document["calls"]] == [2, 16]
    for call in document["calls"]:
        assert call["utilisation"] + sum(call["lost"].values()) == pytest.approx(1.0)
        assert call["measured_seconds"] is None
    assert main([*arguments, "--target", "zen4"]) == 0
    assert "zen4, 96 cores" in capsys.readouterr().out
    assert main(["simulate", str(path), "--threads", "0"]) == 2
    assert "numbers of threads" in capsys.readouterr().err
    assert main(["simulate", str(path)]) == 2
    assert "n" in capsys.readouterr().err


def test_few_tasks_become_as_many_as_threads() -> None:
    """Convolutions on small images, whose blocks of pixels are large for one thread."""
    text = """convolutions (float[n, 96, 14, 14] x) => (float[n, 96, 14, 14] z) {
        y = Conv <kernel_shape = [1, 1]> (x, v)
        a = Relu (y)
        z = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (a, w)
    }"""
    generator = np.random.default_rng(3)
    weights = {
        "v": generator.standard_normal((96, 96, 1, 1), np.float32),
        "w": generator.standard_normal((96, 96, 3, 3), np.float32),
    }
    proto = model(text)
    proto.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name) for name, array in weights.items()
    )
    cores = ManyCores(proto, dims={"n": (1, 64)}, target="zen4", accuracy="strict")
    alone, *calls = cores.at({"n": 2}, [1, 5, 16])
    before = {run.step.label: run.step.tasks.count for run in alone.steps}
    for call in calls:
        convolutions = [run for run in call.steps if "Conv" in run.step.label]
        assert len(convolutions) == 2
        for run in convolutions:
            assert 5 * run.workers >= 4 * call.threads
            assert run.step.tasks.count >= before[run.step.label]
    assert calls[-1].utilisation > 0.75
