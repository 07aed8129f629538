"""A tab of the browser with an eye on what must never happen in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from playwright.sync_api import CDPSession, Page, Request

# Runs before anything of the page does, in every document of the tab.
_WATCH = """
window.ranForeignScript = false;
window.refusals = [];
document.addEventListener("securitypolicyviolation", (event) =>
  window.refusals.push(`${event.effectiveDirective} ${event.blockedURI} ${event.sample}`));
"""
FOREIGN = "window.ranForeignScript=true"
"""What a hostile text tries to run."""


@dataclass
class Watch:
    """``troubles`` are errors in the console, exceptions of scripts, dialogs and answers of the
    server that say that it failed."""

    page: Page
    troubles: list[str] = field(default_factory=list)
    sent: list[str] = field(default_factory=list)
    """Addresses that the tab asked for."""
    _streams: set[Request] = field(default_factory=set)
    _devtools: CDPSession | None = None

    def __post_init__(self) -> None:
        page = self.page
        page.add_init_script(_WATCH)
        page.on("pageerror", lambda error: self.troubles.append(f"exception: {error}"))
        page.on("console", self._console)
        page.on("dialog", self._dialog)
        page.on("request", self._request)
        page.on("requestfinished", self._request_over)
        page.on("requestfailed", self._request_over)

    def refusals(self) -> list[str]:
        """What the Content-Security-Policy kept from running."""
        found: list[str] = self.page.evaluate("window.refusals ?? []")
        return found

    def open_streams(self) -> int:
        """How many event streams are open by now."""
        # Playwright hands events over only while one of its calls waits for the browser.
        self.page.wait_for_timeout(1)
        return len(self._streams)

    def ran_foreign_script(self) -> bool:
        return bool(self.page.evaluate("window.ranForeignScript"))

    def assert_clean(self) -> None:
        assert self.troubles == [], self.page.url
        assert self.refusals() == [], self.page.url
        assert not self.ran_foreign_script(), self.page.url

    def heap_bytes(self) -> int:
        """Of the page's scripts, after the garbage is collected."""
        devtools = self._devtools or self.page.context.new_cdp_session(self.page)
        self._devtools = devtools
        devtools.send("HeapProfiler.collectGarbage")
        used: dict[str, Any] = devtools.send("Runtime.getHeapUsage")
        return int(used["usedSize"])

    def _request(self, request: Request) -> None:
        self.sent.append(request.url)
        if request.resource_type == "eventsource":
            self._streams.add(request)

    def _request_over(self, request: Request) -> None:
        self._streams.discard(request)

    def _console(self, message: Any) -> None:
        if message.type == "error":
            self.troubles.append(f"console: {message.text} ({message.location})")

    def _dialog(self, dialog: Any) -> None:
        # A page that is left asks nothing here, and no page asks anything by itself.
        self.troubles.append(f"dialog: {dialog.message}")
        dialog.dismiss()
