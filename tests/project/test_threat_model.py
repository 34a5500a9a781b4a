"""The page on threats names tests that exist."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "explanation" / "threat-model.md"


def named_tests():
    """(file, test or None) of every test that the page names; a test without a file is of the one before it."""
    file = ""
    for word in re.findall(r"`([^`]+)`", PAGE.read_text(encoding="utf-8")):
        if result := re.fullmatch(r"((?:\w+/)?test_\w+)(?:: (\w+))?", word):
            file = result[1]
            yield file, result[2]
        elif file and re.fullmatch(r"[a-z]+(_[a-z]+){3,}", word):
            yield file, word


def test_every_test_that_the_page_names_is_there():
    named = list(named_tests())
    assert len(named) > 40
    missing = []
    for file, test in named:
        path = TESTS / f"{file}.py"
        if not path.is_file() or (test and f"def test_{test}(" not in path.read_text(encoding="utf-8")):
            missing.append(f"{file}: {test}")
    assert not missing
