"""Imports go down the table of packages, everywhere and always."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from support.packages import Package, package_of, read_table, violations
from support.repository import ROOT, modules, tree

TABLE = """
```
0 low: rich
1 middle: numpy, onnx-ir
1 beside: -
2 backend/cpu:
3 __init__:
```
"""


def small() -> dict[str, Package]:
    return read_table(TABLE)


def architecture() -> dict[str, Package]:
    return read_table((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"))


def test_the_table_names_every_package() -> None:
    packages = architecture()
    homeless = [
        module
        for module in modules()
        if package_of(module, packages) is None and module.name != "__init__.py"
    ]
    assert homeless == []


def test_imports_go_down() -> None:
    packages = architecture()
    assert [
        found for module in modules() for found in violations(module, tree(module), packages)
    ] == []


def test_the_table_is_read() -> None:
    packages = small()
    assert packages["middle"] == Package("middle", 1, frozenset({"numpy", "onnx_ir"}))
    assert packages["beside"].third_party == frozenset()
    assert package_of(Path("backend/cpu/link.py"), packages) is packages["backend/cpu"]
    assert package_of(Path("backend/__init__.py"), packages) is None


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("import tilewright.beside.x", "may not use 1 beside"),
        ("from tilewright.backend import cpu", "may not use 2 backend/cpu"),
        ("import tilewright", "may not use 3 __init__"),
        ("def f():\n    from tilewright.low import y", "inside a function"),
        ("def f():\n    import torch", "which package middle may not"),
        ("if TYPE_CHECKING:\n    from tilewright.beside import z", "may not use 1 beside"),
        ('TABLE = {"x": "tilewright.backend.cpu.link"}', "may not use 2 backend/cpu"),
        ("from rich.console import Console", "which package middle may not"),
    ],
)
def test_violations_are_found(source: str, why: str) -> None:
    (found,) = violations(Path("middle/a.py"), ast.parse(source), small())
    assert why in found


def test_what_is_allowed() -> None:
    source = "import os\nimport numpy as np\nimport onnx_ir\nfrom tilewright.low import a\n"
    source += "from tilewright.middle.b import c\n"
    assert violations(Path("middle/a.py"), ast.parse(source), small()) == []


def test_importing_the_package_loads_no_compiler() -> None:
    unwanted = "{'onnx', 'llvmlite', 'sympy', 'torch', 'onnxruntime', 'openvino'}"
    code = f"import sys, tilewright; print(sorted({unwanted} & set(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    assert result.stdout.strip() == "[]"
