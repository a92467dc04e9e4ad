"""Room 0: what every other room may use.

Errors with a place and a way out (``errors``). Imports nothing of the project.
"""
