"""What all tests share, in any order."""

import os

import pytest

os.environ["GEMEL_CONFIG"] = "none"  # the user who runs the tests may have settings
# Tests count what engines compute and compare folders; tests/encoder/test_canary.py turns canaries on.
os.environ["GEMEL_CANARIES"] = "0"

# Failed asserts in the contract of the index show what differed, as in a test module.
pytest.register_assert_rewrite("index_contract")


def pytest_configure(config: pytest.Config) -> None:
    """Warnings that tests may cause."""
    # Once lance is loaded it warns of every fork; the tests that fork do not use it in the child.
    config.addinivalue_line("filterwarnings", "ignore:lance is not fork-safe:UserWarning")
    # Tests run in their own folder and name models in it; test_sources.py tests the warning.
    config.addinivalue_line(
        "filterwarnings", "ignore:.* is read from the folder of that name here:UserWarning"
    )
    # The tests also run where no kernel was compiled; test_native_engine.py tests the warning.
    config.addinivalue_line(
        "filterwarnings", "ignore:this installation of gemel has no compiled kernel:UserWarning"
    )
