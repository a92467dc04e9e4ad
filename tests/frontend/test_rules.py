"""Rules that fail: our own defects are raised, and what a rule demanded before is forgotten."""

from __future__ import annotations

import pytest
from onnx import helper

from support.onnx_models import model, tensor
from tilewright.frontend.onnx import import_model
from tilewright.ops.record import OPERATORS, ImportFacts, NoRule, Operator, RuleContext
from tilewright.shape import Scope, equal
from tilewright.support.errors import InvalidModelError

NODE = helper.make_node


def one_node(op_type, rule, monkeypatch):
    """A model of one node of [n, m] whose rule is ``rule``."""
    monkeypatch.setitem(OPERATORS, ("", op_type), [Operator("", op_type, 1, rule, False)])
    nodes = [NODE(op_type, ["x"], ["y"])]
    return model(nodes, [tensor("x", ["n", "m"])], [tensor("y", [None, None])])


@pytest.mark.parametrize("defect", [AssertionError, TypeError, MemoryError, AttributeError])
def test_a_defect_of_a_rule_is_raised_and_no_fallback(defect, monkeypatch):
    def rule(context):
        raise defect("ours")

    with pytest.raises(defect, match="ours"):
        import_model(one_node("Relu", rule, monkeypatch))


@pytest.mark.parametrize("op_type", ["Tan", "HardSwish"])
@pytest.mark.parametrize("failure", [NoRule("not so", where="here"), ValueError("unfit")])
def test_a_rule_that_fails_leaves_no_demands(failure, op_type, monkeypatch):
    """Tan then runs on the reference, HardSwish by the function that defines it."""

    def rule(context):
        n, m = context.operand(0).shape
        context.require(equal(n % 7, 0), "nothing but sevens")
        context.require_equal(n, m, "a square")
        context.scope.fresh("value")
        raise failure

    graph, report = import_model(one_node(op_type, rule, monkeypatch))
    assert graph.guards == ()
    assert graph.bindings == ()
    assert graph.scope.assumptions == ()
    assert set(graph.scope.symbols) == {"n", "m"}
    assert len(report.fallbacks) == (op_type == "Tan")


def test_an_attribute_of_another_type_is_an_invalid_model():
    context = RuleContext("Op", (), {"axis": [1], "name": 3}, 1, 21, "here", ImportFacts(Scope()))
    for read in (
        lambda: context.integer("axis"),
        lambda: context.number("axis"),
        lambda: context.text("name"),
        lambda: context.integer_list("name"),
    ):
        with pytest.raises(InvalidModelError, match="has a value of type"):
            read()
