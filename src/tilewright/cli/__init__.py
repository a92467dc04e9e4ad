"""The command line.

One module per verb (``inspect``, ``compile``, ``run``, ``verify``, ``bench``, ``doctor``, ``tune``,
…), each a function that typer turns into a command; ``app`` puts them together and turns errors
into messages and exit codes, ``verbs`` imports a verb when it is asked for, ``options`` reads what
verbs have in common, ``output`` prints tables or JSON. May import every lower package, typer and
rich. Start with ``app``.
"""

from __future__ import annotations

import atexit
import gc
from collections.abc import Sequence

from tilewright.cli.imports import INTERRUPTED, ended_tidily, imported


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line (``sys.argv`` by default) and return its exit code.

    What the command line needs is imported in here, so that Ctrl-C meanwhile is no traceback.
    """
    atexit.register(gc.freeze)  # or Python looks at the end through all that a compiler made
    try:
        app = imported("tilewright.cli.app")
        with ended_tidily():
            return app.run(arguments)
    except KeyboardInterrupt:
        return INTERRUPTED


__all__ = ["INTERRUPTED", "main"]
