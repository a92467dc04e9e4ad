"""The version of tilewright, for its users, its artifacts and its packaging. Imports nothing."""

VERSION = "0.1.0"
