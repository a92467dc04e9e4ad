"""The verbs by name, and a group of commands that imports a verb when it is used.

A verb needs most of the project; the list of verbs does not. So that list is a table here, and
:class:`VerbGroup` puts a stand-in for each verb before typer, which knows enough to be listed.
Imports typer alone of other packages. Start with :data:`VERBS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from tilewright.cli.imports import imported


@dataclass(frozen=True)
class Verb:
    """Where the function of a verb is, and the sentence about it in the list of verbs."""

    module: str
    function: str
    summary: str


VERBS = {
    "inspect": Verb("tilewright.cli.inspect", "inspect", "Show what a model or an artifact is."),
    "compile": Verb(
        "tilewright.cli.compile", "compile_command", "Compile a model once, for every shape."
    ),
    "run": Verb("tilewright.cli.run", "run", "Call a model once and show its outputs."),
    "verify": Verb("tilewright.cli.verify", "verify", "Compare a model with a reference."),
    "bench": Verb("tilewright.cli.bench", "bench", "Time a model beside other engines."),
    "explain": Verb(
        "tilewright.cli.explain", "explain", "Show what each kernel of a model takes, and why."
    ),
    "report": Verb("tilewright.cli.explain", "report", "Write a page about a model."),
    "bench-ops": Verb(
        "tilewright.cli.bench_ops", "bench_ops", "Time single operators beside other engines."
    ),
    "regret": Verb("tilewright.cli.regret", "regret", "Time what the cost model's choices cost."),
    "model-error": Verb(
        "tilewright.cli.model_error", "model_error", "Compare modelled times with measured ones."
    ),
    "simulate": Verb(
        "tilewright.cli.simulate", "simulate", "Show what more threads would make of a model."
    ),
    "doctor": Verb("tilewright.cli.doctor", "doctor", "Show what this machine is and can do."),
    "tune": Verb("tilewright.cli.tune", "tune", "Measure the register tiles of this machine."),
    "cache": Verb("tilewright.cli.cache", "cache", "Show or clear what is kept between runs."),
}


class VerbGroup(TyperGroup):
    """The verbs of the table as commands."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names in the order of the table, which is the order of use."""
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The stand-in for a verb; None for a name that is none."""
        verb = VERBS.get(cmd_name)
        return None if verb is None else _StandIn(cmd_name, verb)


class _StandIn(TyperCommand):
    """Known by its summary; its context, and so all that it does, is that of the real command."""

    def __init__(self, name: str, verb: Verb) -> None:
        super().__init__(name, callback=None, help=verb.summary, rich_markup_mode=None)
        self._verb = verb

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        """The context of the real command, which is imported by this."""
        found = imported(self._verb.module)
        single = typer.Typer(
            add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
        )
        single.command(self.name)(getattr(found, self._verb.function))
        command: Any = typer.main.get_command(single)
        return command.make_context(info_name, args, parent=parent, **extra)
