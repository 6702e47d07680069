# Everything a developer types. `make dev` once, then `make build test` after every change.
PYTHON ?= python3
BIN := .venv/bin
STRESSED := $(addprefix moegg/kernels/csrc/,store.c store_io.c store_open.c policy.c slots.c diskfile.c pool.c)

# a private environment with the package in editable mode; setuptools, cython and numpy inside it make `build` fast
dev:
	$(PYTHON) -m venv .venv
	$(BIN)/pip install "setuptools>=77" "cython>=3.1" "numpy>=2" build ruff
	$(BIN)/pip install --no-build-isolation -e '.[test]'

# recompile what changed, in place
build:
	$(BIN)/python setup.py build_ext --inplace -j 2

# bounds checks in Cython, asserts in C
debug:
	MOEGG_DEBUG=1 $(BIN)/python setup.py build_ext --inplace --force -j 2

test:
	$(BIN)/python -m pytest -m "not slow"

# packaging, long fuzzing and everything else that takes minutes
test-slow:
	$(BIN)/python -m pytest -m slow

# the kernel and engine tests at the lowest CPU level
test-generic:
	MOEGG_CPU=generic $(BIN)/python -m pytest tests/kernels tests/engine

# the expert store under a race detector and under address checks
sanitize:
	mkdir -p build
	for san in thread address,undefined; do \
		$(CC) -std=c11 -D_GNU_SOURCE -O1 -g -fsanitize=$$san -Imoegg/kernels/csrc tests/io/store_stress.c $(STRESSED) \
			-o build/store_stress -lm -lpthread && build/store_stress build/store_stress.tmp || exit 1; done

# mutated GGUF files and checkpoints for ten minutes; what goes wrong is kept in build/fuzz
fuzz:
	mkdir -p build/fuzz && $(BIN)/python -m tests.converters.fuzz 10 build/fuzz

lint:
	$(BIN)/ruff check .

# build/annotate/*.html: yellow lines inside a nogil loop are a review comment
annotate:
	mkdir -p build/annotate
	for f in moegg/kernels/_core.pyx moegg/engine/forward.pyx; do \
		$(BIN)/cython -3 -a -o build/annotate/$$(basename $$f .pyx).c $$f; done

wheel:
	$(BIN)/python -m build

# what a change must pass: both README commands from nothing, then the suite against the wheel
ci:
	.ci/run

clean:
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache
	find moegg formats converters tests -name __pycache__ -prune -exec rm -rf {} +
	find moegg -name '*.so' -delete

.PHONY: dev build debug test test-slow test-generic sanitize fuzz lint annotate wheel ci clean
