# `make run` and `make test` are all it takes, from a fresh clone on: what is missing is installed.
# Nothing below needs more than Go, a shell, and the system's package manager; the client for Node.js, npm's registry too.

# Go's own installer leaves PATH alone.
export PATH := $(CURDIR)/bin:$(PATH):/usr/local/go/bin
# Go keeps its caches under HOME, which some build machines do not set.
export HOME := $(or $(HOME),$(CURDIR)/.cache)

# What TIMERD_* variables do is in `timerd help config`.
ARGS ?=
FUZZTIME ?= 30s
MINUTES ?= 2
SHAPE ?= standalone
VERSION ?=

# Tools are built from source at these versions, through the Go module proxy, into bin/.
GOLANGCI_LINT_VERSION := v2.15.0
GOVULNCHECK_VERSION := v1.8.0
GORELEASER_VERSION := v2.15.4
NFPM_VERSION := v2.45.0

LINT := $(CURDIR)/bin/golangci-lint run --allow-serial-runners

.DEFAULT_GOAL := help
.PHONY: help run build test test-all test-server quick lint vuln fuzz example-webhooks example-order-timeout example-settlement model torture bench bench-quick bench-build bench-test deploy-test release-check dist tracing-test api-test console-test screenshots client-typescript client-test-typescript deps clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 32

run: ## a timerd with Redis and NATS of its own, printing each firing (ARGS: more arguments)
	@scripts/deps.sh redis
	@$(MAKE) --no-print-directory build
	bin/timerd dev $(ARGS)

build: ## bin/timerd (VERSION: what `timerd version` says)
	@scripts/deps.sh go
	go build -v -trimpath -ldflags "$(if $(VERSION),-X main.version=$(VERSION))" -o bin/timerd ./cmd/timerd # -v: progress

test: ## vet, every package's tests and the core of the whole systems, with the race detector
	@scripts/deps.sh go redis cc
	@scripts/test.sh core

test-all: deps ## everything that `make test` leaves out: linters, clusters, faults, browser, chart, clients, examples
	@GOVULNCHECK_VERSION=$(GOVULNCHECK_VERSION) scripts/test.sh rest

test-server: ## what talks to Redis, for another server: TIMERD_TEST_REDIS_SERVER=/path/to/valkey-server make test-server
	@scripts/deps.sh go redis cc
	@scripts/test.sh server

quick: ## for a change under way, about a minute: the tests of packages that have changed, without whole systems
	@scripts/deps.sh go redis cc
	@scripts/test.sh quick

lint: ## golangci-lint alone, of all modules
	@scripts/deps.sh go
	@scripts/tool.sh github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT_VERSION)
	@failed=; for m in . bench deploy/test examples/tracing internal/console/browsertest internal/console/apitest; do \
		echo "lint $$m"; (cd $$m && $(LINT) ./...) || failed="$$failed $$m"; \
	done; test -z "$$failed" || { echo "findings in:$$failed"; exit 1; }

vuln: ## known vulnerabilities that the code reaches; needs vuln.go.dev
	@scripts/deps.sh go
	@scripts/tool.sh golang.org/x/vuln/cmd/govulncheck@$(GOVULNCHECK_VERSION)
	bin/govulncheck ./...

fuzz: ## each fuzz target for FUZZTIME (30s)
	@scripts/deps.sh go
	@FUZZTIME=$(FUZZTIME) scripts/fuzz.sh

example-webhooks: ## webhooks to flaky merchants, on a timerd of its own (ARGS: more arguments)
	@scripts/deps.sh redis
	@$(MAKE) --no-print-directory build
	go build -trimpath -o bin/example-webhooks ./examples/webhooks
	bin/example-webhooks -timerd bin/timerd $(ARGS)

example-order-timeout: ## orders that are cancelled unless they are paid in time, likewise
	@scripts/deps.sh redis
	@$(MAKE) --no-print-directory build
	go build -trimpath -o bin/example-order-timeout ./examples/order-timeout
	bin/example-order-timeout -timerd bin/timerd $(ARGS)

example-settlement: ## a nightly settlement and a statement at the month's end in three time zones, likewise
	@scripts/deps.sh redis
	@$(MAKE) --no-print-directory build
	go build -trimpath -o bin/example-settlement ./examples/settlement
	bin/example-settlement -timerd bin/timerd $(ARGS)

bench: bench-build ## timerd and its peers measured, in hours; fills docs/inside/benchmarks.md (ARGS: see bin/bench run --help)
	@bench/deps.sh rabbitmq postgresql bullmq
	@status=0; bin/bench run --out .cache/bench/results.json $(ARGS) || status=$$?; \
	  bin/bench report .cache/bench/results.json --md docs/inside/benchmarks.md && exit $$status

bench-quick: bench-build ## timerd against keyspace events and a poller, in under a minute, for a change under way
	@bin/bench run --profile quick --tables --out .cache/bench/quick.json $(ARGS)

bench-build:
	@scripts/deps.sh redis
	@$(MAKE) --no-print-directory build
	cd bench && go build -trimpath -o ../bin/bench .

bench-test: ## vet and test the benchmark program, a module of its own
	@scripts/deps.sh redis node
	@bench/deps.sh bullmq
	cd bench && go mod tidy -diff && go vet -race ./... && go test -race -vet=off -timeout 20m ./...

api-test: ## vet and run what checks the console's answers against its OpenAPI document, a module of its own
	@scripts/deps.sh go redis cc
	cd internal/console/apitest && go mod tidy -diff && go vet -race ./... && go test -race -vet=off -timeout 20m ./...

deploy-test: ## vet and run what checks docker-compose.yml, the chart, the rules and the dashboard: a module of its own
	@scripts/deps.sh go redis redis_cli promtool dpkg systemd
	@scripts/tool.sh github.com/goreleaser/nfpm/v2/cmd/nfpm@$(NFPM_VERSION)
	cd deploy/test && go mod tidy -diff && GOFLAGS= go vet ./... && GOFLAGS= go test -vet=off -timeout 20m ./... # without the race detector, which helm is slow to compile with

release-check: ## what goreleaser says of .goreleaser.yaml
	@scripts/deps.sh go
	@scripts/tool.sh github.com/goreleaser/goreleaser/v2@$(GORELEASER_VERSION)
	bin/goreleaser check

dist: ## archives and packages for Linux and macOS, in dist/ (VERSION: what they say; TARGETS: linux/amd64 and so on)
	@scripts/deps.sh go
	@scripts/tool.sh github.com/goreleaser/nfpm/v2/cmd/nfpm@$(NFPM_VERSION)
	@scripts/dist.sh dist "$(or $(VERSION),$(shell git describe --tags --always --dirty))" $(or $(TARGETS),linux/amd64 linux/arm64 darwin/amd64 darwin/arm64)

tracing-test: ## vet and test the example with OpenTelemetry, a module of its own
	@scripts/deps.sh redis
	cd examples/tracing && go mod tidy -diff && go vet -race ./... && go test -race -vet=off -timeout 20m ./...

console-test: ## vet and run the tests of the console in a real browser, a module of its own
	@scripts/deps.sh go redis cc chromium
	cd internal/console/browsertest && go mod tidy -diff && go vet -race ./... && go test -race -vet=off -timeout 10m -v ./...

screenshots: ## take docs/console/*.png anew, in a real browser
	@scripts/deps.sh go redis cc chromium
	cd internal/console/browsertest && go test -run TestPages -timeout 15m ./... -update

client-typescript: ## pack the client for Node.js into bin/, for npm install
	@scripts/deps.sh node
	@scripts/client-typescript.sh pack

client-test-typescript: ## test the client for Node.js against a timerd of its own
	@scripts/deps.sh redis node
	@$(MAKE) --no-print-directory build
	@scripts/client-typescript.sh test

model: ## check the model of the schedule exhaustively, see docs/model (ARGS: configurations, told step by step)
	@scripts/deps.sh cc
	@command -v spin >/dev/null || { apt-get update -q && apt-get install -y -q spin; } || \
	  { echo "model: install spin by hand" >&2; exit 1; }
	@docs/model/run.sh $(ARGS)

torture: ## timerd under random faults, and a verdict, see docs/inside/torture.md (SEED, MINUTES, SHAPE; ARGS: more arguments)
	@scripts/deps.sh go redis
	go build -trimpath -o bin/torture ./torture
	bin/torture run $(if $(SEED),-seed $(SEED)) -minutes $(MINUTES) -shape $(SHAPE) $(ARGS)

deps: ## what all tests need, and what `make test` does not: Chromium, promtool, Node.js, PHP, …
	@scripts/deps.sh go redis redis_cli cc promtool chromium node python_redis php dpkg systemd openssl

clean: ## remove what was built
	@if [ -d .cache ]; then chmod -R u+w .cache; fi
	rm -rf bin dist .cache bench/bullmq/node_modules internal/console/browsertest/node_modules $(addprefix clients/typescript/,node_modules dist build)
