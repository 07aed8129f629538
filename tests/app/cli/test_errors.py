from __future__ import annotations

import signal

import pytest
import typer

from app.cli.errors import reported
from app.interrupt import Signalled
from trainer.errors import ConfigError, RewardError


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (ConfigError("grpo.toml:3: no"), 2, "grpo.toml:3: no\n"),
        (RewardError("it died"), 1, "it died\n"),
        (KeyboardInterrupt(), 130, "Stopped.\n"),
        (Signalled(signal.SIGTERM), 143, "Stopped at once.\n"),
        (RewardError("it printed \x1b[2J\nand died"), 1, "it printed ␛[2J\nand died\n"),
    ],
)
def test_an_error_ends_the_command_with_its_message_and_status(capsys, error, status, said):
    with pytest.raises(typer.Exit) as ended, reported(debug=False):
        raise error
    assert ended.value.exit_code == status
    assert capsys.readouterr().err == said


def test_a_fault_of_retrograd_itself_says_how_to_find_it(capsys):
    with pytest.raises(typer.Exit) as ended, reported(debug=False):
        raise ZeroDivisionError("division by zero")
    assert ended.value.exit_code == 1
    said = capsys.readouterr().err
    assert "ZeroDivisionError: division by zero" in said
    assert "--debug" in said
    assert "Traceback" not in said


def test_with_debug_the_traceback_comes_first(capsys):
    with pytest.raises(typer.Exit), reported(debug=True):
        raise ConfigError("grpo.toml:3: no")
    said = capsys.readouterr().err
    assert said.startswith("Traceback")
    assert said.endswith("grpo.toml:3: no\n")
