# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
# Every target does its own set-up, pinned, once, into .cache/ (set-up scripts: scripts/setup).

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

GO ?= go
MODULE := github.com/conch-serving/conch
PROGRAMS := conch=sidecar conch-policies=plugins tritonctl=tritonctl conch-demo=demo conch-bench=bench

# NVML's header deprecates what its Go binding binds.
export CGO_CFLAGS = -O2 -g -Wno-deprecated-declarations

# The server that end-to-end tests, TRITON=real and the live benchmark run; TRITONSERVER=/path takes your own.
TRITONSERVER ?=
export TRITONSERVER
TRITON_HOME := $(CURDIR)/.cache/$(if $(TRITONSERVER),own,triton)
export CONCH_TRITONSERVER = $(or $(TRITONSERVER),$(TRITON_HOME)/tritonserver)
export CONCH_PYTHON = $(TRITON_HOME)/venv/bin/python
export CONCH_GRAPHS = $(TRITON_HOME)/models
export CONCH_CLIENT_PYTHON = $(CURDIR)/.cache/clients/venv/bin/python
export CONCH_GRPC_PYTHON = $(CURDIR)/.cache/protoc/bin/python
export CONCH_PERF_ANALYZER = $(CURDIR)/.cache/clients/perf_analyzer
export CONCH_BIN = $(CURDIR)/bin
# A program with the race detector sleeps for a second before it ends, for reports of threads that still run. Tests that leave goroutines fail.
export GORACE = atexit_sleep_ms=50

.PHONY: help
help: ## this list
	@printf 'Conch: make TARGET\n\n'
	@sed -nE 's/^([a-z][a-z0-9-]*):[^#]*## (.*)$$/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18
	@printf '\nVariables: TRITON=real (demo), DEMO_SECONDS=n (demo), TRITONSERVER=/path (your own Triton), BENCH="$(BENCH)" (bench)\n'

.PHONY: demo
demo: ## Triton's batching against Conch on four emulated GPUs, then a Conch to try (TRITON=real: real tritonservers; DEMO_RESULTS=results keeps the figures that pages cite)
	@$(MAKE) build PROGRAMS="conch=sidecar conch-policies=plugins tritonctl=tritonctl conch-demo=demo"
	@if [ "$${TRITON:-}" = real ]; then $(MAKE) triton; fi
	@exec bin/conch-demo --triton="$${TRITON:-embedded}" --seconds="$${DEMO_SECONDS:-0}" --results="$${DEMO_RESULTS:-}"

.PHONY: build
build: ## the programs, into bin/
	@mkdir -p bin
	@started=$$SECONDS; [ -d "$$($(GO) env GOMODCACHE)/cache/download/google.golang.org" ] || echo '-- fetching Go modules' >&2; \
	$(GO) mod download; \
	for p in $(PROGRAMS); do \
	  dir=$${p#*=}; [ -d "$$dir" ] || continue; \
	  echo "-- building bin/$${p%=*}" >&2; $(GO) build -trimpath -o "bin/$${p%=*}" "./$$dir"; \
	done; echo "-- built in $$((SECONDS - started)) s" >&2

# Every push runs `test`, every night runs `test-all`. A new package needs nothing here: its tests are unit tests unless they lie below e2e.
# What is too long for every push asks testing.Short(). Tests of servers mostly wait, so two groups run at the same
# time. Unit tests, which keep the processors busy, come last: Triton's python processes crash at their start, now and then, on a busy machine.
.PHONY: test
test: ## what CI runs at every push: vet, unit, property and golden tests; conformance and end to end on a real tritonserver
	@$(MAKE) -j2 $(SET_UP)
	@$(MAKE) -j2 conformance e2e unit SHORT=-short
	@$(MAKE) console

# Figures come last: between two releases they are older than the code, and nothing else is to be skipped for that.
.PHONY: test-all
test-all: ## what CI runs every night: the same with -race everywhere, conformance of every target, h2spec, and fuzzing (FUZZ_SECONDS=60 each)
	@$(MAKE) -j2 $(SET_UP)
	@$(MAKE) -j2 unit conformance ONE_GOROUTINE=
	@$(MAKE) e2e E2E_RACE='$$(RACE)'
	@CONCH_PICTURES=$(CURDIR)/.cache/pictures $(MAKE) console
	@$(MAKE) h2spec
	@$(MAKE) faults
	@$(MAKE) deploy
	@$(MAKE) fuzz FUZZ_SECONDS=$(if $(filter command line environment,$(origin FUZZ_SECONDS)),$(FUZZ_SECONDS),60)
	@$(MAKE) figures

# What tests of both kinds need comes first: unit tests skip what needs a server where none was set up.
SET_UP = triton clients browser
SKIP_WITHOUT_TRITON = for v in CONCH_TRITONSERVER CONCH_PYTHON; do \
	[ -e "$${!v}" ] || { echo "-- $$v: nothing is set up there (make triton); tests that need it are skipped" >&2; unset $$v; }; done

GO_TEST = $(GO) test $(SHORT) -vet=all -timeout 15m

# Packages that start no goroutine and share nothing: the race detector finds nothing in them and makes them 14 times slower.
# internal/depcheck holds them to it. `make test-all` runs them with the detector all the same, for those who call them at the same time.
ONE_GOROUTINE ?= sidecar/dispatch/queue sidecar/dispatch/queue/adaptive sidecar/dispatch/queue/latency sidecar/dispatch/queue/queuetest \
	sidecar/observe/curve sidecar/observe/learning sidecar/plan sidecar/advice estimator estimator/calibrate estimator/kernel estimator/lower estimator/regress \
	tritonctl/cmd sidecar/sim sidecar/sim/advise sidecar/sim/triton sidecar/sim/reference sidecar/sim/scenario sidecar/sim/workload
WITHOUT_RACE = $(addprefix $(MODULE)/,$(ONE_GOROUTINE))

# The race detector does not start within the limits of a policy: tests of those run without it.
.PHONY: unit
unit: build race .cache/protoc.ready ## vet, unit, property and golden tests
	@echo "-- vet, unit, property and golden tests$(RACE_SAYS)" >&2
	@$(SKIP_WITHOUT_TRITON); \
	$(if $(ONE_GOROUTINE),$(GO_TEST) $(WITHOUT_RACE);) \
	$(GO_TEST) -run 'Confined|Replaced' ./sidecar/policyhost; \
	$(GO_TEST) $(RACE) $$($(GO) list ./... | grep -vE '^$(MODULE)/e2e(/|$$)' | grep -vxF "$$(printf '%s\n' none $(WITHOUT_RACE))")

.PHONY: conformance
conformance: build triton race ## the conformance suite: a real tritonserver, minitriton, Conch
	@echo "-- conformance on $$CONCH_TRITONSERVER$(RACE_SAYS)" >&2
	@$(GO_TEST) $(RACE) -count=1 ./e2e/conformance

# What is tested lies in other processes: the race detector, which would see the test's own goroutines, is for `make test-all`.
.PHONY: e2e
e2e: build triton clients race ## end-to-end tests on a real tritonserver, and Triton's own clients
	@echo "-- end-to-end tests on $$CONCH_TRITONSERVER" >&2
	@$(GO_TEST) $(E2E_RACE) -count=1 -p 2 -parallel 4 ./e2e ./e2e/clients

# The tests of reconcile that `make test` runs a few rounds of, as often as it takes to believe them. They wait more than they work.
KILLS ?= 200
CHANGES ?= 1000
SWAPS ?= 1000
POLICY_SWAPS ?= 72
REAL ?= 100
MODELS ?= 200
ROWS ?= 600

.PHONY: faults
faults: build triton ## faults and plan changes under load, on real tritonservers: KILLS=200 of conch, CHANGES=1000 and SWAPS=1000 (REAL=100 of each on real servers), POLICY_SWAPS=72 (each policy to each other), MODELS=200, ROWS=600 (seconds in which callers leave)
	@CONCH_KILLS=$(KILLS) CONCH_CHANGES=$(CHANGES) CONCH_CHANGES_REAL=$(REAL) CONCH_SWAPS=$(SWAPS) CONCH_SWAPS_REAL=$(REAL) CONCH_POLICY_SWAPS=$(POLICY_SWAPS) CONCH_MODELS=$(MODELS) CONCH_ROWS=$(ROWS) \
	  $(GO) test -count=1 -v -timeout 3h -parallel 2 -run '^(TestConchIsKilled|TestPlanChangesLoseNothing|TestPolicySwapsLoseNothing|TestEveryPolicyInPlaceOfEveryOther|TestModelsThatDoNotLoad|TestEveryRowIsItsOwners)$$' ./e2e

.PHONY: pictures
pictures: build browser ## the pictures of README and docs, from the running program
	@$(GO) run ./scripts/pictures
	@CONCH_BROWSER=required CONCH_SHOW=$(CURDIR)/docs/pictures $(GO) test -count=1 -timeout 10m -run '^TestPictures$$' ./e2e/console

# Its times are of what a browser's main thread does: nothing else runs beside it.
.PHONY: console
console: build browser ## the console in a real browser, on bin/conch
	@echo "-- the console in a browser" >&2
	@CONCH_BROWSER=required $(GO_TEST) -count=1 ./e2e/console

.PHONY: browser
browser: ## chromium, from Debian
	@scripts/setup/browser.sh

DURATION ?= 30m
.PHONY: soak
soak: build triton ## random load, orders and faults on real tritonservers (DURATION=30m, SEED=n repeats one)
	@CONCH_SOAK=$(DURATION) $(if $(SEED),CONCH_SEED=$(SEED)) $(GO) test -count=1 -v -timeout 24h -run '^TestSoak$$' ./e2e

.PHONY: e2e-gpu
e2e-gpu: ## what needs an NVIDIA GPU and a running MPS control daemon: NVML, shares, memory limits, faults (says what is missing)
	@CONCH_GPU=1 $(GO) test -count=1 -v ./e2e/gpu

.PHONY: gpu-kit
gpu-kit: triton ## what `make bench BENCH=gpu`, e2e-gpu and a model of PyTorch on tritonserver need on a machine with a GPU, PyTorch and neither Go nor a network (scripts/gpu)
	@scripts/gpu/kit.sh

# A real Kubernetes on this machine, of a module of its own (e2e/cluster): it needs root, and over ten minutes for its first build.
CLUSTER = .cache/cluster/bin/cluster -bin .cache/cluster/bin -triton $(TRITON_HOME)
.PHONY: cluster-programs cluster cluster-down e2e-cluster
cluster-programs:
	@scripts/setup/cluster.sh
cluster: build cluster-programs triton ## a real Kubernetes with two nodes of two emulated GPUs each, to try driver kubernetes on, and values of the chart for it (make cluster-down ends it)
	@$(CLUSTER) up

cluster-down: ## ends what `make cluster` started
	@$(CLUSTER) down

e2e-cluster: build cluster-programs triton .cache/bin/helm ## driver kubernetes on a real Kubernetes: real tritonservers in Pods of two nodes, the chart, faults of Pods, kubelet and API server
	@cd e2e/cluster && CONCH_HELM=$(CURDIR)/.cache/bin/helm CONCH_CLUSTER_BIN=$(CURDIR)/.cache/cluster/bin CONCH_TRITON_HOME=$(TRITON_HOME) $(GO) test -count=1 -v -timeout 20m .

# Of each kind; KINDS chooses by a regular expression, as in KINDS='Pod|leader'.
ROUNDS ?= 200
KINDS ?= .
.PHONY: faults-cluster
faults-cluster: build cluster-programs triton ## faults on a real Kubernetes under load: ROUNDS=200 each of plans that move models, Pods deleted and evicted, replicas killed, paused, replaced and scaled, API server and a kubelet down (KINDS='Pod|leader' chooses)
	@cd e2e/cluster && CONCH_CLUSTER_BIN=$(CURDIR)/.cache/cluster/bin CONCH_TRITON_HOME=$(TRITON_HOME) CONCH_CLUSTER_ROUNDS=$(ROUNDS) \
	  $(GO) test -count=1 -v -timeout 24h -run '^TestFaults$$/($(KINDS))' .

# What is in deploy/, tried as far as one machine without containers and clusters can.
.PHONY: deploy
deploy: export CONCH_PROMETHEUS = $(CURDIR)/.cache/prometheus
deploy: export CONCH_HELM = $(CURDIR)/.cache/bin/helm
deploy: export CONCH_HADOLINT = $(CURDIR)/.cache/bin/hadolint
deploy: build prometheus package image-rootfs actionlint .cache/bin/helm .cache/bin/hadolint ## tests of deploy/: rules and dashboard on a real Prometheus, packages, image, unit, chart
	@echo '-- tests of deploy/' >&2
	@$(GO) test -count=1 -timeout 15m ./e2e/deploy
	@$(MAKE) manifests

# A module of its own: what it depends on is no dependency of Conch's.
.PHONY: manifests
manifests: ## whether the chart's manifests are what Kubernetes and the Prometheus operator take, and the compose file what compose takes
	@cd deploy/helm/strict && $(GO) test ./...

# What is shipped. conch finds GPUs through NVML, which Go binds by cgo: the conch of the packages is linked with glibc (2.34 or later), as Triton
# itself is. That of the image, which stands in front of servers elsewhere, is static and sees no GPU.
CONCH_VERSION ?= 0.0.0~$(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
CONCH_ARCH ?= $(shell $(GO) env GOARCH)
SHIPPED = -trimpath -ldflags '-s -w'

.PHONY: static
static:
	@mkdir -p bin/static
	@echo '-- building static programs' >&2
	@for p in conch=sidecar conch-policies=plugins tritonctl=tritonctl; do CGO_ENABLED=0 $(GO) build $(SHIPPED) -o "bin/static/$${p%=*}" "./$${p#*=}"; done

.PHONY: package
package: static tools ## Debian and RPM packages and a tarball, into bin/package
	@mkdir -p bin/package
	@CGO_ENABLED=1 $(GO) build $(SHIPPED) -o bin/package/conch ./sidecar
	@cp bin/static/conch-policies bin/static/tritonctl bin/package/
	@for kind in deb rpm; do CONCH_VERSION='$(CONCH_VERSION)' CONCH_ARCH='$(CONCH_ARCH)' .cache/bin/nfpm package -f deploy/package/nfpm.yaml -p $$kind -t bin/package/conch.$$kind >&2; done
	@tar -C bin/package --transform 's,^,conch/,' --owner=0 --group=0 -czf bin/package/conch.tar.gz conch conch-policies tritonctl

.PHONY: image-rootfs
image-rootfs: static ## the root file system of deploy/docker/Dockerfile's image, into bin/rootfs
	@deploy/docker/rootfs.sh bin/static bin/rootfs

.PHONY: actionlint
actionlint: tools ## checks .github/workflows
	@.cache/bin/actionlint

.PHONY: hadolint
hadolint: .cache/bin/hadolint ## checks deploy/docker/Dockerfile
	@.cache/bin/hadolint deploy/docker/Dockerfile

.cache/bin/hadolint: scripts/setup/hadolint.sh scripts/setup/hadolint.txt scripts/setup/lib.sh
	@echo '-- setting up hadolint' >&2
	@scripts/setup/hadolint.sh; touch -h $@

.PHONY: tools
tools: .cache/bin/nfpm
.cache/bin/nfpm: scripts/setup/deploy.sh scripts/setup/lib.sh
	@echo '-- setting up nfpm and actionlint' >&2
	@scripts/setup/deploy.sh; touch $@

.cache/bin/helm: scripts/setup/helm.sh scripts/setup/lib.sh
	@echo '-- setting up helm' >&2
	@scripts/setup/helm.sh; touch $@

.PHONY: prometheus
prometheus: ## promtool and Prometheus, into .cache/prometheus
	@[ -e .cache/prometheus/ready ] || echo '-- setting up Prometheus' >&2
	@scripts/setup/prometheus.sh

# What reads bytes of strangers, as PACKAGE:TARGET. More targets are in those packages; their corpora run as tests.
FUZZ := sidecar/dispatch/batch:FuzzReadRequest sidecar/dispatch/ingress/http:FuzzHTTPRequest sidecar/dispatch/ingress/http1:FuzzHead sidecar/dispatch/wire:FuzzServer sidecar/dispatch/wire:FuzzClient \
	sidecar/dispatch/batch:FuzzAssemble sidecar/dispatch/ingress/http:FuzzJSONRequest sidecar/dispatch/ingress/http:FuzzBinarySplit \
	internal/onnx:FuzzRead sidecar/sim/segment:FuzzParseMLP merger:FuzzAnalyze estimator:FuzzEstimate
FUZZ_SECONDS ?= 10

.PHONY: fuzz
fuzz: ## fuzzing, two targets at a time (FUZZ="PACKAGE:TARGET ...", FUZZ_SECONDS=10 each)
	@mkdir -p .cache/fuzz
	@for d in $(sort $(foreach f,$(FUZZ),$(firstword $(subst :, ,$(f))))); do \
	  $(GO) test -c -fuzz=^Fuzz -o ".cache/fuzz/$${d//\//-}.test" "./$$d"; done
	@echo '-- fuzzing for $(FUZZ_SECONDS) s each: $(foreach f,$(FUZZ),$(lastword $(subst :, ,$(f))))' >&2
	@printf '%s\n' $(FUZZ) | xargs -P 2 -I{} bash -c 'd=$${1%:*} f=$${1#*:}; cd "$$d"; out=$$("$(CURDIR)/.cache/fuzz/$${d//\//-}.test" -test.run "^$$" -test.fuzz "^$$f$$" \
	  -test.fuzztime $(FUZZ_SECONDS)s -test.fuzzminimizetime 10x -test.parallel 1 -test.fuzzcachedir "$(CURDIR)/.cache/fuzz/corpus" 2>&1) || { echo "$$out"; exit 1; }; \
	  echo "$$out" | sed -nE "s/^fuzz: elapsed: [^,]*, execs: ([0-9]+).*/-- $$f: \1 executions/p" | tail -1 >&2' - {}

# -race wants a C compiler: the prerequisite "race" says whether there is one before a recipe that uses this is expanded.
RACE = $(if $(filter yes,$(shell cat .cache/race 2>/dev/null)),-race)
RACE_SAYS = $(if $(RACE), (race detector on), (race detector OFF: no C compiler))

.PHONY: race
race: .cache/race
.cache/race: scripts/setup/compiler.sh scripts/setup/lib.sh
	@echo '-- setting up the race detector' >&2
	@scripts/setup/compiler.sh; touch $@

.PHONY: lint
lint: .cache/bin/golangci-lint ## golangci-lint at the pinned version
	@.cache/bin/golangci-lint run

.cache/bin/golangci-lint: scripts/setup/golangci.sh scripts/setup/lib.sh
	@echo '-- setting up golangci-lint' >&2
	@scripts/setup/golangci.sh; touch $@

.PHONY: bench
BENCH ?= core sim unseen ablation pipelines placements placements-judges schedulability proxy proxy-triton instant overload sizing merge live pipelines-live policies-live placements-live fidelity watch swaps hop owners estimator estimator-whole
# What BENCH=live runs: what advise says of ten loads is written down before any of them is measured.
LIVE := advise advise-unseen live-1on4 live-8on4 live-overlap mix mix-unseen
PIPELINES_LIVE := $(addprefix pipelines-live-,chain urgent detector diamond)
bench: ## the figures of docs/results.md (BENCH="core sim" chooses; all are below but cluster and failover, which want the programs of a Kubernetes, and failover root)
	@$(MAKE) build
	@case '$(BENCH)' in *live*|*fidelity*|*merge*|*overload*|*estimator*|*proxy-triton*|*instant*|*failover*) $(MAKE) triton;; esac
	@case '$(BENCH)' in *cluster*|*failover*) $(MAKE) cluster-programs;; esac
	@case '$(BENCH)' in *proxy*) $(MAKE) proxies || echo '-- proxy: without nginx and HAProxy' >&2;; esac
	@for b in $(patsubst live,$(LIVE),$(patsubst pipelines-live,$(PIPELINES_LIVE),$(BENCH))); do bin/conch-bench "$$b"; done

.PHONY: reproduce
reproduce: ## what papers and published schedulers say that needs no GPU, against the simulator (ABACUS=DIR: with the rows of Abacus)
	@$(MAKE) build PROGRAMS=conch-bench=bench
	@bin/conch-bench reproduce
	@$(if $(ABACUS),bin/conch-bench reproduce-abacus --abacus '$(ABACUS)',echo '-- reproduce: WITHOUT the rows of Abacus, whose predictor has no licence: make reproduce ABACUS=DIR (sidecar/sim/segment/README.md)' >&2)
	@bin/conch-bench reproduce-placement

.PHONY: compare
compare: ## every discipline under a matrix of simulated loads (up to an hour on two cores), every policy in a matrix of scenarios (BENCH=placements: ten minutes on one)
	@$(MAKE) build PROGRAMS=conch-bench=bench
	@bin/conch-bench compare
	@bin/conch-bench placements

.PHONY: results
results: ## docs/results.md, and the figures in tables of README.md and other pages, from results/*.json
	@$(MAKE) build PROGRAMS=conch-bench=bench
	@bin/conch-bench results

.PHONY: figures
figures: ## whether every figure that README and docs cite was measured with the present code
	@CONCH_FIGURES=1 $(GO) test -count=1 -run '^TestFiguresOfPagesAreOfThePresentCode$$' ./internal/figure

.PHONY: triton
triton: ## a real tritonserver, into .cache/triton (TRITONSERVER=/path: check that yours is there)
	@[ -e $(TRITON_HOME)/ready ] || echo '-- setting up Triton' >&2
	@scripts/setup/triton.sh

.PHONY: clients
clients: ## Triton's official clients and perf_analyzer, into .cache/clients
	@[ -e .cache/clients/ready ] || echo "-- setting up Triton's clients" >&2
	@scripts/setup/clients.sh

.PHONY: h2spec
h2spec: .cache/bin/h2spec ## HTTP/2 conformance of the gRPC front, beside grpc-go's (two minutes)
	@CONCH_H2SPEC=$(CURDIR)/.cache/bin/h2spec $(GO) test -count=1 -v -run '^TestH2Spec$$' ./sidecar/dispatch/ingress/grpc

.cache/bin/h2spec: scripts/setup/h2spec.sh scripts/setup/lib.sh
	@echo '-- setting up h2spec' >&2
	@scripts/setup/h2spec.sh; touch $@

.PHONY: proxies
proxies: ## nginx and HAProxy for `make bench BENCH=proxy`, unpacked into .cache/proxies (optional)
	@scripts/setup/proxies.sh

.PHONY: drawn
drawn: ## ensembles that a seed draws, and requests of them, to Conch and to a bare tritonserver (SEED=n)
	@$(MAKE) build PROGRAMS="conch=sidecar conch-policies=plugins"
	@$(MAKE) triton
	@CONCH_DRAWN_SEED=$(or $(SEED),1) $(GO) test -count=1 -timeout 10m -v ./e2e/conformance -run '^TestDrawnEnsemblesAnswerAsTriton$$'

.PHONY: compatibility
compatibility: ## docs/compatibility.md: runs the conformance suite on every target and renders what came out
	@$(MAKE) build PROGRAMS="conch=sidecar conch-policies=plugins"
	@$(MAKE) triton clients
	@echo "-- conformance suite on every target" >&2
	@$(GO) test -count=1 -timeout 10m ./e2e/conformance -run '^(TestTargets|TestCompatibility)$$' -args -update

.PHONY: generate
generate: .cache/bin/protoc ## generated code from .proto files
	@PATH=$(CURDIR)/.cache/bin:$$PATH; \
	into='--go_out=. --go_opt=module=$(MODULE) --go-grpc_out=. --go-grpc_opt=module=$(MODULE)'; \
	protoc -I internal/triton/proto $$into internal/triton/proto/*.proto; \
	protoc -I plugins/policy $$into plugins/policy/policy.proto; \
	protoc -I internal/onnx/proto --go_out=. --go_opt=module=$(MODULE) internal/onnx/proto/onnx.proto
	@git diff --stat -- '*.pb.go'

# Python with the messages' compiler: the example policy in Python is tested with it.
.cache/protoc.ready: scripts/setup/protoc.sh scripts/setup/protoc.txt scripts/setup/lib.sh
	@echo '-- setting up grpcio-tools' >&2
	@scripts/setup/protoc.sh python; touch $@

.cache/bin/protoc: scripts/setup/protoc.sh scripts/setup/protoc.txt scripts/setup/lib.sh
	@echo '-- setting up protoc' >&2
	@scripts/setup/protoc.sh; touch $@

.PHONY: clean
clean: ## removes bin/ and .cache/
	@rm -rf bin .cache
