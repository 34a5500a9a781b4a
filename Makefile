# On a fresh machine with Python 3.11, make and pip: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
TORCH := torch==2.13.0

.PHONY: demo test test-slow check shape coverage site release-check docs bench fuzz soak reproduce clean

.DEFAULT_GOAL := demo
SOURCES := pyproject.toml setup.py $(filter %.cpp %.h,$(wildcard src/gemel/*/native/* src/gemel/*/*/native/*))

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/core: $(SOURCES) | $(BIN)/python
	@echo "Installing gemel and what it needs into $(VENV) and compiling its C++ kernels; this can take some minutes"
	$(PIP) --editable .
	touch $@

# torch first and pinned: a version range in another package would download gigabytes of GPU libraries.
$(VENV)/test: $(SOURCES) | $(BIN)/python
	@echo "Installing $(TORCH)"
	$(PIP) $(TORCH)
	@echo "Installing gemel and what its tests need into $(VENV) and compiling its C++ kernels; this can take some minutes"
	$(PIP) --editable '.[test]'
	-$(BIN)/gemel models pull all-MiniLM-L6-v2  # tests that need it are skipped where it cannot be fetched
	touch $(VENV)/core $@

demo: $(VENV)/core
	$(BIN)/gemel demo

test: check
	$(BIN)/python -m pytest

# Slow tests: kills, a cluster of two nodes, an object store of several servers, long pages of the docs.
test-slow: $(VENV)/test
	@echo "Installing what the slow tests need"
	$(PIP) --editable '.[test-scale]'
	GEMEL_SLOW=1 GEMEL_SLOW_DOCS=1 GEMEL_TEST_KILLS=50 $(BIN)/python -m pytest -m slow
	GEMEL_SLOW=1 GEMEL_SLOW_DOCS=1 GEMEL_TEST_KILLS=50 $(BIN)/python -m pytest tests/index/test_crash.py tests/texts/test_encode_folder.py tests/project/test_docs_blocks.py tests/integrations/test_ray_cluster.py tests/index/test_s3.py tests/training/test_processes.py tests/integrations/test_*.py

check: $(VENV)/test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.ini tests

# Number of modules, imports, lengths of functions: printed and written into ARCHITECTURE.md.
shape: $(VENV)/core
	$(BIN)/python tools/shape.py --write

# Lines that the tests run; the minimum is in pyproject.toml.
coverage: $(VENV)/test
	$(PIP) coverage
	$(BIN)/coverage run -m pytest
	$(BIN)/coverage report

docs: $(VENV)/test
	$(BIN)/python tools/docs/generate.py
	$(BIN)/python tools/docs/landing.py

# The wheel and the source archive in clean environments, the core alone and with each extra.
release-check:
	$(PYTHON) release/check.py

# The site needs its generator only, in an environment of its own: neither gemel nor torch is installed for it.
# make site VERSIONS=folder adds this version to a folder with several.
SITE := .venv-site
$(SITE)/ready: tools/docs/requirements.txt
	test -x $(SITE)/bin/python || $(PYTHON) -m venv $(SITE)
	$(SITE)/bin/python -m pip install --quiet --disable-pip-version-check --requirement tools/docs/requirements.txt
	touch $@

site: $(SITE)/ready
	$(SITE)/bin/python tools/docs/site.py $(if $(VERSIONS),--versions $(VERSIONS))

bench: $(VENV)/core
	$(BIN)/python benchmarks/encode.py

# Damaged and hostile bytes for every reader: make fuzz MINUTES=10 [ONLY="http where"]. Without atheris (it has no wheel
# for some machines) a built-in loop is guided by line coverage; for the C++ kernels apt install clang libclang-rt-14-dev.
$(VENV)/fuzz: $(VENV)/test
	-$(PIP) atheris==3.0.0
	touch $@

MINUTES ?= 10
fuzz: $(VENV)/fuzz
	$(BIN)/python -m fuzz.run --minutes $(MINUTES) $(if $(ONLY),--only $(ONLY))

# A real server with good, greedy and bad clients, kills and restarts; all on 127.0.0.1.
soak: $(VENV)/test
	$(BIN)/python benchmarks/soak.py --minutes $(MINUTES)

# The paper's tables: make reproduce SCALE=small DATA=folder WEIGHTS=folder [GLOVE=file or folder]
SCALE ?= small
reproduce: $(VENV)/test
	@test -n "$(DATA)" && test -n "$(WEIGHTS)" || { echo "make reproduce needs DATA= (nli/, sts/, ...) and WEIGHTS= (tinybert-4L-312/); see reproduction/README.md"; exit 2; }
	$(PIP) --requirement reproduction/requirements.txt
	$(BIN)/python -m reproduction.run all --scale $(SCALE) --data $(DATA) --weights $(WEIGHTS) $(if $(GLOVE),--glove $(GLOVE))
	$(BIN)/python -m reproduction.render

clean:
	rm -rf $(VENV) $(SITE) build src/*.egg-info
	find src -name '*.so' -delete
