"""The end of a command by a signal."""

from __future__ import annotations


class Signalled(KeyboardInterrupt):
    """Raised where a signal ends the run at once."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_status = 128 + number
