"""ARCHITECTURE.md names files that exist, and each walkthrough needs at most ten of them."""

import re

import pytest
from tools.shape import PACKAGE, PAGE, ROOT

TEXT = PAGE.read_text(encoding="utf-8")
WALKS = re.findall(r"^## (One .*?)\n(.*?)(?=^## )", TEXT, flags=re.MULTILINE | re.DOTALL)


def test_there_are_four_walkthroughs():
    assert len(WALKS) == 4


@pytest.mark.parametrize("walk", [body for _, body in WALKS], ids=[title for title, _ in WALKS])
def test_a_walkthrough_names_at_most_ten_files(walk):
    files = {name for name in re.findall(r"`([\w/]+\.py)", walk) if not name.startswith("tools/")}
    assert 0 < len(files) <= 10


def test_every_file_that_is_named_exists():
    named = set(re.findall(r"`((?:[\w-]+/)*[\w-]+\.(?:py|md)|(?:[\w-]+/)+)", TEXT))
    missing = [name for name in named if not any((base / name).exists() for base in (ROOT, PACKAGE))]
    assert not missing, f"ARCHITECTURE.md names what is not there: {sorted(missing)}"
