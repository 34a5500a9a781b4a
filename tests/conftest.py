"""What all tests share, whichever ran before."""

import pytest

# Asserts in the contract of the index say what differed, as those of a test module do.
pytest.register_assert_rewrite("index_contract")


def pytest_configure(config: pytest.Config) -> None:
    """Once lance is loaded it warns of every fork; the tests that fork do not use it in the child."""
    config.addinivalue_line("filterwarnings", "ignore:lance is not fork-safe:UserWarning")
    config.addinivalue_line(
        "markers", "slow: starts a cluster of its own and kills parts of it; pytest -m slow"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Slow tests run only when they are asked for by the marker."""
    if "slow" in config.option.markexpr:
        return
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.skip(reason="slow: run it with -m slow"))
