"""From a TOML file to a configuration, or to every reason why it is none."""

from __future__ import annotations

import ast
import math
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from trainer.config.base import absolute
from trainer.config.lines import KeyPath, LineIndex, Origin, line_index
from trainer.config.models import CONFIGS, GrpoConfig, RunConfig
from trainer.config.problems import paragraph, paragraphs
from trainer.errors import ConfigError

# Far above any configuration; it keeps a model given by mistake from being read as text.
_LARGEST_FILE = 1 << 20
_LARGEST_INT = 2**63 - 1
_LARGEST_FLOAT = (2 - 2**-23) * 2.0**127
# tomllib takes time that grows with the square of a key's parts.
_KEY_PARTS = 50
_KEY_PART = r"""(?:[A-Za-z0-9_-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
_LONG_KEY = re.compile(
    rf"(?:^|[\[{{,])[ \t]*+(?:{_KEY_PART}[ \t]*+\.[ \t]*+){{{_KEY_PARTS}}}", re.MULTILINE
)
_TWICE = re.compile(r"(?<=^Cannot declare )\(.*\)(?= twice)")
_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


@dataclass(frozen=True, slots=True)
class Overrides:
    """What the command line sets in place of the file; paths are taken from the working folder."""

    model: Path | None = None
    output: Path | None = None
    name: str | None = None

    def values(self) -> dict[tuple[str, str], str]:
        """The keys that are set, with their values as the file would write them."""
        values = {}
        if self.model is not None:
            values["model", "path"] = str(absolute(self.model, Path.cwd()))
        if self.output is not None:
            values["output", "path"] = str(absolute(self.output, Path.cwd()))
        if self.name is not None:
            values["run", "name"] = self.name
        return values


_FLAGS: dict[KeyPath, str] = {
    ("model", "path"): "--model",
    ("output", "path"): "--output",
    ("run", "name"): "--name",
}


def load_config(path: Path, overrides: Overrides | None = None) -> RunConfig:
    """Read and validate the configuration in ``path``. No file that it names has to exist.

    Raises:
        ConfigError: the file cannot be read, is not TOML, or has faults; the message has one
            paragraph for each of them.
    """
    text = _read(path)
    raw, lines = _parse(text, path)
    values = (overrides or Overrides()).values()
    source = absolute(path, Path.cwd())
    origin = Origin(source, str(path), lines, {key: _FLAGS[key] for key in values})
    algorithm = _algorithm(raw)
    config = CONFIGS[algorithm] if algorithm else _likely_config(raw)
    _fill(raw, {("run", "name"): _default_name(source)} | values, set(values))
    try:
        read = config.model_validate(raw, context=origin)
    except ValidationError as error:
        raise ConfigError("\n\n".join(paragraphs(error, config, algorithm, origin))) from None
    _refuse_large(raw, (), origin)
    return read


def _refuse_large(value: object, path: KeyPath, origin: Origin) -> None:
    """Raises ConfigError for a number that nothing which reads it could hold: a whole one of more
    than 64 bits, or one beyond single precision."""
    if isinstance(value, dict):
        for key, inner in value.items():
            _refuse_large(inner, (*path, key), origin)
    elif isinstance(value, int) and not -_LARGEST_INT <= value <= _LARGEST_INT:
        message = f"is out of range: whole numbers go up to {_LARGEST_INT}"
        raise ConfigError(paragraph(path, message, origin))
    elif isinstance(value, float) and math.isfinite(value) and abs(value) > _LARGEST_FLOAT:
        message = f"is out of range: numbers go up to {_LARGEST_FLOAT:.3g}"
        raise ConfigError(paragraph(path, message, origin))


def _read(path: Path) -> str:
    try:
        if path.is_dir():
            raise ConfigError(f"{path} is a folder: give the TOML file in it.")
        if not path.exists():
            raise ConfigError(f"{path} does not exist: give the path of a TOML file.")
        if not path.is_file():
            raise ConfigError(f"{path} is not a regular file: give the path of a TOML file.")
        size = path.stat().st_size
        if size > _LARGEST_FILE:
            raise ConfigError(
                f"{path} has {size} bytes, too many for a configuration: give the TOML file, "
                "which names the model under [model]."
            )
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}).") from error
    return _decode(content, path)


def _decode(content: bytes, path: Path) -> str:
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{path}:{line}: byte 0x{content[error.start]:02x} is not valid UTF-8: save the file "
            "as UTF-8 text."
        ) from None


def _parse(text: str, path: Path) -> tuple[dict[str, object], LineIndex]:
    if found := _LONG_KEY.search(text):
        line = text.count("\n", 0, found.end()) + 1
        raise ConfigError(f"{path}:{line}: a key has more than {_KEY_PARTS} parts joined by dots.")
    try:
        return dict(tomllib.loads(text)), line_index(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(_syntax(str(error), text, path)) from None
    except RecursionError:
        raise ConfigError(f"{path} nests values too deeply for a configuration.") from None
    except ValueError as error:  # an integer of thousands of digits
        reason = str(error).partition(";")[0]
        raise ConfigError(f"{path} holds a value that cannot be read ({reason}).") from None


def _syntax(message: str, text: str, path: Path) -> str:
    place = _PLACE.search(message)
    what = message[: place.start()] if place else message
    if place and place[1]:
        where, column = f"{path}:{place[1]}", f" at column {place[2]}"
    else:
        where, column = f"{path}:{text.rstrip().count(chr(10)) + 1}", " at the end of the file"
        if what.startswith("Invalid value"):
            what = "a value is missing, or a list is not closed"
    return f"{where}: this is not valid TOML{column}: {_plain(what)}{_advice(what)}."


def _plain(what: str) -> str:
    """With a section in its own notation, in place of Python's tuple."""
    named = _TWICE.sub(lambda found: f"[{'.'.join(ast.literal_eval(found[0]))}]", what)
    return named[:1].lower() + named[1:].rstrip(".")


def _advice(what: str) -> str:
    if what.startswith("Invalid value"):
        return ' (text is written in quotes: name = "value"; true and false in small letters)'
    if "Unescaped '\\'" in what or "Invalid hex value" in what:
        return " (write a path with / or between single quotes, where \\ is an ordinary character)"
    if what.startswith("Cannot declare"):
        return " (the section is there twice: join the two)"
    if what.startswith("Cannot overwrite"):
        return " (the key is there twice: remove one)"
    return ""


def _algorithm(raw: dict[str, object]) -> str | None:
    run = raw.get("run")
    algorithm = run.get("algorithm") if isinstance(run, dict) else None
    return algorithm if isinstance(algorithm, str) and algorithm in CONFIGS else None


def _likely_config(raw: dict[str, object]) -> type[RunConfig]:
    """What to judge the rest of a file by that names no known algorithm."""
    return next((config for name, config in CONFIGS.items() if name in raw), GrpoConfig)


def _default_name(source: Path) -> str:
    """The file's name without its ending, as one printable line."""
    return "".join(char if char.isprintable() else "?" for char in source.stem)


def _fill(
    raw: dict[str, object], values: dict[tuple[str, str], str], forced: set[tuple[str, str]]
) -> None:
    """Put ``values`` where the file has none, and those of ``forced`` in any case."""
    for section in ("run", "model", "output"):
        raw.setdefault(section, {})
    for (section, key), value in values.items():
        table = raw[section]
        if isinstance(table, dict) and ((section, key) in forced or key not in table):
            table[key] = value
