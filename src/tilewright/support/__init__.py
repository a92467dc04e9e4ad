"""What every other package may use.

Errors with a place and a way out (``errors``), quantities as people write them (``text``), progress
on a terminal or in a log (``progress``), the cache directory (``cache``). Imports rich, and nothing
of the project.
"""
