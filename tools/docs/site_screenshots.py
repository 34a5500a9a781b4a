"""Take the pictures of the site, docs/pictures/site-*.png: `make site`, then `python tools/docs/site_screenshots.py`.

Not part of `generate.py`, because it needs a Chromium.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[2]
SITE = ROOT / "build" / "site"
FOLDER = ROOT / "docs" / "pictures"
SIZES = {"desktop": (1280, 800), "phone": (390, 844)}
ANIMATION = 9_000  # milliseconds, until the terminal of the first page is at rest


def main() -> None:
    if not (SITE / "index.html").exists():
        sys.exit(f"{SITE} has no site: make site")
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
        for name, (width, height) in SIZES.items():
            for scheme in ("light", "dark"):
                page = browser.new_page(
                    viewport={"width": width, "height": height},
                    color_scheme=scheme,
                    is_mobile=name == "phone",
                )
                page.goto(f"file://{SITE}/index.html")
                page.wait_for_timeout(ANIMATION)
                page.screenshot(path=FOLDER / f"site-{name}-{scheme}.png")
                page.close()
        browser.close()
    if shutil.which("pngquant"):  # a third of the size
        pictures = sorted(FOLDER.glob("site-*.png"))
        subprocess.run(["pngquant", "--force", "--skip-if-larger", "--ext", ".png", *pictures], check=False)


if __name__ == "__main__":
    main()
