"""When a point of a curve is drawn: the moment at which the chart's canvas has it."""

from __future__ import annotations

from contextlib import closing

from playwright.sync_api import Page
from sqlalchemy import select

from app.store.models import Update
from e2e.server import Server
from e2e.waiting import eventually

# Stands between the page and its charting library, and notes the updates of each picture.
_NOTE = """
window.drawn = {};
let library;
Object.defineProperty(window, "uPlot", {
  configurable: true,
  get: () => library,
  set: (given) => {
    library = new Proxy(given, {
      construct(target, [options, data, element]) {
        const hooks = { ...options.hooks };
        hooks.draw = [...(hooks.draw ?? []), (plot) => {
          const [name] = JSON.parse(element.closest("[data-names]")?.dataset.names ?? '[""]');
          const times = (window.drawn[name] ??= {});
          plot.data[0].forEach((update, row) => {
            if (plot.data[1][row] !== null) times[update] ??= Date.now() / 1000;
          });
        }];
        return new target({ ...options, hooks }, data, element);
      },
    });
  },
});
"""


def note_drawing(page: Page) -> None:
    """To be asked before the page is opened."""
    page.add_init_script(_NOTE)


def drawn(page: Page, name: str) -> dict[int, float]:
    """The updates that a curve has, each with the time of its first picture."""
    times: dict[str, float] = page.evaluate("(name) => window.drawn[name] ?? {}", name)
    return {int(update): at for update, at in times.items()}


def wait_for_points(page: Page, name: str, count: int) -> dict[int, float]:
    eventually(lambda: len(drawn(page, name)) >= count, f"{count} points of {name}", 60)
    return drawn(page, name)


def seconds_behind(server: Server, run_id: int, points: dict[int, float]) -> dict[int, float]:
    """From the moment that an update ended, which is before its row is there, to its picture."""
    of_run = select(Update.update, Update.at).where(Update.run_id == run_id, Update.kind == "train")
    with closing(server.store()) as store, store.read() as session:
        ends = dict(session.execute(of_run).all())
    return {update: at - ends[update] for update, at in points.items()}
