SHELL := /bin/bash
GO ?= go
BIN := bin
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
BUILDINFO := github.com/nyaladb/nyala/internal/daemon/buildinfo
# The commit's own date: a build of the same commit is the same to the byte.
LDFLAGS := -s -w -X $(BUILDINFO).version=$(VERSION) \
	-X $(BUILDINFO).commit=$(shell git rev-parse --short HEAD 2>/dev/null) \
	-X $(BUILDINFO).date=$(shell TZ=UTC git log -1 --date=format-local:%Y-%m-%dT%H:%M:%SZ --format=%cd 2>/dev/null)
TOOL := $(GO) tool -modfile=tools/go.mod
# How long one fuzz target runs with "make fuzz".
FUZZTIME ?= 10s
BENCH ?= .
# Of the benchmarks on real processes: how many tablets, and further flags (go run ./bench/NAME -h lists them).
TABLETS ?= 2000
BENCHFLAGS ?=
# How long each of the trials lets faults follow one another.
CHAOS ?= 2m
# Where the binaries of the systems that we compare with are.
PEERS_DIR ?=
# The file with the flights of 2013, all 336,776 of them (nycflights13); without it the trials use the month in examples/flights.
FLIGHTS ?=

.DEFAULT_GOAL := help
.PHONY: help build test race lint fmt generate verify fuzz bench bench-acceptor bench-follower bench-failover bench-writers bench-loadgen bench-puts bench-scan bench-idle bench-start bench-beats trials sim soak demo clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## nyala, nyala-master and nyala-tserver into bin/
	@mkdir -p $(BIN)
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN)/nyala ./cmd/nyala
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN)/nyala-master ./cmd/master
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN)/nyala-tserver ./cmd/tserver

test: build ## all tests, with the race detector and the costly invariants on; then short simulations, and the planted mistakes
	( NYALA_BIN=$(CURDIR)/$(BIN) $(GO) test -race -tags invariants -json -timeout 12m ./...; \
	  $(GO) test -json -run '^TestSim$$' ./internal/consensus -args -sim.from=301 -sim.seeds=2500 -sim.steps=500; \
	  $(GO) test -tags planted -json -run Planted ./internal/consensus ./internal/tablet ) | $(GO) run ./test/report

race: ## the tests under the race detector, ten times each, without the end-to-end ones
	$(GO) test -race -tags invariants -count=10 $$($(GO) list ./... | grep -v /test/)

lint: ## vet for Linux and Darwin, golangci-lint, generated code and go.mod fresh
	$(GO) vet ./...
	GOOS=darwin $(GO) vet ./...
	$(TOOL) golangci-lint run
	$(MAKE) --no-print-directory verify

fmt: ## format all Go files
	$(TOOL) golangci-lint fmt

generate: ## rebuild the Go made from api/*.proto, and docs/flags.md and docs/metrics.md made from the Go
	$(TOOL) buf lint
	$(TOOL) buf generate
	$(GO) test ./test/reference -count=1 -update

verify: ## fails where generated code, go.mod or go.sum isn't what its sources give
	@./test/verify.sh

fuzz: ## each fuzz target for FUZZTIME
	@for pkg in $$($(GO) list ./...); do \
	  for f in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz'); do \
	    echo "== $$pkg $$f"; $(GO) test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) $$pkg || exit 1; \
	  done; \
	done

bench: ## the benchmarks whose name matches BENCH
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem ./...

bench-acceptor: build ## connections a second and the slowest to connect; BENCHFLAGS="-kudu FOLDER" for Kudu's beside it
	$(GO) run ./bench/acceptor $(BENCHFLAGS)

bench-follower: build ## single-row writes through a follower beside those through the leader
	$(GO) run ./bench/follower $(BENCHFLAGS)

bench-failover: build ## how long writes fail after a kill -9 of a leader, and of a server that leads 500 tablets
	$(GO) run ./bench/failover $(BENCHFLAGS)

bench-writers: build ## 1 to 64 closed-loop writers: messages and CPU per committed write
	$(GO) run ./bench/writers $(BENCHFLAGS)

bench-loadgen: build ## two million rows by perf loadgen: rows per second and per CPU-second; Kudu's beside it with PEERS_DIR
	$(GO) run ./bench/loadgen $(if $(PEERS_DIR),-kudu "$(PEERS_DIR)/kudu/kudu-binary-1.18.1-linux-x86_64") $(BENCHFLAGS)

bench-puts: build ## 64 clients that write single rows; etcd's puts beside it with PEERS_DIR
	$(GO) run ./bench/puts $(if $(PEERS_DIR),-etcd "$(PEERS_DIR)/bin/etcd" -etcd_clients "$(PEERS_DIR)/bin/etcdbench") $(BENCHFLAGS)

bench-scan: build ## perf table_scan of two million rows; Kudu's beside it with PEERS_DIR
	$(GO) run ./bench/scan $(if $(PEERS_DIR),-kudu "$(PEERS_DIR)/kudu/kudu-binary-1.18.1-linux-x86_64") $(BENCHFLAGS)

bench-idle: build ## what TABLETS tablets cost that nobody reads or writes
	$(GO) run ./bench/idle -tablets $(TABLETS) $(BENCHFLAGS)

bench-beats: build ## how late beats and heartbeats are while the cores are full
	$(GO) run ./bench/beats $(BENCHFLAGS)

bench-start: build ## from the start of a server with 1,500 replicas until it is ready
	$(GO) run ./bench/start $(BENCHFLAGS)

.PHONY: bench-peers
bench-peers: ## what the others cost on this machine: etcd, ovsdb and Kudu, whose binaries are in PEERS_DIR
	$(GO) run ./bench/peers -peers_dir "$(PEERS_DIR)" -tablets $(TABLETS) $(BENCHFLAGS)

trials: build ## the cases of docs/trials.md, with the year of FLIGHTS; then faults, for CHAOS each, and whether what clients saw was right
	NYALA_BIN=$(CURDIR)/$(BIN) NYALA_TRIALS=1 NYALA_FLIGHTS=$(if $(FLIGHTS),$(abspath $(FLIGHTS))) $(GO) test -count=1 -timeout 30m ./test/e2e
	NYALA_BIN=$(CURDIR)/$(BIN) NYALA_CHAOS=$(CHAOS) $(GO) test -count=1 -timeout 24h -v ./test/chaos

sim: ## simulated clusters without end, from new seeds; a seed that fails is printed with the command that runs it again
	from=$$(date +%s)000; \
	while $(GO) test -count=1 -timeout 0 -v -run '^TestSim$$' ./internal/consensus -args -sim.from=$$from -sim.seeds=1000; do from=$$((from+1000)); done; exit 1

soak: build ## the trials again and again, until one fails
	while NYALA_BIN=$(CURDIR)/$(BIN) NYALA_CHAOS=$(CHAOS) $(GO) test -count=1 -timeout 24h ./test/chaos; do :; done; exit 1

demo: build ## a cluster, real flights, a killed server, and every answer checked
	$(BIN)/nyala demo

clean: ## remove what was built
	rm -rf $(BIN)
