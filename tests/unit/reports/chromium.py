"""A real Chromium, and a page that it opened offline."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE = 120_000  # milliseconds that Chromium may take for one operation: the machine may be busy


def launched() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    path = os.environ.get("TURNWISE_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("no Chromium here: install one, or name it in TURNWISE_CHROMIUM")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"], timeout=PATIENCE)
        yield browser
        browser.close()


class Page:
    """A page that was opened offline, with everything that it asked for and complained about."""

    def __init__(self, browser: Any, path: Path, **settings: Any) -> None:
        self.context = browser.new_context(offline=True, **settings)
        self.context.set_default_timeout(PATIENCE)
        self.tab = self.context.new_page()
        self.asked: list[str] = []
        self.said: list[str] = []
        self.tab.on("request", lambda request: self.asked.append(request.url))
        self.tab.on("console", lambda message: self.said.append(message.text))
        self.tab.on("pageerror", lambda error: self.said.append(str(error)))
        began = time.perf_counter()
        self.tab.goto(path.as_uri())
        if path.name == "rollouts.html":
            self.tab.wait_for_selector("body[data-ready]", timeout=PATIENCE)
        self.seconds = time.perf_counter() - began

    def __enter__(self) -> Page:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()

    def until(self, condition: str, seconds: float = 20) -> None:
        """Wait for it. Playwright's own waiting evaluates text inside the page, which the page's policy forbids."""
        end = time.monotonic() + seconds
        while not self.tab.evaluate(condition):
            assert time.monotonic() < end, condition
            self.tab.wait_for_timeout(20)

    def count(self) -> str:
        return str(self.tab.inner_text("#count"))
