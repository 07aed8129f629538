"""Makes the pictures of the dashboard that the README shows: `make screenshots`.

    python docs/screenshots.py [--model MODEL.gguf] [--to FOLDER]

Starts a server, trains a few runs for real (the bundled tiny model, or MODEL on
`examples/addition`), and takes the pictures in a browser, light and dark.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright
from sqlalchemy import func, select

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from e2e.chromium import launched  # noqa: E402
from e2e.pages import settle  # noqa: E402
from e2e.server import RETROGRAD, Server  # noqa: E402
from e2e.waiting import eventually  # noqa: E402

from app.store.models import Answer, Group, Run  # noqa: E402

WIDE = {"width": 1280, "height": 820}
NARROW = {"width": 360, "height": 720}
LARGEST_BYTES = 250 * 1024
SCHEMES = ("light", "dark")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="train this on examples/addition")
    parser.add_argument("--to", type=Path, default=ROOT / "docs" / "pictures")
    args = parser.parse_args()
    args.to.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        server = Server(Path(name)).start()
        try:
            trained = list(train(server, args.model))
            with (
                under_way(server, args.model) as running,
                sync_playwright() as playwright,
                closing(launched(playwright)) as browser,
            ):
                for file in pictures(browser, server, running, trained, args.to):
                    size = file.stat().st_size
                    print(f"{file.name}: {size / 1024:.0f} KiB")
                    assert size <= LARGEST_BYTES, f"{file} is too large for the repository"
        finally:
            server.stop()


def train(server: Server, model: Path | None) -> Iterator[int]:
    """The ids of the finished runs: two to compare, and one by PPO."""
    for config, name, changes in examples(model):
        folder = copied(server, config, name, changes)
        done = server.train(folder / config.name, "--name", name)
        assert done.returncode == 0, done.stderr
        with closing(server.store()) as store, store.read() as session:
            found = session.scalar(select(func.max(Run.id)))
            assert found is not None
            yield found


def examples(model: Path | None) -> Iterator[tuple[Path, str, dict[str, str]]]:
    """Configuration, name and replaced lines of each run."""
    if model is not None:
        grpo = ROOT / "examples" / "addition" / "grpo.toml"
        path = {r"path = .*gguf\"(?=\n\n\[output)": f'path = "{model.resolve()}"'}
        yield grpo, "addition-lr-2e-4", path
        yield grpo, "addition-lr-5e-5", path | {r"lr = .*": "lr = 5e-5"}
        return
    folder = ROOT / "examples"
    yield folder / "smoke_tiny_ppo.toml", "addition-ppo", {}
    yield folder / "smoke_tiny_grpo.toml", "addition-lr-2e-4", {r"lr = .*": "lr = 2e-4"}
    yield folder / "smoke_tiny_grpo.toml", "addition-lr-8e-4", {}


def copied(server: Server, config: Path, name: str, changes: dict[str, str]) -> Path:
    """The example's folder as a person would have it, with ``changes`` to the configuration."""
    folder = server.workspace / name
    files = [*config.parent.glob("*.py"), *config.parent.glob("*.jsonl"), config]
    files += [] if config.parent.name == "addition" else (config.parent / "tiny").iterdir()
    for file in files:
        if file.is_file():
            target = folder / file.relative_to(config.parent)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read_bytes())
    text = re.sub(r'"(\.\./)+runs/', '"runs/', config.read_text(encoding="utf-8"))
    for pattern, line in changes.items():
        text, count = re.subn(pattern, line, text)
        assert count == 1, f"{config}: {pattern} is there {count} times"
    (folder / config.name).write_text(text, encoding="utf-8")
    return folder


@contextmanager
def under_way(server: Server, model: Path | None) -> Iterator[int]:
    """The id of a run that is at work meanwhile."""
    *_, (config, _, changes) = examples(model)
    updates = {r"\nupdates = .*": "\nupdates = 120"}
    folder = copied(server, config, "addition-r8", changes | updates)
    command = [str(RETROGRAD), "train", str(folder / config.name), "--name", "addition-r8"]
    process = subprocess.Popen(
        command,
        env=server.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )

    def begun() -> int | None:
        with closing(server.store()) as store, store.read() as session:
            of_it = select(Run.id).where(Run.name == "addition-r8", Run.completed >= 24)
            return session.scalar(of_it)

    try:
        yield eventually(begun, "the run that is to be seen at work", 900)
    finally:
        process.terminate()
        process.wait(60)


def pictures(
    browser: Browser, server: Server, running: int, trained: list[int], folder: Path
) -> Iterator[Path]:
    last = trained[-1]
    pages = {
        "runs": "/",
        "overview": f"/runs/{running}",
        "metrics": f"/runs/{last}/metrics",
        "trajectories": f"/runs/{last}/trajectories?{interesting(server, last)}",
        "compare": f"/compare?run={trained[-2]}&run={last}",
    }
    for scheme in SCHEMES:
        context = browser.new_context(
            base_url=server.url, viewport=WIDE, color_scheme=scheme, reduced_motion="reduce"
        )
        page = context.new_page()
        for name, address in pages.items():
            yield taken(page, address, folder / f"{name}-{scheme}.png")
        context.close()
    context = browser.new_context(base_url=server.url, viewport=NARROW, color_scheme="light")
    yield taken(context.new_page(), pages["trajectories"], folder / "trajectories-narrow.png")
    context.close()


def interesting(server: Server, run_id: int) -> str:
    """The group whose answers differ most, as the page's address names it."""
    with closing(server.store()) as store, store.read() as session:
        texts = func.count(func.distinct(Answer.text))
        group = session.execute(
            select(Group.update, Group.number)
            .join(Answer, Answer.group_id == Group.id)
            .where(Group.run_id == run_id, Group.kind == "train")
            .group_by(Group.id)
            .order_by(texts.desc(), Group.spread.desc())
            .limit(1)
        ).one()
    return f"update={group.update}&group={group.number}"


def taken(page: Page, address: str, file: Path) -> Path:
    page.goto(address)
    settle(page)
    page.screenshot(path=file)
    return file


if __name__ == "__main__":
    main()
