"""Fuzz tests: damaged and hostile bytes for every reader of gemel. `make fuzz MINUTES=n` runs them.

A target is one reader with seeds and a rule for what may come out (`targets/`). `child.py` feeds one target in a
separate process, guided by coverage; `run.py` shares the minutes among the targets, watches the processes and writes
`results.json`. Inputs that once broke something are in `cases/` and are replayed by `tests/project/test_fuzz.py`.
"""
