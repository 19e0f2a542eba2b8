# The front door of the repository: `make help` lists what can be done.

.DEFAULT_GOAL := help
.NOTPARALLEL:
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

CARGO ?= cargo
# Which environment the targets below work on; several can run side by side.
ENV ?= dev
export ENV

E2E := $(or $(CARGO_TARGET_DIR),target)/debug/capt-e2e
CACHE := $(or $(CAPT_CACHE_DIR),$(if $(XDG_CACHE_HOME),$(XDG_CACHE_HOME)/capt,$(HOME)/.cache/capt))
DENY_VERSION := 0.20.2
DENY := $(CACHE)/cargo-deny-$(DENY_VERSION)/bin/cargo-deny

##@ Try it

.PHONY: demo
demo: programs ## Start everything, make a cluster from docs/examples/local and show it coming up
	@$(E2E) demo

.PHONY: demo-delete
demo-delete: programs-quietly ## Delete that cluster, and show it going
	@$(E2E) demo --delete

.PHONY: up
up: programs ## Start a real management cluster, or whatever of it has died (PROVIDER=simulator: without Terraform)
	@$(E2E) up

.PHONY: status
status: programs-quietly ## Show what runs, in which version, how large, and whether it is ready
	@$(E2E) status

.PHONY: logs
logs: programs-quietly ## Show a component's log: make logs C=kube-apiserver (FOLLOW=1 to go on, LINES=50)
	@$(E2E) logs $(C) $(if $(FOLLOW),--follow) $(if $(LINES),--lines $(LINES))

.PHONY: kubeconfig
kubeconfig: programs-quietly ## Print the path of the administrator's kubeconfig: export KUBECONFIG=$(make -s kubeconfig)
	@$(E2E) kubeconfig

.PHONY: cloud
cloud: programs-quietly ## List what Terraform has made in the local cloud; an empty ledger means that nothing leaked
	@$(E2E) cloud list

.PHONY: requests
requests: programs-quietly ## Count the requests that the API server answered, by who asked and how
	@$(E2E) requests

.PHONY: down
down: programs-quietly ## End every process of the environment and forget its data (the logs stay)
	@$(E2E) down

##@ Develop

.PHONY: build
build: ## Build everything for release
	$(CARGO) build --workspace --release --locked

.PHONY: generate
generate: ## Write what is made from the code: crds/, and the chart's roles, schema and reference
	$(CARGO) run --quiet --package capt-generate

.PHONY: fmt
fmt: ## Format the code
	$(CARGO) fmt --all

.PHONY: lint
lint: $(DENY) ## Check format, lints and the dependency policy
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- --deny warnings
	$(DENY) --locked check bans licenses sources

.PHONY: advisories
advisories: $(DENY) ## Check the dependencies for known vulnerabilities (fetches the advisory database)
	$(DENY) --locked check advisories

##@ Test

.PHONY: test
test: lint test-generated test-unit test-e2e test-node ## Everything that a change has to pass

.PHONY: test-full
test-full: export PROPTEST_CASES = 5000
test-full: test ## The same, with twenty times as many cases per property

.PHONY: test-unit
test-unit: ## Unit and property tests; needs nothing but Rust
	$(CARGO) test --workspace --exclude capt-e2e --locked
	$(CARGO) test --package capt-e2e --lib --bins --locked

.PHONY: test-generated
test-generated: ## Fail when a generated file differs from the code
	$(CARGO) run --quiet --locked --package capt-generate -- --check

.PHONY: test-e2e
test-e2e: export ENV = test
# They wait for others most of the time, so more of them fit on a machine than it has cores.
test-e2e: export RUST_TEST_THREADS ?= 8
# An error here says itself what was waited for and what was there instead.
test-e2e: export RUST_BACKTRACE = 0
test-e2e: programs ## Tests on a real control plane of their own (T=name runs one file)
	@$(CARGO) test --package capt-e2e --locked --no-run
	@$(E2E) run -- $(CARGO) test --package capt-e2e --locked --no-fail-fast $(if $(T),--test $(T),--test '*')

.PHONY: test-chart
test-chart: export CAPT_IMAGES = $(CURDIR)/dist/test-images
test-chart: export RUST_BACKTRACE = 0
test-chart: programs ## The chart on a real node, with the programs just built as images (T=name runs one test); SKIPPED where there can be none (NODE=required: fails)
	@$(CARGO) test --package capt-e2e --locked --test node --no-run
	@if $(E2E) check-node; then \
	  BINARIES=$(dir $(E2E)) OUT="$$CAPT_IMAGES" images/build.sh && \
	  $(CARGO) test --package capt-e2e --locked --test node -- --ignored --nocapture --test-threads=1 $(T); \
	else \
	  printf '\nSKIPPED: this machine can have no node, for the reason above. The chart is NOT tested on one.\n\n' >&2; \
	  [ "$(NODE)" != required ]; \
	fi

.PHONY: test-node
test-node: T = a_user_installs
test-node: test-chart ## The first of those tests: a user installs, makes a cluster on real Terraform, and goes again

.PHONY: test-faults
test-faults: export RUST_BACKTRACE = 0
test-faults: programs ## Every fault at every write of every controller, half an hour (FAULTS="capt-endpoint kill-after 3" runs one)
	@$(CARGO) test --package capt-e2e --locked --test faults -- --ignored --nocapture no_fault_at_any_write

# Until there is a release to be compatible with, the commit before the chart's.
.PHONY: test-versions
test-versions: PREVIOUS ?= $(or $(shell git describe --tags --abbrev=0 2>/dev/null),4e3b8a6)
test-versions: OLD = $(abspath $(dir $(E2E))..)/previous
test-versions: programs ## Controllers of this tree beside those of PREVIOUS (a commit; the last release), and after them
	@rm -rf $(OLD)/tree && mkdir -p $(OLD)/tree && git archive $(PREVIOUS) | tar --extract --directory $(OLD)/tree
	@cd $(OLD)/tree && CARGO_TARGET_DIR=$(OLD)/target $(CARGO) build --locked --bins --workspace --exclude capt-e2e
	@CAPT_PREVIOUS=$(OLD)/target/debug $(CARGO) test --package capt-e2e --locked --test faults -- --ignored --nocapture two_versions

.PHONY: test-fleet
test-fleet: export FLEET ?= 200
test-fleet: programs ## Delete FLEET simulated clusters at the same time (200: 6 minutes), and 8 real ones
	@$(CARGO) test --package capt-e2e --locked --test fleet -- go_at_the_same_time --nocapture

.PHONY: bench
bench: ## What a cluster costs in time, requests, processor and memory, for ten at once and for BENCH (100)
	@$(CARGO) build --workspace --bins --release --locked
	@$(CARGO) test --package capt-e2e --release --locked --test fleet -- --ignored --nocapture what_a_cluster_costs

##@ Node

.PHONY: node-up
node-up: programs ## The same as `up` with a real node, where the controllers run as pods; needs root
	@$(E2E) up --node

.PHONY: install
install: programs images ## Install this tree's chart and images on that node by Helm, or upgrade them (VALUES=file)
	@$(E2E) install $(if $(VALUES),--values $(VALUES))

.PHONY: node-down
node-down: down ## Remove the node with everything that it made on this machine, and end the rest of the environment

##@ Chart

.PHONY: chart-check
chart-check: programs ## Render the chart in every way that its values allow; needs no control plane
	@CAPT_ENV=$(ENV) $(CARGO) test --package capt-e2e --locked --test chart -- flags:: golden:: helm:: render:: switches:: typos::

.PHONY: chart-golden
chart-golden: programs ## Write down what the chart renders now, for chart-check to compare with
	@CAPT_ENV=$(ENV) UPDATE_GOLDEN=1 $(CARGO) test --package capt-e2e --locked --test chart -- golden::

.PHONY: test-chart-static
test-chart-static: export T = chart
test-chart-static: test-e2e ## Everything about the chart that can be tested without a node

.PHONY: manifests
manifests: programs ## Pack the chart, and render it for kubectl and clusterctl, into dist/
	@tools=$$($(E2E) tools --chart | grep ^/ | paste -sd:) && PATH="$$tools:$$PATH" charts/manifests.sh dist

.PHONY: images
images: ## Build an image per program into dist/images (BASE=image REGISTRY=name TAG=tag)
	@CARGO="$(CARGO)" images/build.sh

.PHONY: sbom
sbom: ## List what is in each program, with licences, into dist/sbom
	@CARGO="$(CARGO)" images/sbom.sh dist/sbom

.PHONY: push-images
push-images: export PUSH = 1
push-images: images ## The same, and push them to REGISTRY

##@ Help

.PHONY: help
help: ## Show this
	@awk 'BEGIN {FS = ":.*## "; printf "CAPT: Cluster API provider for EKS, by Terraform\n"} \
	  /^##@/ {printf "\n%s\n", substr($$0, 5)} \
	  /^[a-z0-9-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: programs programs-quietly
programs:
	@$(CARGO) build --workspace --bins --locked
programs-quietly:
	@$(CARGO) build --workspace --bins --locked --quiet

$(DENY):
	$(CARGO) install cargo-deny --version $(DENY_VERSION) --locked --root $(CACHE)/cargo-deny-$(DENY_VERSION)
