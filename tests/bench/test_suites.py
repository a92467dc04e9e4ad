from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.bench.suites import (
    Case,
    choose_suites,
    convolved,
    parse_shapes,
    read_suite,
    sample,
    spread,
)
from tilewright.support.errors import InputError

GEMM = "suite,case,M,N,K,trans_a,trans_b,note\n"
CONV = "suite,case,N,C,H,W,K,R,S,pad_h,pad_w,stride_h,stride_w,dilation,groups,note\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "suite.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_gemm_counts_operations_and_bytes(tmp_path: Path) -> None:
    (case,) = read_suite(written(tmp_path, GEMM + 's,one,2,3,5,0,1,"a, b"\n'))
    assert (case.suite, case.name, case.kind) == ("s", "one", "gemm")
    assert case.shapes == ((2, 5), (5, 3), (2, 3))
    assert case.flops == 2 * 2 * 3 * 5
    assert case.bytes == 4 * (10 + 15 + 6)
    assert case.describe() == "M=2 N=3 K=5 trans_b=1"


def test_a_batched_product_counts_its_batch(tmp_path: Path) -> None:
    (case,) = read_suite(written(tmp_path, "B,M,N,K\n7,2,3,5\n"))
    assert (case.suite, case.name, case.kind) == ("suite", "2", "bmm")
    assert case.shapes == ((7, 2, 5), (7, 5, 3), (7, 2, 3))
    assert case.flops == 7 * 2 * 2 * 3 * 5


def test_a_grouped_convolution(tmp_path: Path) -> None:
    (case,) = read_suite(written(tmp_path, CONV + "s,c,2,6,9,8,4,3,2,1,0,2,3,2,2,\n"))
    # (9 + 2 - 2*2 - 1) // 2 + 1 rows, (8 - 2*1 - 1) // 3 + 1 columns.
    assert convolved(case.sizes) == (4, 2)
    assert case.shapes == ((2, 6, 9, 8), (4, 3, 3, 2), (2, 4, 4, 2))
    assert case.flops == 2 * (2 * 4 * 4 * 2) * (3 * 3 * 2)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("s,c,2,3,x,0,0,", "K is 'x'"),
        ("s,c,2,,5,0,0,", "N is 'empty'"),
        ("s,c,0,3,5,0,0,", "M is '0'"),
        ("s,c,2,3,-5,0,0,", "K is '-5'"),
        ("s,c,2,3,5,2,0,", "trans_a is neither 0 nor 1"),
        ("s,c,2,3", "not as many values"),
        ("s,c,2,3,5,0,0,a,b", "not as many values"),
    ],
)
def test_a_bad_row_is_named_by_its_line(tmp_path: Path, row: str, message: str) -> None:
    path = written(tmp_path, GEMM + "s,good,1,1,1,0,0,\n" + row + "\n")
    with pytest.raises(InputError) as caught:
        read_suite(path)
    assert message in caught.value.message
    assert caught.value.where == f"{path}, line 3"
    assert caught.value.hint


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("s,c,1,3,8,8,4,3,3,0,0,1,1,1,2,", "2 groups do not divide C=3 and K=4"),
        ("s,c,1,3,4,8,4,5,3,0,0,1,1,1,1,", "filter is larger than the padded image"),
        ("s,c,1,3,8,8,4,3,3,0,0,0,1,1,1,", "stride_h is '0'"),
    ],
)
def test_a_bad_convolution(tmp_path: Path, row: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_suite(written(tmp_path, CONV + row + "\n"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "columns a, b make no known kind"),
        ("", "(none)"),
        (GEMM, "no rows"),
    ],
)
def test_a_file_that_is_no_suite(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read_suite(written(tmp_path, text))
    assert message in caught.value.message
    assert "suite.csv" in str(caught.value.where)


def test_a_missing_or_binary_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_suite(tmp_path / "missing.csv")
    path = tmp_path / "binary.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot be read"):
        read_suite(path)


def test_shapes_of_every_kind() -> None:
    cases = parse_shapes("M=2,N=3,K=4; B=5,M=2,N=3,K=4,trans_b=1;N=1,C=2,H=8,W=8,K=4,R=3,S=3")
    assert [case.kind for case in cases] == ["gemm", "bmm", "conv"]
    assert [case.suite for case in cases] == ["shapes_gemm", "shapes_bmm", "shapes_conv"]
    assert cases[1].sizes["trans_b"] == 1
    assert cases[2].sizes["stride_h"] == 1 and cases[2].sizes["pad_h"] == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("M=2,N=3", "no known kind"),
        ("M=2,N=3,K=4,L=1", "no size L"),
        ("M=2,N=3,K=4,M=1", "given twice"),
        ("M=2,N=3,K=", "K is 'empty'"),
    ],
)
def test_bad_shapes(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_shapes(text)


def cases_of(suite: str, sizes: list[int]) -> tuple[Case, ...]:
    return tuple(
        Case(suite, str(m), "gemm", {"M": m, "N": 1, "K": 1, "trans_a": 0, "trans_b": 0})
        for m in sizes
    )


def test_a_sample_is_spread_over_the_operations_of_each_suite() -> None:
    cases = cases_of("a", [50, 10, 30, 20, 40]) + cases_of("b", [7, 9])
    chosen = sample(cases, 3)
    assert [(case.suite, case.sizes["M"]) for case in chosen] == [
        ("a", 50),
        ("a", 10),
        ("a", 30),
        ("b", 7),
        ("b", 9),
    ]


def test_spread_keeps_both_ends() -> None:
    assert spread(10, 4) == [0, 3, 6, 9]
    assert spread(3, 5) == [0, 1, 2]
    assert spread(9, 1) == [4]
    assert spread(0, 3) == []


def test_only_the_suites_named() -> None:
    cases = cases_of("a", [1]) + cases_of("b", [2])
    assert [case.suite for case in choose_suites(cases, ["b"])] == ["b"]
    with pytest.raises(InputError, match="no suite 'c'"):
        choose_suites(cases, ["c"])
