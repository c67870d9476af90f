# giveway's commands. Each target installs what it needs first; nothing has to be done by hand.
.DEFAULT_GOAL := help
.PHONY: help need build demo test test-all test-kernels kernels bench lint deb static clean

SUDO := $(if $(filter 0,$(shell id -u)),,sudo)
PROFILE := release
BIN := target/$(PROFILE)

help: ## What make can do
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

need: ## Install what is missing (Debian's packages; Rust where there is none)
	@packaging/need

build: need ## Build giveway and giveway-lab
	cargo build --release

demo: build ## Eight stations on one access point, packets with deadlines, timers under load: with and without giveway (5 minutes)
	@$(SUDO) packaging/demo

test: need ## The tests that CI runs: unit, property, simulation, the daemon in the kernel, a short form of some scenarios (half an hour on two cores)
	@packaging/check

test-all: need ## And a short form of every scenario, and some fuzzing (about an hour)
	@packaging/check all

test-kernels: build ## The daemon's kernel tests on Debian 13's own kernel and the newest 7.x, in emulated guests
	@packaging/test-kernels

kernels: build ## Which capability works on which kernel, tried on this machine and in emulated guests: a table in out/kernels
	$(SUDO) $(BIN)/giveway-lab kernels

bench: build ## The daemon's cost, measured beside ss; its result becomes bench/results/monitor-cost
	$(SUDO) $(BIN)/giveway-lab run monitor-cost --out out/monitor-cost
	$(BIN)/giveway-lab results add out/monitor-cost

lint: need ## Formatting and lints
	cargo fmt --check
	cargo clippy --workspace --all-targets -- -D warnings

deb: ## A Debian package of the committed version, checked by lintian (10 minutes); ARCH=arm64 for that, on amd64
	@packaging/need deb
	@packaging/deb $(ARCH)

static: need ## One file that needs no library: target/static
	@packaging/static

clean: ## Remove what was built
	cargo clean
	$(SUDO) rm -rf out
