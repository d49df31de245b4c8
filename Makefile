# What a developer and the CI run. `make test` and `make lint` need nothing but Go, a C compiler (for the race detector) and,
# where redis-server is missing, apt-get.
SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := build

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
# Developer tools have a module of their own, so that they pin nothing of the product.
TOOL := go tool -modfile=.ci/tools.mod
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)
FUZZ ?= 2000x
# Where property tests begin to draw; `make unit SEED=0` draws other cases each time. A CI run must be the same twice.
SEED ?= 1

.PHONY: build test unit e2e fuzz lint fmt bench generate needs clean

build: ## bin/annona, static
	CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=$(VERSION)" -o bin/annona .

test: needs ## everything: vet, unit tests and end to end with the race detector, a moment of every fuzz target
	go vet ./...
	$(MAKE) --no-print-directory unit e2e fuzz

unit:
	drawn=$$(go list -test -f '{{range .Deps}}{{if eq . "pgregory.net/rapid"}}{{$$.ImportPath}}{{end}}{{end}}' ./... | sed -n 's/\.test$$//p' | grep -v '/e2e'); \
	go test -race -timeout 10m $$(go list ./... | grep -v '/e2e' | grep -vxF "$$drawn"); \
	go test -race -timeout 15m $$drawn -rapid.seed=$(SEED)

# On their own, for they start real processes and measure what these do.
e2e:
	go test -race -timeout 15m -p 1 ./e2e/...

# A count and no time: the same work on a busy machine, and no race with a deadline (golang/go#75804, mended in Go 1.27). It is
# some 1 to 3 s a target. Minimizing is cut short: by default it may take a minute for each input.
fuzz:
	go test -list '^Fuzz' ./... | awk '/^Fuzz/ {n[++i] = $$1} /^ok/ {for (; i > 0; i--) print $$2, n[i]}' | \
	while read -r package target; do \
		echo "fuzz $$package $$target"; \
		go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZ) -fuzzminimizetime 10x "$$package"; \
	done

needs:
	command -v redis-server >/dev/null || { $(SUDO) apt-get update && $(SUDO) apt-get install -y --no-install-recommends redis-server; }
	command -v gcc >/dev/null || { $(SUDO) apt-get update && $(SUDO) apt-get install -y --no-install-recommends gcc libc6-dev; }

lint: ## every linter that .golangci.yml keeps, and a go.mod that is in order
	$(TOOL) golangci-lint run ./...
	go mod tidy -diff

fmt:
	$(TOOL) golangci-lint fmt ./...

bench:
	go test -run '^$$' -bench . -benchmem ./...

generate: ## the protobuf code
	mkdir -p bin
	go build -modfile=.ci/tools.mod -o bin/ github.com/bufbuild/buf/cmd/buf google.golang.org/protobuf/cmd/protoc-gen-go
	cd shared/lease && PATH="$(CURDIR)/bin:$$PATH" buf lint && PATH="$(CURDIR)/bin:$$PATH" buf generate
	cd allocator/ledger && PATH="$(CURDIR)/bin:$$PATH" buf generate --template ../../shared/lease/buf.gen.yaml

clean:
	rm -rf bin
