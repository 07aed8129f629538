"""What goes wrong with a store, said so that a person can act on it."""

from __future__ import annotations

from trainer.errors import RetrogradError


class StoreError(RetrogradError):
    """The database cannot be opened, or what was asked of it cannot be done."""

    exit_status = 2
