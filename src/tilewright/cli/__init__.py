"""Package 9: the command line.

One module per verb (``inspect``, ``compile``, ``run``, ``verify``, ``bench``, ``doctor``, ``tune``,
…), each a function that typer turns into a command; ``app`` puts them together and turns errors
into messages and exit codes, ``options`` reads what verbs have in common, ``output`` prints tables
or JSON. May import every lower package, typer and rich. Start with ``app``.
"""

from tilewright.cli.app import main

__all__ = ["main"]
