"""The command line as a whole, and errors for people.

:func:`run` is all that happens between the arguments and the exit code. Results go to stdout,
progress and errors to stderr; with ``--json`` an error is a JSON object on stdout, too. Exit codes:
0 fine, 1 failure, 2 wrong usage, 130 interrupted, 143 terminated.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, cast

import typer

from tilewright.cli.usage import UsageError
from tilewright.cli.verbs import VerbGroup
from tilewright.support.errors import TilewrightError
from tilewright.support.version import VERSION

FAILURE, WRONG_USAGE = 1, 2
# What the parser of options raises; typer does not export it, and newer ones bring it along.
_PARSER_ERROR = cast(
    "type[Exception]",
    next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"),
)

app = typer.Typer(
    name="tilewright",
    cls=VerbGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"tilewright {VERSION}")
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Compile an ONNX model once, for every shape in the ranges of its dimensions.

    \b
    Example: tilewright compile model.onnx -o model.tw
    """


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line (``sys.argv`` by default) and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        try:
            code = _run(given)
        finally:
            # What waits to be written would fail when Python ends, where nobody can answer.
            sys.stdout.flush()
    except OSError as error:
        _discard_output()
        if error.errno != errno.EPIPE:
            _print_error(str(_of_file(error, "stdout")))
        return FAILURE
    return code


def _run(given: list[str]) -> int:
    try:
        code = app(args=given, prog_name="tilewright", standalone_mode=False)
    except TilewrightError as error:
        is_usage = isinstance(error, UsageError)
        if "--json" in given:
            _print_document(type((is_usage and error.__cause__) or error).__name__, error)
        _print_error(str(error))
        return WRONG_USAGE if is_usage else FAILURE
    except OSError as error:
        if error.filename is None:
            raise
        told = _of_file(error, str(error.filename))
        if "--json" in given:
            _print_document(type(error).__name__, told)
        _print_error(str(told))
        return FAILURE
    except _PARSER_ERROR as error:
        found = cast("Any", error)
        if "--json" in given:
            hint = "Run the command with --help for its options"
            _print_document(UsageError.__name__, UsageError(found.format_message(), hint=hint))
        found.show()
        return WRONG_USAGE
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return code if isinstance(code, int) else 0


def _of_file(error: OSError, where: str) -> TilewrightError:
    why = error.strerror or type(error).__name__
    return TilewrightError(f"A file cannot be read or written: {why}", where=where)


def _print_document(kind: str, error: TilewrightError) -> None:
    """An error for programs."""
    found = {"kind": kind, "message": error.message, "where": error.where, "hint": error.hint}
    print(json.dumps({"error": found}, indent=2))


def _print_error(text: str) -> None:
    red, plain = ("\033[1;31m", "\033[0m") if sys.stderr.isatty() else ("", "")
    print(f"{red}error:{plain} {text}", file=sys.stderr)


def _discard_output() -> None:
    """Send what is still in the buffer of stdout nowhere: nobody reads it, or it has no room."""
    with contextlib.suppress(OSError):  # a stdout that is no file
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
