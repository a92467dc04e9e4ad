"""Machine descriptions as TOML files that people write.

A file states every key of a target, or names a preset as ``base`` and states what differs; its
``levels`` then change the levels of the same name. Imports ``support`` only. Start with
:func:`load_target`.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

from tilewright.support.errors import InputError
from tilewright.target.description import InstructionTile, MemoryLevel, Target, check
from tilewright.target.presets import preset

_TABLES = ("multiply_adds", "instruction_tiles", "levels")
_SORTS = {"str": "a text", "int": "an integer", "float": "a number"}


def load_target(path: str | Path) -> Target:
    """The target that a TOML file describes.

    Raises InputError that names the file, the key, what is wrong and what is allowed.
    """
    where = str(path)
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise InputError(
            f"The target cannot be read: {why}.",
            where=where,
            hint="Give a file that exists and may be read, or the name of a preset",
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"The target is not TOML: {error}.", where=where) from error
    return parse_target(content, where)


def parse_target(content: Mapping[str, Any], where: str) -> Target:
    """The target in the content of a TOML file; ``where`` names it in errors."""
    given = dict(content)
    base = given.pop("base", None)
    if base is not None and not isinstance(base, str):
        raise _wrong(where, "base", base, "the name of a preset")
    known = {field.name: field for field in fields(Target)}
    _refuse_unknown(given, known, where, "")
    values: dict[str, Any] = {}
    for key, value in given.items():
        if key not in _TABLES:
            values[key] = _scalar(value, str(known[key].type), where, key)
    start = None if base is None else _base(base, where)
    if "multiply_adds" in given:
        values["multiply_adds"] = _rates(given["multiply_adds"], where)
    if "instruction_tiles" in given:
        rows = _rows(given["instruction_tiles"], where, "instruction_tiles")
        values["instruction_tiles"] = tuple(_row(InstructionTile, *row, where) for row in rows)
    if "levels" in given:
        values["levels"] = _read_levels(_rows(given["levels"], where, "levels"), start, where)
    if start is not None:
        return check(replace(start, **values), where)
    values.setdefault("instruction_tiles", ())
    for key, field in known.items():
        if key not in values and field.default is MISSING:
            hint = f'write "{key} = …", or start from a preset with "base = …"'
            raise InputError(f"The key {key} is missing.", where=where, hint=hint)
    return check(Target(**values), where)


def _base(name: str, where: str) -> Target:
    try:
        return preset(name)
    except InputError as error:
        raise InputError(error.message, where=f"{where}, key base", hint=error.hint) from error


def _read_levels(
    rows: list[tuple[str, dict[str, Any]]], start: Target | None, where: str
) -> tuple[MemoryLevel, ...]:
    if start is None:
        return tuple(_row(MemoryLevel, key, row, where) for key, row in rows)
    levels = {level.name: level for level in start.levels}
    for key, row in rows:
        name = row.get("name")
        if not isinstance(name, str) or name not in levels:
            raise _wrong(where, f"{key}.name", name, f"one of {', '.join(levels)}")
        values = _values(MemoryLevel, key, row, where)
        levels[name] = replace(levels[name], **values)
    return tuple(levels.values())


def _rows(value: object, where: str, key: str) -> list[tuple[str, dict[str, Any]]]:
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise _wrong(where, key, value, f"tables [[{key}]]")
    return [(f"{key}[{number}]", dict(row)) for number, row in enumerate(value)]


def _row(kind: type[Any], key: str, row: Mapping[str, Any], where: str) -> Any:
    values = _values(kind, key, row, where)
    for field in fields(kind):
        if field.name not in values and field.default is MISSING:
            raise InputError(f"The key {key}.{field.name} is missing.", where=where)
    return kind(**values)


def _values(kind: type[Any], key: str, row: Mapping[str, Any], where: str) -> dict[str, Any]:
    known = {field.name: field for field in fields(kind)}
    _refuse_unknown(row, known, where, f"{key}.")
    return {
        name: _scalar(value, str(known[name].type), where, f"{key}.{name}")
        for name, value in row.items()
    }


def _rates(value: object, where: str) -> tuple[tuple[str, float], ...]:
    if not isinstance(value, dict):
        raise _wrong(where, "multiply_adds", value, "a table [multiply_adds]")
    return tuple(
        (str(dtype), _scalar(rate, "float", where, f"multiply_adds.{dtype}"))
        for dtype, rate in value.items()
    )


def _scalar(value: object, kind: str, where: str, key: str) -> Any:
    """A value of the field's kind; integers are numbers, booleans are not."""
    if isinstance(value, bool):
        raise _wrong(where, key, value, _SORTS[kind])
    if kind == "float" and isinstance(value, int | float):
        return float(value)
    if (kind == "int" and isinstance(value, int)) or (kind == "str" and isinstance(value, str)):
        return value
    raise _wrong(where, key, value, _SORTS[kind])


def _refuse_unknown(
    given: Mapping[str, Any], known: Mapping[str, Any], where: str, prefix: str
) -> None:
    for key in given:
        if key not in known:
            close = difflib.get_close_matches(key, list(known), 1)
            hint = f"Did you mean {close[0]}?" if close else f"Use one of {', '.join(known)}"
            raise InputError(f"The key {prefix}{key} is unknown.", where=where, hint=hint)


def _wrong(where: str, key: str, value: object, allowed: str) -> InputError:
    place = f"{where}, key {key}"
    return InputError(f"'{key}' is {value!r}, not {allowed}.", where=place, hint=f"Give {allowed}")


def dump(target: Target) -> str:
    """The target as TOML text with every key; :func:`load_target` gives back an equal one."""
    lines = [
        f"{field.name} = {_literal(getattr(target, field.name))}"
        for field in fields(target)
        if field.name not in _TABLES
    ]
    lines += ["", "[multiply_adds]  # per cycle and unit"]
    lines += [f"{dtype} = {_literal(rate)}" for dtype, rate in target.multiply_adds]
    for name in ("instruction_tiles", "levels"):
        for row in getattr(target, name):
            lines += ["", f"[[{name}]]"]
            lines += [f"{f.name} = {_literal(getattr(row, f.name))}" for f in fields(row)]
    return "\n".join(lines) + "\n"


def _literal(value: object) -> str:
    if isinstance(value, str):
        escaped = "".join(_escape(character) for character in value)
        return f'"{escaped}"'
    return repr(value)


def _escape(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    return character if character.isprintable() else f"\\U{ord(character):08X}"
