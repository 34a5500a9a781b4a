"""What all tests share, whichever ran before."""

import os

import pytest

os.environ["GEMEL_CONFIG"] = "none"  # whoever runs the tests may have settings of their own

# Asserts in the contract of the index say what differed, as those of a test module do.
pytest.register_assert_rewrite("index_contract")


def pytest_configure(config: pytest.Config) -> None:
    """Warnings that tests may cause."""
    # Once lance is loaded it warns of every fork; the tests that fork do not use it in the child.
    config.addinivalue_line("filterwarnings", "ignore:lance is not fork-safe:UserWarning")
    # Tests stand in a folder of their own and name models of it; test_sources.py looks at the warning itself.
    config.addinivalue_line(
        "filterwarnings", "ignore:.* is read from the folder of that name here:UserWarning"
    )
