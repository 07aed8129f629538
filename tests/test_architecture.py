"""The rules of the code base that no linter knows."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from statistics import median

import pytest

ROOT = Path(__file__).parent.parent
MATHS = (
    "trainer/algorithms/advantages.py",
    "trainer/algorithms/critic.py",
    "trainer/algorithms/gae.py",
    "trainer/algorithms/losses.py",
    "trainer/algorithms/metrics.py",
    "trainer/algorithms/paired.py",
    "trainer/algorithms/schedules.py",
    "trainer/judge/scores.py",
    "trainer/merge/factors.py",
    "trainer/model/attention.py",
    "trainer/model/experts.py",
    "trainer/model/inputs.py",
    "trainer/model/logprobs.py",
    "trainer/model/lora.py",
    "trainer/model/norms.py",
    "trainer/model/packing.py",
    "trainer/model/passes.py",
    "trainer/model/rotary.py",
    "trainer/prefix.py",
    "trainer/rollout/sampling.py",
    "trainer/rollout/seeds.py",
)
FOR_EVERYBODY = {"errors.py", "closing.py"}
FOUNDATIONS = {
    "config": set(),
    "llama": set(),
    "prefix.py": set(),
    "device.py": set(),
    "gguf": {"llama"},
    "chat": {"llama"},
    "health": {"config"},
    "sizing.py": {"gguf"},
    "reward": {"chat"},
    "judge": {"chat", "config", "reward"},
    "model": {"gguf", "prefix.py"},
    "rollout": {"chat", "gguf", "llama", "prefix.py"},
    "monitor": {"chat", "health", "rollout"},
    "checkpoint": {"monitor"},
    "merge": {"chat", "gguf", "llama", "rollout"},
    "export.py": {"gguf", "merge", "model", "rollout"},
    "agreement.py": {"export.py", "model", "rollout"},
    "data.py": {"chat", "config", "reward"},
    "inputs.py": {"chat", "config", "data.py", "gguf"},
    "memory.py": {"config", "gguf", "inputs.py", "rollout", "sizing.py"},
    "algorithms": {
        "chat", "checkpoint", "config", "export.py", "health", "judge", "model", "monitor",
        "reward", "rollout"
    },
    "conversation.py": {"chat", "gguf", "llama", "rollout", "sizing.py"},
    "resume.py": {"checkpoint", "config", "inputs.py"},
    "spread.py": {"algorithms"},
}  # fmt: skip
"""Which rooms of the trainer each room may import, and does; all of them stand above it here."""
AT_THE_TOP = {"opening", "session.py", "bench.py", "check.py", "ending.py", "run.py"}
"""What puts the rooms together may import any of them."""
OF_THE_APP = {
    "stop.py": set(),
    "store": set(),
    "terminal": {"store"},
    "watched.py": {"stop.py", "store", "terminal"},
    "jobs": {"store", "watched.py"},
    "chat": {"store"},
    "server": {"store"},
    "listening.py": set(),
    "model_requests.py": {"server"},
    "model_server.py": {"listening.py", "model_requests.py", "server"},
    "routes": {"chat", "jobs", "server", "store"},
    "web.py": {"chat", "routes", "server", "store"},
    "serving.py": {"jobs", "listening.py", "server", "store", "web.py"},
}
"""The same for the rooms of the application."""
APP_FOR_EVERYBODY = {
    "interrupt.py", "overrides.py", "resources.py", "rows.py", "settings.py", "text.py"
}  # fmt: skip
APP_AT_THE_TOP = {"cli", "demo.py", "fetch.py", "hub.py", "models.py"}
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


def room(module: str) -> str:
    """The part of a package that holds a module: a folder, or a file of its own."""
    package, name = module.split(".")[:2]
    return name if (ROOT / package / name).is_dir() else f"{name}.py"


def modules(path: Path, package: str) -> set[str]:
    """The modules of ``package`` that a file imports, inside functions too."""
    names: set[str] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == package:
            names |= {f"{package}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return {name for name in names if name.startswith(f"{package}.")}


def rooms(package: str = "trainer") -> dict[str, set[str]]:
    """Each room of a package with the others that it imports."""
    found: dict[str, set[str]] = {}
    for path in sources(package):
        here = path.relative_to(ROOT / package).parts[0]
        if here != "__init__.py":
            others = {room(name) for name in modules(path, package)} - {here}
            found.setdefault(here, set()).update(others)
    return found


def test_each_room_imports_those_below_it_and_no_others():
    found = rooms()
    assert found.keys() - FOUNDATIONS.keys() == AT_THE_TOP | FOR_EVERYBODY
    assert [found[name] for name in FOR_EVERYBODY] == [set(), set()]
    below = {name: others - FOR_EVERYBODY for name, others in found.items() if name in FOUNDATIONS}
    assert below == FOUNDATIONS
    order = list(FOUNDATIONS)
    assert [r for r in order if not FOUNDATIONS[r] <= set(order[: order.index(r)])] == []


def test_a_command_needs_no_page():
    asks = [p for p in sources("app/cli") for m in modules(p, "app") if room(m) == "routes"]
    assert asks == []


def test_each_room_of_the_application_imports_those_below_it_and_no_others():
    found = rooms("app")
    assert found.keys() - OF_THE_APP.keys() == APP_AT_THE_TOP | APP_FOR_EVERYBODY
    assert set().union(*(found[name] for name in APP_FOR_EVERYBODY)) <= APP_FOR_EVERYBODY
    below = {n: others - APP_FOR_EVERYBODY for n, others in found.items() if n in OF_THE_APP}
    assert below == OF_THE_APP
    order = list(OF_THE_APP)
    assert [r for r in order if not OF_THE_APP[r] <= set(order[: order.index(r)])] == []


@pytest.mark.parametrize("package", ["trainer", "app"])
def test_no_two_rooms_import_each_other_whatever_the_way_round(package):
    assert set(TopologicalSorter(rooms(package)).static_order()) >= rooms(package).keys()


def test_the_page_on_architecture_tells_the_same():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    page, _, of_app = page.partition("\n## `app/`\n")
    rows = re.findall(r"^\| `([a-z_]+(?:\.py)?)` \| (.*) \|$", of_app, re.MULTILINE)
    said = {name: set(re.findall(r"`([a-z_]+(?:\.py)?)`", text)) for name, text in rows}
    assert {name: said.get(name) for name in OF_THE_APP} == OF_THE_APP
    told = {}
    for row in re.findall(r"^\| `([a-z_]+(?:\.py)?)` \| (.*) \|$", page, re.MULTILINE):
        imports = re.findall(r"`([a-z_]+(?:\.py)?)`", row[1])
        told[row[0]] = {name for name in imports if name in FOUNDATIONS}
    assert {name: told.get(name) for name in FOUNDATIONS} == FOUNDATIONS


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
