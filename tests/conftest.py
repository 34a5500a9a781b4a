"""Asserts in the contract of the index say what differed, as those of a test module do."""

import pytest

pytest.register_assert_rewrite("index_contract")
