"""The ``retrograd`` command: one module for each command, all of them put together in ``main``."""

from app.cli.main import main

__all__ = ["main"]
