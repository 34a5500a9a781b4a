"""The blocks of a page that need one package, run by the tests of that package."""

import re
from pathlib import Path

from tests.project.test_docs_blocks import run_page

PAGES = Path(__file__).parents[2] / "docs" / "integrations"


def run_blocks(page, package, folder, small_model):
    """All blocks of the page that run everywhere, and those that need `package`."""
    text = (PAGES / page).read_text(encoding="utf-8")
    content, count = re.subn(rf"<!-- not run: needs {package};.* -->\n", "", text)
    assert count, f"{page} has no block that needs {package}"
    (folder / page).write_text(content, encoding="utf-8")
    done = run_page(folder / page, folder, small_model)
    assert done.returncode == 0, done.stderr
