"""Take the pictures of the web page, docs/pictures/page-*.png, with a real server and a real browser.

Not part of `generate.py`, because it needs the default model and a Chromium.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import Request, urlopen

from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "pictures"
SAMPLES = ROOT / "src" / "gemel" / "serve" / "page" / "samples.js"
THEMES = ("music", "account", "payment", "weather", "cooking", "sport", "travel", "business")
GEMEL = (sys.executable, "-m", "gemel")
TURNS = itertools.count(1)
WIDE, PHONE = (1120, 960), (360, 700)


@dataclass(frozen=True)
class Shot:
    """One picture: which tab, how it looks, and how large the window is."""

    name: str
    tab: str
    scheme: str
    size: tuple[int, int]


SHOTS = (
    Shot("page-search", "search", "light", WIDE),
    Shot("page-compare", "compare", "light", WIDE),
    Shot("page-pairs", "pairs", "light", WIDE),
    Shot("page-clusters", "clusters", "dark", WIDE),
    Shot("page-server", "server", "dark", WIDE),
    Shot("page-phone-search", "search", "dark", PHONE),
    Shot("page-phone-compare", "compare", "light", PHONE),
)


def sample_texts() -> list[str]:
    """The examples of the page."""
    return re.findall(r'^  "(.*)",$', SAMPLES.read_text(encoding="utf-8"), re.MULTILINE)


@contextmanager
def served() -> Iterator[str]:
    """The address of a server with an index of the examples."""
    with tempfile.TemporaryDirectory() as folder:
        texts, index = Path(folder) / "texts.jsonl", f"{folder}/notes"
        each = len(sample_texts()) // len(THEMES)
        rows = [{"text": text, "theme": THEMES[at // each]} for at, text in enumerate(sample_texts())]
        texts.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        subprocess.run([*GEMEL, "index", "create", index], check=True, capture_output=True)
        subprocess.run([*GEMEL, "index", "add", index, str(texts)], check=True, capture_output=True)
        command = [*GEMEL, "serve", "--port", "0", "--index", f"notes={index}"]
        log = Path(folder) / "server.log"  # a file, because a full pipe would stop the server
        with log.open("w", encoding="utf-8") as out:
            server = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        try:
            yield _address(log, server)
        finally:
            server.terminate()
            server.wait(20)


def _address(log: Path, server: subprocess.Popen[bytes]) -> str:
    while server.poll() is None:
        result = re.search(r"http://127\.0\.0\.1:\d+", log.read_text(encoding="utf-8"))
        if result:
            return result[0]
        time.sleep(0.1)
    raise SystemExit(f"the server did not start: {log.read_text(encoding='utf-8')}")


def send_requests(address: str, seconds: float) -> None:
    """Send requests of different sizes, so that the metrics of the server have something to show."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        turn = next(TURNS)
        texts = [f"{text} {turn}" for text in sample_texts()[: 2 + turn % 23]]  # not cached
        body = json.dumps({"model": "all-MiniLM-L6-v2", "input": texts}).encode()
        request = Request(f"{address}/v1/embeddings", body, {"content-type": "application/json"})
        with urlopen(request) as answer:
            answer.read()


def fill(page: Page, shot: Shot, address: str) -> None:
    """Fill the tab with content."""
    if shot.tab == "search":
        page.wait_for_selector("#source option[value='=notes']", state="attached")
        page.fill("#query", "someone making music")
        page.wait_for_selector(".hit")
        if shot.size == WIDE:
            page.locator(".hit button.link").first.click()
            page.wait_for_selector(".hit .sentence")
    elif shot.tab == "server":
        send_requests(address, 50)
    else:
        page.click(f"#{shot.tab} [data-examples]")
        page.wait_for_selector(f"#{shot.tab} :is(.heat, .list, .map)")
    if shot.tab == "clusters":
        page.locator(".groups > li > button").nth(1).click()
        page.mouse.move(0, 0)


def take(browser: Browser, shot: Shot, address: str) -> None:
    """Write one picture."""
    size = {"width": shot.size[0], "height": shot.size[1]}
    context = browser.new_context(viewport=size, color_scheme=shot.scheme, reduced_motion="reduce")
    page = context.new_page()
    page.goto(f"{address}/#{shot.tab}")
    fill(page, shot, address)
    page.evaluate("scrollTo(0, 0)")
    if shot.tab in ("pairs", "clusters") or (shot.size == PHONE and shot.tab == "compare"):
        page.locator(f"#{shot.tab} [data-status]").evaluate("node => node.scrollIntoView()")
        page.evaluate("scrollBy(0, -60)")
    page.screenshot(path=FOLDER / f"{shot.name}.png", animations="disabled")
    context.close()


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with served() as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
        for shot in SHOTS:
            take(browser, shot, address)
        browser.close()


if __name__ == "__main__":
    main()
