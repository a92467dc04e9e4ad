"""Which machine a model is compiled for, and for which of its levels.

A *target* is a machine that the options describe; without one it is this machine. Start with
:func:`described_target`, :func:`chosen_levels` and :func:`level_machine`.
"""

from __future__ import annotations

import difflib
import hashlib
import os
from collections.abc import Sequence
from typing import cast

from tilewright.backend.cpu.level_tiles import usual_machine
from tilewright.backend.cpu.machine import LEVELS, host_level, host_levels
from tilewright.cost import Machine
from tilewright.ir.graph import Graph
from tilewright.rewrite.integers import has_integer_products
from tilewright.rewrite.precision import Precision
from tilewright.runtime.info import MachineInfo
from tilewright.support.arguments import choices, file_path, show
from tilewright.support.errors import InputError, UnsupportedError
from tilewright.target import Target, detect, dump, load_target, preset, preset_names
from tilewright.tune import load_profile, measured_machine

PORTABLE = "portable"  # stands for every level that serves the precision


def described_target(given: object) -> Target | None:
    """The machine described: by itself, as a preset, or in a file; None stands for this one.

    Raises InputError for what describes no machine, and UnsupportedError for a name that is not
    known and for a machine that no code can be generated for.
    """
    if given is None:
        return None
    if isinstance(given, str | os.PathLike):
        name = str(file_path(cast("object", given)))
        given = load_target(name) if name.endswith(".toml") else _preset(name)
    if not isinstance(given, Target):
        raise InputError(
            f"'target' is {show(given)}, which describes no machine",
            hint="Give the name of a preset, or the path of a TOML file",
        )
    if given.isa not in _instruction_sets():
        kind = "a GPU" if given.kind == "gpu" else "a processor"
        raise UnsupportedError(
            f"Code cannot be generated for {given.name}: it is {kind} with the instruction set "
            f"{given.isa}",
            where=f"target {given.name}",
            hint=f"Choose one of {', '.join(_fitting_presets())}",
        )
    return given


def _preset(name: str) -> Target:
    """The machine with published figures that has this name; it need not be one to compile for."""
    if name in preset_names():
        return preset(name)
    fitting = _fitting_presets()
    close = difflib.get_close_matches(name, fitting, 1)
    hint = f"Did you mean {close[0]}?" if close else f"Choose one of {', '.join(fitting)}"
    raise UnsupportedError(f"There is no target {name!r}", hint=hint)


def _fitting_presets() -> list[str]:
    """The machines by name that code can be generated for."""
    return [name for name in preset_names() if preset(name).isa in _instruction_sets()]


def _instruction_sets() -> set[str]:
    return {level.isa for level in LEVELS.values()}


def narrowest(graph: Graph, precision: Precision) -> str:
    """The type of the elements for which a level may have instructions of its own."""
    bytes_only = precision is Precision.FLOAT32 and has_integer_products(graph)
    return (Precision.INT8 if bytes_only else precision).data.value


def chosen_levels(levels: object, narrow: str, target: Target | None) -> Sequence[str]:
    """The names of the levels that ``levels`` asks for, in the order of :data:`LEVELS`.

    Without any it is the highest one of ``target``, or of this machine. ``narrow`` is the type that
    :func:`narrowest` gives. Raises UnsupportedError for a level that does not exist.
    """
    if levels is None:
        return [host_level(narrow).name if target is None else _own_level(target, narrow)]
    wanted = {*choices("level", levels, (PORTABLE, *LEVELS))}
    if PORTABLE in wanted:
        usual = [level for level in LEVELS.values() if level.is_usual]
        wanted |= {level.name for level in usual if level.serves(narrow)}
    return [name for name in LEVELS if name in wanted]


def _own_level(target: Target, narrow: str) -> str:
    """The highest level of a machine that is described."""
    products = {tile.dtype.removeprefix("u") for tile in target.instruction_tiles}
    units = {"", *(tile.name for tile in target.instruction_tiles)}
    return [
        level.name
        for level in LEVELS.values()
        if level.isa == target.isa
        and level.serves(narrow)
        and products.issuperset(dtype.removeprefix("u") for dtype in level.dots)
        and level.matrix in units
    ][-1]


def level_machine(level: str, target: Target | None) -> Machine:
    """Whose costs count for one level: of what is described, or this machine for its levels."""
    if target is not None:
        return Machine(target)
    own, wanted = host_level(), LEVELS[level]
    if wanted in host_levels() and wanted.isa == own.isa:
        return host_machine()
    return usual_machine(wanted)


def machine_info(machine: Machine) -> MachineInfo:
    """What an artifact records of the machine by whose costs it chooses."""
    profile = _digest(repr(machine.core)) if machine.core.measured else ""
    return MachineInfo(machine.target.name, _digest(dump(machine.target)), profile)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def machine_for(graph: Graph, target: object) -> tuple[str, Machine]:
    """The level that a graph is compiled for on a machine, and whose costs count for it.

    ``target`` is as of ``tilewright.compile``: None stands for this machine.
    """
    described = described_target(target)
    (level,) = chosen_levels(None, narrowest(graph, Precision.FLOAT32), described)
    return level, level_machine(level, described)


def host_machine() -> Machine:
    """This machine, with the price list of its cores as measured if a measurement is kept."""
    profile = load_profile(host_level().name)
    return Machine(detect()) if profile is None else Machine(*measured_machine(profile, detect()))
