"""The verbs put together, and errors for people.

:func:`main` is the entry of the command ``tilewright``. Results go to stdout, progress and errors
to stderr; with ``--json`` an error is a JSON object on stdout, too. Exit codes: 0 fine, 1 failure,
2 wrong usage.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import typer
from rich.console import Console
from rich.text import Text

from tilewright.cli.bench import bench
from tilewright.cli.bench_ops import bench_ops
from tilewright.cli.cache import cache
from tilewright.cli.compile import compile_command
from tilewright.cli.doctor import doctor
from tilewright.cli.inspect import inspect
from tilewright.cli.regret import regret
from tilewright.cli.run import run
from tilewright.cli.tune import tune
from tilewright.cli.verify import verify
from tilewright.support.errors import TilewrightError

app = typer.Typer(
    name="tilewright",
    help="Compile a tensor program of unknown shapes once, for every shape in its range.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.command("inspect")(inspect)
app.command("compile")(compile_command)
app.command("run")(run)
app.command("verify")(verify)
app.command("bench")(bench)
app.command("bench-ops")(bench_ops)
app.command("regret")(regret)
app.command("doctor")(doctor)
app.command("tune")(tune)
app.command("cache")(cache)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line (``sys.argv`` by default) and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        app(args=given, prog_name="tilewright")
    except TilewrightError as error:
        _report(error, as_json="--json" in given)
        return 1
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return 0


def _report(error: TilewrightError, *, as_json: bool) -> None:
    if as_json:
        document = {
            "kind": type(error).__name__,
            "message": error.message,
            "where": error.where,
            "hint": error.hint,
        }
        print(json.dumps({"error": document}, indent=2))
    console = Console(stderr=True, soft_wrap=True)
    console.print(Text("error: ", style="bold red") + Text(str(error), style="default"))
