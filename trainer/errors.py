"""The errors a person can act on.

Each message is one paragraph that names the file, line or key, the value, and what to do. The
command line prints the message alone; a traceback appears only with ``--debug``.
"""

from __future__ import annotations


class RetrogradError(Exception):
    """A failure with a message written for the user. ``exit_status`` is the process's status."""

    exit_status = 1


class ConfigError(RetrogradError):
    """Something that is wrong before any training: configuration, dataset, model file."""

    exit_status = 2


class ModelError(ConfigError):
    """A GGUF file that cannot be read, is damaged, or holds what retrograd does not support."""


class NoTemplateError(ModelError):
    """A model without a chat template, where one is needed."""


class DataError(ConfigError):
    """A prompt file with a bad line."""


class TemplateError(ConfigError):
    """A chat template that refuses the messages, is unsafe, or does not end."""


class RewardError(RetrogradError):
    """The reward program died, hung, or answered against the protocol."""


class TrainingError(RetrogradError):
    """Training stopped because going on would be wrong (guard, non-finite loss, stall)."""
