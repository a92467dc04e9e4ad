from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.support.errors import InputError
from tilewright.target import detect, dump, load_target, preset, preset_names


def written(folder: Path, text: str) -> Path:
    path = folder / "machine.toml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", preset_names())
def test_round_trip(tmp_path: Path, name: str) -> None:
    assert load_target(written(tmp_path, dump(preset(name)))) == preset(name)


def test_round_trip_of_this_machine(tmp_path: Path) -> None:
    assert load_target(written(tmp_path, dump(detect()))) == detect()


@given(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
    st.floats(min_value=1e-6, max_value=1e9),
    st.integers(1, 1 << 40),
)
def test_round_trip_of_any_values(
    tmp_path_factory: pytest.TempPathFactory, name: str, clock: float, units: int
) -> None:
    target = replace(preset("zen3"), name=name, clock_ghz=clock, units=units)
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_text(dump(target), encoding="utf-8")
    assert load_target(path) == target


def test_from_a_preset(tmp_path: Path) -> None:
    text = 'base = "zen4"\nname = "mine"\nunits = 8\n[[levels]]\nname = "L2"\ncapacity = 2097152\n'
    target = load_target(written(tmp_path, text))
    assert (target.name, target.units) == ("mine", 8)
    assert target.level("L2") == replace(preset("zen4").level("L2"), capacity=2097152)
    assert target.level("L1") == preset("zen4").level("L1")
    assert target.multiply_adds == preset("zen4").multiply_adds


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("units = ", "not TOML"),
        ('base = "zen9"', "no target called 'zen9'"),
        ("base = 3", "'base' is 3, not the name of a preset"),
        ("name = 'x'", "The key kind is missing"),
        ('base = "zen4"\nunit = 3', "Did you mean units"),
        ('base = "zen4"\nunits = 0', "'units' is 0"),
        ('base = "zen4"\nunits = 1.5', "'units' is 1.5, not an integer"),
        ('base = "zen4"\nunits = true', "'units' is True, not an integer"),
        ('base = "zen4"\nclock_ghz = "fast"', "'clock_ghz' is 'fast', not a number"),
        ('base = "zen4"\nclock_ghz = nan', "'clock_ghz' is nan"),
        ('base = "zen4"\nkind = "tpu"', "Give one of cpu, gpu"),
        ('base = "zen4"\nvector_bytes = 48', "no vector width"),
        ('base = "zen4"\nlevels = 3', r"not tables \[\[levels\]\]"),
        ('base = "zen4"\n[[levels]]\nname = "L7"', "Give one of registers, L1, L2, L3, memory"),
        ('base = "zen4"\n[[levels]]\nname = "L1"\ncapacity = -1', "key levels.L1.capacity"),
        ('base = "zen4"\n[[levels]]\nname = "L1"\ncapacity = 0', "Only the last level"),
        ('base = "zen4"\n[[levels]]\nname = "L1"\nsize = 1', r"levels\[0\].size is unknown"),
        ('base = "zen4"\n[multiply_adds]\nfloat33 = 1', "'float33' is unknown"),
        ('base = "zen4"\n[multiply_adds]\nfloat32 = 0', "The rate is 0"),
        ('base = "zen4"\n[multiply_adds]', "No element type"),
        ('base = "zen4"\n[[instruction_tiles]]\nname = "x"', "dtype is missing"),
    ],
)
def test_errors_are_sentences(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        load_target(written(tmp_path, text))
    assert caught.value.message[-1] != "."
    assert "machine.toml" in str(caught.value.where)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        load_target(tmp_path / "missing.toml")
