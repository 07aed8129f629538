"""What a run looks like in a terminal, and in the log file that stands in for one."""

from app.terminal.monitor import TerminalMonitor

__all__ = ["TerminalMonitor"]
