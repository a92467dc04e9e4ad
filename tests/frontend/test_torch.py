"""PyTorch modules: what is exported, compiled and compared, and what is said where it fails."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import onnx_ir
import pytest
from onnx.parser import parse_model

import tilewright as tw
from tilewright.support.errors import DimensionError, InputError, InvalidModelError

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")
from tilewright.frontend.torch.names import rename  # noqa: E402  # needs torch as well

pytestmark = pytest.mark.peers


def perceptron() -> Any:
    layers = torch.nn.Linear(5, 8), torch.nn.GELU(), torch.nn.Dropout(0.5), torch.nn.Linear(8, 3)
    return torch.nn.Sequential(*layers)


class Scores(torch.nn.Module):
    """Two tensors of different lengths, one of them in a dictionary, and an option."""

    def forward(self, queries: Any, keys: dict[str, Any], scale: float = 1.0) -> Any:
        scores = scale * queries @ keys["values"].transpose(-1, -2)
        return scores.softmax(-1), scores.argmax(-1)


class Fixed(torch.nn.Module):
    """Python's code reads a size, which the export takes for a constant."""

    def forward(self, x: Any) -> Any:
        return torch.nn.functional.adaptive_avg_pool2d(x, 3)


@pytest.mark.parametrize("dynamic", [{"input": {0: "batch"}}, [["batch", None]]])
def test_a_module_becomes_a_model_for_every_size(dynamic: Any) -> None:
    module = perceptron().train()
    model = tw.from_torch(module, (torch.randn(4, 5),), dynamic=dynamic, dims={"batch": (0, 64)})
    assert module.training and module[2].training
    module.eval()
    for batch in (0, 1, 7, 64):
        x = torch.randn(batch, 5)
        torch.testing.assert_close(model(x), module(x).detach(), atol=1e-5, rtol=1e-5)


def test_arguments_of_every_form() -> None:
    example = torch.randn(2, 3, 4), {"values": torch.randn(2, 5, 4)}
    model = tw.from_torch(
        Scores(),
        example,
        {"scale": 0.5},
        dynamic={"queries": {0: "batch", 1: "rows"}, "keys": {"values": ["batch", "keys", None]}},
    )
    assert [dimension.name for dimension in model.info.dimensions] == ["batch", "rows", "keys"]
    queries, keys = torch.randn(3, 6, 4), torch.randn(3, 2, 4)
    scores, best = model(queries, keys)
    wanted = Scores()(queries, {"values": keys}, scale=0.5)
    torch.testing.assert_close(scores, wanted[0], atol=1e-5, rtol=1e-5)
    assert torch.equal(best, wanted[1])


class Ramp(torch.nn.Module):
    """A size becomes a number of Python's, so that the export takes no other."""

    def forward(self, x: Any) -> Any:
        return x * torch.linspace(0.0, 1.0, steps=int(x.shape[1]))


def test_a_size_that_only_the_export_refuses_is_found() -> None:
    example, dynamic = (torch.randn(2, 9),), {"x": ["batch", "length"]}
    with pytest.raises(InvalidModelError, match="what PyTorch exported does not"):
        tw.from_torch(Ramp(), example, dynamic=dynamic)
    model = tw.from_torch(Ramp(), example, dynamic=dynamic, dims={"length": (9, 9)})
    torch.testing.assert_close(model(*example), Ramp()(*example), atol=1e-6, rtol=1e-6)


def test_a_size_that_the_export_fixes_is_found() -> None:
    example = (torch.randn(2, 3, 12, 12),)
    dynamic = {"x": {2: "height", 3: "width"}}
    with pytest.raises(InvalidModelError, match="is not the module"):
        tw.from_torch(Fixed(), example, dynamic=dynamic)
    model = tw.from_torch(Fixed(), example, dynamic=dynamic, compare=False)
    assert model(*example).shape == (2, 3, 3, 3)


@pytest.mark.parametrize(
    ("dynamic", "why"),
    [
        ({"x": {0: "batch"}}, 'no argument "x"'),
        ({"input": {2: "batch"}}, "no axis 2"),
        ({"input": {0: "two words"}}, "is not a name"),
        ({"input": ["batch"]}, "does not name the 2 axes"),
        ({"input": {1: "columns", 0: "batch"}}, "takes for a constant"),
        ({"input": {0: "n", 1: "n"}}, '"n" is 3'),
        ([None, None], "2 entries"),
    ],
)
def test_names_that_do_not_fit(dynamic: Any, why: str) -> None:
    rows = 1 if "constant" in why else 3
    with pytest.raises(InputError, match=why):
        tw.from_torch(perceptron(), (torch.randn(rows, 5),), dynamic=dynamic)


def test_axes_that_the_module_joins() -> None:
    class Added(torch.nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            return x + y

    example = torch.randn(3, 2), torch.randn(3, 2)
    with pytest.raises(InputError, match="are the same size"):
        tw.from_torch(Added(), example, dynamic=[{1: "mine"}, {1: "theirs"}])


def test_a_branch_that_the_export_fixes_is_found() -> None:
    class Branching(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x * (1 if x.shape[0] == 3 else 2)

    with pytest.raises(InvalidModelError, match="differs in 100%"):
        tw.from_torch(Branching(), (torch.tensor([1.0, -2.0, 3.0]),), dynamic=[["rows"]])


def test_names_of_what_is_exported() -> None:
    text = "g (float[s0, 3] x) => (float[s0, 3] y) { t = Relu (x) y = Abs (t) }"
    header = '<ir_version: 8, opset_import: ["" : 18]> '
    model = onnx_ir.from_proto(parse_model(header + text))
    rename(model, [{0: "rows"}])
    assert [str(value.shape) for value in (*model.graph.inputs, *model.graph.outputs)] == [
        "[rows,3]", "[rows,3]"
    ]  # fmt: skip
    with pytest.raises(InvalidModelError, match="no other size than 3"):
        rename(model, [{1: "columns"}])
    with pytest.raises(InvalidModelError, match="1 inputs for 2 tensors"):
        rename(model, [{}, {}])


def test_axes_that_are_as_long_by_chance_stay_apart() -> None:
    class Outer(torch.nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            return x[:, None] * y[None]

    x = torch.randn(4)
    for example in ((x, torch.randn(4)), (x, x)):
        model = tw.from_torch(Outer(), example, dynamic=[["m"], ["n"]])
        assert model(torch.randn(2), torch.randn(7)).shape == (2, 7)


def test_what_pytorch_cannot_export() -> None:
    class Branching(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x + 1 if x.sum() > 0 else x - 1

    with pytest.raises(InvalidModelError, match="cannot export"):
        tw.from_torch(Branching(), (torch.randn(3),))


def test_a_module_that_writes_into_its_arguments() -> None:
    class Cached(torch.nn.Module):
        def forward(self, cache: Any, x: Any) -> Any:
            cache += x
            return cache * 2

    cache = torch.zeros(3)
    model = tw.from_torch(Cached(), (cache, torch.ones(3)), dynamic=[["n"], ["n"]])
    assert not cache.any()
    assert model(torch.ones(2), torch.ones(2)).tolist() == [4, 4]


def test_arguments_that_forward_gathers() -> None:
    class Joined(torch.nn.Module):
        def forward(self, *parts: Any) -> Any:
            return torch.cat(parts)

    example = torch.randn(2, 3), torch.randn(4, 3)
    for dynamic in ({"parts": ({0: "a"}, {0: "b"})}, [{0: "a"}, {0: "b"}]):
        model = tw.from_torch(Joined(), example, dynamic=dynamic)
        assert model(torch.ones(1, 3), torch.zeros(0, 3)).sum() == 3


def test_arguments_by_names_that_forward_does_not_list() -> None:
    class Scaled(torch.nn.Module):
        def forward(self, x: Any, *, scale: float, **others: Any) -> Any:
            return x * scale + others["bias"] - others["others"]

    tensors = {"bias": torch.randn(2, 3), "others": torch.randn(2, 3)}
    axes = {0: "n"}
    dynamic = {"x": axes, "bias": axes, "others": axes}
    model = tw.from_torch(Scaled(), [torch.randn(2, 3)], {"scale": 2.0, **tensors}, dynamic=dynamic)
    assert [spec.name for spec in model.inputs] == ["x", "bias", "others"]
    x, ones = torch.randn(1, 3), torch.ones(1, 3)
    torch.testing.assert_close(model(others=ones, x=x, bias=3 * ones), 2 * x + 2)
    with pytest.raises(InputError, match='no argument "gain"'):
        tw.from_torch(Scaled(), [x], {"scale": 2.0, **tensors}, dynamic={"gain": axes})


@dataclass
class Pair:
    left: Any
    right: Any = None
    label: str = ""


class Swapped(torch.nn.Module):
    """Containers of several kinds, also with what is no tensor, in and out."""

    def forward(self, given: Any) -> Any:
        left, right = (given[k] if isinstance(given, dict) else getattr(given, k) for k in SIDES)
        pair = Pair(right + 1, (left, None), "swapped")
        return {"pair": pair, "rows": left.shape[0], "rest": [None, {"a": left - right}]}


SIDES = "left", "right"


class Sides(NamedTuple):
    left: Any
    right: Any


@pytest.mark.parametrize("kind", [dict, Sides, Pair, OrderedDict])
def test_containers_of_tensors(kind: Any) -> None:
    left, right = torch.randn(2, 3), torch.randn(2, 3)
    dynamic = {"given": {side: ["n", None] for side in SIDES}}
    model = tw.from_torch(Swapped(), [kind(left=left, right=right)], dynamic=dynamic)
    assert [spec.name for spec in model.inputs] == ["given_left", "given_right"]
    results = model(left[:1], right[:1])
    for found, expected in zip(results, (right + 1, left, left - right), strict=True):
        torch.testing.assert_close(found, expected[:1])


class Hidden:
    def __init__(self, value: Any) -> None:
        self.parts = [value]


def test_tensors_in_objects_that_are_no_containers() -> None:
    class Opened(torch.nn.Module):
        def forward(self, given: Any) -> Any:
            return given.parts[0] if isinstance(given, Hidden) else Hidden(given)

    for given in (Hidden(torch.randn(2)), torch.randn(2)):
        with pytest.raises(InputError, match="A Hidden holds tensors that cannot be told"):
            tw.from_torch(Opened(), [given])


class Counting(torch.nn.Module):
    """Keeps a number of calls, of which results may depend."""

    def __init__(self, is_read: bool) -> None:
        super().__init__()
        self.is_read = is_read
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return x * (self.calls if self.is_read else 2)


def test_what_a_module_keeps_is_as_it_was() -> None:
    module = Counting(is_read=False)
    model = tw.from_torch(module, [torch.ones(2)], dynamic=[["n"]])
    assert module.calls == 0
    assert model(torch.ones(3)).tolist() == [2, 2, 2]


def test_results_that_depend_on_earlier_calls_or_on_chance() -> None:
    module = Counting(is_read=True)
    with pytest.raises(InvalidModelError, match=r"(?s)called again: result 0 .*in calls,"):
        tw.from_torch(module, [torch.ones(2)], dynamic=[["n"]])
    assert module.calls == 0
    model = tw.from_torch(module, [torch.ones(2)], dynamic=[["n"]], compare=False)
    assert model(torch.ones(3)).tolist() == [1, 1, 1]

    class Noisy(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x + torch.randn_like(x)

    with pytest.raises(InvalidModelError, match=r"(?s)called again: .*random numbers"):
        tw.from_torch(Noisy(), [torch.ones(50)])


def test_complex_results_are_named() -> None:
    class Transform(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.fft.fft(x)

    with pytest.raises(InvalidModelError, match=r"(?s)result 0 is complex.*view_as_real"):
        tw.from_torch(Transform(), [torch.randn(3, 4)])


def test_what_is_no_example() -> None:
    x: Any = torch.randn(3, 5)
    wrong: list[Any] = [x, {"input": x}]
    for args, why in zip(wrong, ("args cannot be a Tensor", "args cannot be a dict"), strict=True):
        with pytest.raises(InputError, match=f"(?i){why}"):
            tw.from_torch(perceptron(), args)
    with pytest.raises(InputError, match="of type ndarray"):
        tw.from_torch(perceptron(), [x.numpy()], dynamic=[["n", None]])


def test_modules_that_were_exported_or_compiled_already() -> None:
    x = torch.randn(3, 5)
    exported: Any = torch.export.export(perceptron().eval(), (x,))
    with pytest.raises(InputError, match="ExportedProgram is not a module"):
        tw.from_torch(exported, [x])
    assert tw.from_torch(exported.module(), [x])(x).shape == (3, 3)
    with pytest.raises(InputError, match="before TorchScript"):
        tw.from_torch(torch.jit.trace(perceptron().eval(), x), [x])


def test_names_for_what_is_no_tensor() -> None:
    dynamic: Any = {"queries": {0: "batch"}, "keys": {"values": [None] * 3}, "scale": ["n"]}
    for scale in (0.5, "n"):
        example = torch.randn(2, 3, 4), {"values": torch.randn(2, 5, 4)}, scale
        with pytest.raises(InputError, match="do not have the form"):
            tw.from_torch(Scores(), example, dynamic=dynamic)


def test_arguments_that_forward_does_not_take() -> None:
    with pytest.raises(InputError, match="do not fit"):
        tw.from_torch(perceptron(), (torch.randn(3, 5), torch.randn(3)))
    with pytest.raises(InputError, match="is not a module"):
        tw.from_torch(torch.relu, (torch.randn(3),))


def test_a_module_is_no_source() -> None:
    with pytest.raises(InvalidModelError, match="from_torch"):
        tw.compile(perceptron())


class Attention(torch.nn.Module):
    """Attention with a mask, whose result is turned and reshaped as many models do it."""

    def __init__(self) -> None:
        super().__init__()
        self.project = torch.nn.Linear(16, 48)

    def forward(self, x: Any, mask: Any) -> Any:
        batch, length = x.shape[:2]
        three = self.project(x).view(batch, length, 3, 2, 8).permute(2, 0, 3, 1, 4)
        found = torch.nn.functional.scaled_dot_product_attention(*three, attn_mask=mask)
        return found.transpose(1, 2).contiguous().reshape(batch, length, -1)


def lower_triangle(batch: int, length: int) -> Any:
    return torch.ones(batch, 1, length, length, dtype=torch.bool).tril()


class LearnedBias(Attention):
    """As T5 and Swin have it. With gradients PyTorch takes another algorithm for it."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = torch.nn.Parameter(torch.randn(2, 1, 1))

    def forward(self, x: Any, mask: Any) -> Any:
        return super().forward(x, torch.where(mask, self.bias, -1e9))


ATTENTION = {"x": ["batch", "length", None], "mask": ["batch", None, "length", "length"]}


@pytest.mark.parametrize("kind", [Attention, LearnedBias])
def test_attention_whose_result_is_reshaped(kind: Any) -> None:
    module = kind()
    example = torch.randn(2, 5, 16), lower_triangle(2, 5)
    model = tw.from_torch(module, example, dynamic=ATTENTION, dims={"batch": (1, 8)})
    for batch, length in ((1, 1), (3, 7)):
        given = torch.randn(batch, length, 16), lower_triangle(batch, length)
        wanted = module(*given).detach()
        torch.testing.assert_close(model(*given), wanted, atol=1e-5, rtol=1e-5)


def test_positions_that_attend_to_nothing_are_named() -> None:
    """PyTorch's attention makes zeros of them, what it exports the mean of all positions."""
    mask = lower_triangle(2, 5)
    mask[1, ..., 0] = False
    example = torch.randn(2, 5, 16), mask
    with pytest.raises(InvalidModelError, match=r"all of them in \[1, 0, 0:16\]") as error:
        tw.from_torch(Attention(), example, dynamic=ATTENTION)
    assert "padding in front" in str(error.value)


class Entropy(torch.nn.Module):
    """What is added keeps a logarithm of nothing finite."""

    def forward(self, x: Any) -> Any:
        return -(x * torch.log(x + 1e-10)).sum(-1)


def test_small_numbers_that_are_added_stay() -> None:
    example = torch.tensor([[0.0, 1.0, 0.5], [0.25, 0.0, 0.0]])
    model = tw.from_torch(Entropy(), (example,), dynamic=[["batch", None]])
    torch.testing.assert_close(model(example), Entropy()(example), atol=1e-6, rtol=1e-6)


class Repeated(torch.nn.Module):
    """The exporter repeats the whole tensor as if it had one row."""

    def forward(self, x: Any, points: Any) -> Any:
        return torch.repeat_interleave(x, points.shape[1], dim=0)


def test_an_export_that_refuses_the_example() -> None:
    example = torch.randn(2, 4), torch.randn(2, 3)
    axes = {"x": ["batch", None], "points": ["batch", "points"]}
    with pytest.raises(InvalidModelError, match="what PyTorch exported does not"):
        tw.from_torch(Repeated(), example, dynamic=axes)
    with pytest.raises(DimensionError, match="outside the declared range"):
        tw.from_torch(Repeated(), example, dynamic=axes, dims={"points": (4, 8)})
