"""The rules of the code base that no linter knows."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

ROOT = Path(__file__).parent.parent
MATHS = (
    "trainer/algorithms/advantages.py",
    "trainer/algorithms/losses.py",
    "trainer/algorithms/metrics.py",
    "trainer/algorithms/schedules.py",
    "trainer/model/attention.py",
    "trainer/model/inputs.py",
    "trainer/model/logprobs.py",
    "trainer/model/lora.py",
    "trainer/model/packing.py",
    "trainer/model/passes.py",
    "trainer/rollout/sampling.py",
    "trainer/rollout/seeds.py",
)
Function = ast.FunctionDef | ast.AsyncFunctionDef


def sources(*folders: str) -> list[Path]:
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    assert len(found) > 10, "the folders moved"
    return found


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def functions(path: Path) -> Iterator[Function]:
    return (node for node in ast.walk(tree(path)) if isinstance(node, Function))


def length(function: Function) -> int:
    assert function.end_lineno is not None
    return function.end_lineno - function.lineno + 1


def where(path: Path, node: Function | ast.ClassDef) -> str:
    return f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"


def imported(path: Path) -> set[str]:
    """The top-level packages that a file imports, inside functions too."""
    names: set[str] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names.add((node.module or "").split(".")[0])
    return names


@pytest.mark.parametrize("package", ["app", "fastapi", "sqlalchemy", "typer", "rich"])
def test_the_trainer_knows_nothing_of_the_application(package):
    assert [str(p) for p in sources("trainer") if package in imported(p)] == []


def test_the_application_uses_the_trainer():
    """Which also shows that the check above sees imports."""
    assert any("trainer" in imported(path) for path in sources("app"))


def test_no_file_is_long():
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for path in sources("trainer", "app")
    }
    assert {path: lines for path, lines in lengths.items() if lines > 400} == {}


def test_no_function_is_long():
    long = [
        f"{where(path, f)} ({length(f)} lines)"
        for path in sources("trainer", "app")
        for f in functions(path)
        if length(f) > 60
    ]
    assert long == []


def test_most_functions_are_short():
    lengths = sorted(length(f) for path in sources("trainer", "app") for f in functions(path))
    assert median(lengths) <= 12
    assert lengths[len(lengths) * 9 // 10] <= 35


def test_every_function_says_what_it_returns():
    silent = [
        where(path, f)
        for path in sources("trainer", "app")
        for f in functions(path)
        if f.returns is None
    ]
    assert silent == []


@pytest.mark.parametrize("name", MATHS)
def test_public_maths_is_documented(name):
    module = tree(ROOT / name)
    assert ast.get_docstring(module)
    public = [
        node
        for node in module.body
        if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_")
    ]
    assert public, "the file moved"
    assert [where(ROOT / name, node) for node in public if not ast.get_docstring(node)] == []


def test_every_module_says_what_it_is_for():
    silent = [
        str(path.relative_to(ROOT))
        for path in sources("trainer", "app")
        if path.read_text(encoding="utf-8").strip() and not ast.get_docstring(tree(path))
    ]
    assert silent == []


def test_no_function_writes_to_a_module_global():
    writing = [
        str(path.relative_to(ROOT))
        for path in sources("trainer", "app")
        if any(isinstance(node, ast.Global) for node in ast.walk(tree(path)))
    ]
    assert writing == []
