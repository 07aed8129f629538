"""The browser: a Chromium that is here already, without what a test has no use for."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from playwright.sync_api import Browser, Playwright

ROOT = Path(__file__).parent.parent.parent
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def launched(playwright: Playwright) -> Browser:
    """Raises FileNotFoundError where there is no browser."""
    return playwright.chromium.launch(executable_path=browser_path(), args=list(ARGUMENTS))


def browser_path() -> str:
    """The one that `make browser` found, else another one that is here."""
    noted = ROOT / ".venv" / ".browser"
    places = [os.environ.get("RETROGRAD_BROWSER", "")]
    places += [noted.read_text(encoding="utf-8").strip()] if noted.exists() else []
    for place in (*places, *NAMES):
        if place and (found := shutil.which(place)):
            return found
    raise FileNotFoundError("There is no Chromium: run `make browser`, or set RETROGRAD_BROWSER.")
