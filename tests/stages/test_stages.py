"""Every stage is verified where that is asked for, and written down where that is asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from support.small_models import encoder
from tilewright.compile import compile_model, compile_stages
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, node
from tilewright.ir.kernel import Kernel, KernelKind
from tilewright.ir.primitives import Input, Map, TensorType
from tilewright.ir.product_nest import ProductNest
from tilewright.ir.tile import Loop, TileProgram
from tilewright.ir.verify import VerificationError
from tilewright.shape import Scope, constant
from tilewright.stages import CHECK_VARIABLE, Stages, is_checked
from tilewright.support.errors import InputError, InternalError, TilewrightError
from tilewright.tile import lower
from tilewright.tile.values.lowering import Lowering


def model() -> onnx.ModelProto:
    """Two operators that become one kernel."""
    graph = helper.make_graph(
        [helper.make_node("Exp", ["x"], ["e"]), helper.make_node("Neg", ["e"], ["y"])],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 8])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def misfit() -> tuple[Node, Graph]:
    """A node whose type does not follow from its operand's, and a graph of it."""
    scope = Scope()
    n = scope.declare("n", 0, 64)
    x = node(Input("x", DType.FLOAT32, (n,)))
    y = object.__new__(Node)
    y.primitive, y.inputs, y.type = Map("absolute"), (x,), TensorType(DType.INT8, (n,))
    return y, Graph("wrong", (x,), (("y", y),), scope)


def test_the_stages_are_numbered_files(tmp_path: Path) -> None:
    compile_stages(model(), levels=["x86-64", "avx2"], dump=tmp_path / "stages")
    files = sorted(path.name for path in (tmp_path / "stages").iterdir())
    assert files[0] == "00-import.txt"
    assert [name.split("-", 1)[1] for name in files[-5:]] == [
        "prepare.txt", "plan-x86-64.txt", "tile-x86-64.txt", "plan-avx2.txt", "tile-avx2.txt"
    ]  # fmt: skip
    assert all("rewrite-simplify" in name for name in files[1:-5])
    plan, tile = ((tmp_path / "stages" / name).read_text() for name in files[-4:-2])
    assert plan.startswith("plan small: 1 kernels\n  kernel 0 loops %1: float32[batch, 8]")
    assert "step b0 = x, o0 = %1" in tile


def test_the_time_of_every_stage_is_kept() -> None:
    made = compile_stages(model(), levels=["x86-64"], plan="optimal")
    stages = {"layouts", "rewriting", "plan for x86-64"}
    assert stages < made.seconds.keys()
    assert made.planning == pytest.approx(sum(made.seconds[stage] for stage in stages))


def test_a_dump_into_what_is_no_folder(tmp_path: Path) -> None:
    taken = tmp_path / "file"
    taken.write_text("")
    with pytest.raises(InputError, match="stages cannot be written"):
        compile_stages(model(), levels=["x86-64"], dump=taken)


def test_what_was_proved_is_told() -> None:
    findings = compile_stages(model(), levels=["x86-64"], check=True).findings
    assert findings is not None
    assert findings.proved["bounds"] == 2
    assert not findings.unknown
    assert compile_stages(model(), levels=["x86-64"], check=False).findings is None


def test_the_environment_decides_unless_the_caller_does(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, expected in (("", False), ("0", False), ("1", True)):
        monkeypatch.setenv(CHECK_VARIABLE, value)
        assert is_checked(None) is expected
        assert is_checked(True)
        assert not is_checked(False)
    monkeypatch.delenv(CHECK_VARIABLE)
    assert not is_checked(None)


def test_a_wrong_graph_names_its_stage() -> None:
    _, graph = misfit()
    with pytest.raises(VerificationError, match="another type") as caught:
        Stages(check=True).graph("import", graph)
    assert caught.value.where == "stage import, graph 'wrong'"
    Stages(check=False).graph("import", graph)


def test_a_wrong_rewriting_names_its_rule() -> None:
    made, graph = misfit()
    with pytest.raises(VerificationError, match="another type") as caught:
        Stages(check=True).rule("fold_everything", graph.inputs[0], made)
    assert caught.value.where == "stage rewrite, rule fold_everything"
    assert isinstance(caught.value, InternalError)
    assert isinstance(caught.value, TilewrightError)


def test_a_wrong_kernel_stops_the_compilation(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    loops = lower._LOOPS  # pyright: ignore[reportPrivateUsage]
    right = loops[KernelKind.LOOPS]

    def one_too_many(kernel: Kernel, lowering: Lowering) -> TileProgram:
        made = right(kernel, lowering)
        (loop,) = made.body
        assert isinstance(loop, Loop)
        return replace(made, body=(replace(loop, end=loop.end + constant(1)),))

    monkeypatch.setitem(loops, KernelKind.LOOPS, one_too_many)
    with pytest.raises(VerificationError, match="is element") as caught:
        compile_model(model(), levels=["avx2"], check=True, dump=tmp_path)
    where = str(caught.value.where)
    assert where.startswith("stage tile-avx2, loops kernel")
    assert "--dump" in str(caught.value.hint)
    last = sorted(tmp_path.iterdir())[-1]
    assert last.name.endswith("tile-avx2.txt")
    assert "step b0 = x" in last.read_text()


def test_a_machine_of_ones_own_has_its_own_candidates(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Fewer registers and a smaller cache give other tiles and blocks, and the log says why."""
    small = tmp_path / "board.toml"
    small.write_text(
        'base = "zen3"\nname = "small board"\nvector_registers = 12\n'
        '[[levels]]\nname = "L2"\ncapacity = 131072\n',
        encoding="utf-8",
    )
    found: dict[str, tuple[set[tuple[int, int]], set[str], str]] = {}
    for target in ("zen3", str(small)):
        caplog.clear()
        with caplog.at_level("INFO", logger="tilewright"):
            made = compile_stages(
                encoder(), target=target, levels=["avx2"], dims={"batch": 4, "seq": (1, 64)}
            )
        (level,) = made.levels.values()
        variants = [variant for lowered in level.lowered for variant in lowered.variants]
        nests = [ProductNest.find(step.program) for v in variants for step in v.steps]
        tiles = {(n.registers.rows, n.registers.columns) for n in nests if n is not None}
        found[target] = tiles, {variant.name for variant in variants}, caplog.text
    plain, own = found.values()
    assert plain[0] != own[0] and plain[1] != own[1]
    assert all(rows * (columns // 8 + 1) <= 12 for rows, columns in own[0])
    assert "small board, level 0, register tiles: " in own[2]
    assert "fit the second cache" in own[2] and "covered by" in own[2]
