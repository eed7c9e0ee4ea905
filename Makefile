# The common tasks in a clone. `make` without a target lists them.

CARGO ?= cargo
# Seeds of the long campaign; the short one of `make test` is set in the tests themselves.
SEEDS_LONG ?= 100000
# Seconds of each fuzz target. `make fuzz FUZZ_SECONDS=600` runs each target longer.
FUZZ_SECONDS ?= 5
# Minutes of `make paper`, and the data that it compares with.
MINUTES ?= 10
DATA ?= ../shared/data
# Tests at once. The tests of processes wait most of their time, so two cores run six of them at
# once (`Scratch` in apps/cli/tests/runs/common.rs decides which tests run beside each other).
TEST_THREADS ?= $(shell cores=$$(nproc); echo $$((cores > 2 ? 3 * cores : 6)))
# `NO_INSTALL=1` also keeps scripts from downloading what they compare with.
export NO_INSTALL

.PHONY: help demo test test-long bench dist deploy deps paper tools fmt clippy tidy features lean program bpf build unit campaigns rest python c doc deny api fuzz

help:
	@echo "make demo       a generated feed, multicast fairly on this machine; ends with a report"
	@echo "make test       everything that must pass before a merge; it installs nothing"
	@echo "make test-long  the long fault campaign ($(SEEDS_LONG) seeds), tests of ZooKeeper's clients, the wheel, whether builds agree, and fuzzing"
	@echo "make bench      fan-out cost, and our peers beside us"
	@echo "make dist       static programs, a package for Debian, the C library, the wheel, an inventory, checksums"
	@echo "make paper      the tables and figures of the papers beside ours, with a verdict each: what fits into MINUTES=10"
	@echo "make fuzz       every fuzz target for FUZZ_SECONDS=$(FUZZ_SECONDS), where there is a nightly Rust"
	@echo "make deps       install what tests use besides (network namespaces, a browser), by apt, cargo and pip"

# The lean program, without link-time optimisation, because a user waits for the first build.
demo:
	@echo "demo: nothing is installed; cargo downloads the crates of Cargo.lock that are missing, and builds in target/"
	$(CARGO) run --profile lean --package evenfall-cli -- demo --dir target/demo

# Cheapest first, and the tests last, so that their closing lines stand above the table of times. The programs that
# `deploy` starts wait most of their time, and so do the tests of processes: the builds and the campaigns, which only
# compute, take the time of the cores that is left (`scripts/steps.sh`). Both sides of the first slash build in
# directories of their own, because Cargo locks a directory while it builds. LIMIT_MINUTES ends a step that hangs.
test:
	+@MAKE="$(MAKE)" LIMIT_MINUTES=$(LIMIT_MINUTES) ./scripts/steps.sh tools fmt tidy bpf deny api \
	  build,clippy,doc/program,deploy lean python c campaigns/rest

fmt:
	$(CARGO) fmt --all --check

tidy:
	$(CARGO) xtask tidy

# The program that forwards in the kernel: whether its committed object is what its source compiles to.
bpf:
	./scripts/bpf.sh

# Each feature alone, because all other steps build with all features. A part of `make test-long`,
# for it checks sixty builds.
features:
	$(CARGO) xtask features

# The program that a newcomer builds, in a directory that `make build` does not lock.
program:
	$(CARGO) build --profile lean --package evenfall-cli --quiet

# The size of that program: bytes and foreign crates.
lean:
	$(CARGO) xtask lean

clippy:
	$(CARGO) clippy --workspace --all-targets --all-features -- -D warnings

# The documentation includes private modules, because it is for readers of the code.
doc:
	RUSTDOCFLAGS="-D warnings -A rustdoc::private-intra-doc-links" $(CARGO) doc --workspace --all-features --no-deps --quiet

# Licences, sources and advisories of all dependencies.
deny:
	./scripts/deny.sh

# Changes of public APIs that break programs of users: since the last tag, or since the last state of main.
api:
	./scripts/api.sh

# `make test` replays the corpora of all targets. New input is a part of `make test-long`, for the targets are
# compiled by another compiler, with all that they stand on.
fuzz:
	./scripts/fuzz.sh $(FUZZ_SECONDS)

# Builds the test programs without running them, so that the table has separate times for building
# and running.
build:
	$(CARGO) test --workspace --all-features --no-run --quiet

unit:
	CARGO="$(CARGO)" RUST_TEST_THREADS=$(TEST_THREADS) ./scripts/tests.sh

# The two halves of `make unit`, for `make test`: campaigns compute for six minutes without a deadline, and the rest
# waits in between. The same packages with the same features, so that neither half builds anything again.
LONGEST := campaigns::every_campaign_passes_its_seeds campaigns::every_mutant_is_caught_by_its_check
campaigns:
	$(CARGO) test --workspace --all-features --test campaigns -- --exact $(LONGEST)

rest:
	CARGO="$(CARGO)" RUST_TEST_THREADS=$(TEST_THREADS) ./scripts/tests.sh $(addprefix --skip ,$(LONGEST))

# The Python package, as `make build` has built it, with the readers that `make deps` installs.
python:
	./scripts/python.sh

# The C library, as `make build` has built it, with its examples in C and C++.
c:
	./scripts/c.sh

# Images, units and manifests, and six containers with a Docker engine where there can be one.
deploy:
	./deploy/test.sh

# Runs with MinIO, when it can be built or found. Without MinIO, its tests print that they are
# skipped. When there are a JDK and Maven, two drivers of JDBC and all tests of ZooKeeper's clients run, then a part of them
# again while replicas are killed, and then Hadoop's own tests of file systems. Builds a release and tries it in empty roots, and the wheel of
# the Python package, and tests it in each Python from 3.11 on. Apache Spark reads exported Parquet. Then come three
# builds of the scenarios, which must give the same digests, builds of single features, and fuzzing.
test-long:
	if minio=$$(./scripts/minio.sh); then export EVENFALL_MINIO=$$minio; fi; \
	EVENFALL_SEEDS=$(SEEDS_LONG) $(CARGO) test --workspace --all-features
	$(CARGO) build --package evenfall-cli --features full
	./scripts/query/doors.sh target/debug/evenfall target/debug/evenfall-query
	./scripts/zookeeper-clients.sh target/debug/evenfall
	./scripts/zookeeper/differential.py target/debug/evenfall --calls 20000
	./scripts/zookeeper-suites.sh target/debug/evenfall
	KILL_EVERY=2 ./scripts/zookeeper-suites.sh target/debug/evenfall smoke zookeeper curator
	./scripts/hadoop-contract.sh target/debug/evenfall
	./scripts/python.sh --wheel
	./bench-peers/store/check.sh --spark $(CURDIR)/target/debug/evenfall
	$(MAKE) dist
	./scripts/same-everywhere.sh
	$(MAKE) features
	$(MAKE) fuzz

# What a release consists of, in target/dist; then each of it in an empty root.
dist:
	./scripts/dist.sh
	./scripts/dist.sh --test

# The papers' tables and figures beside ours, cheapest first. DATA has the published series and the measured pairs.
paper:
	$(CARGO) build --release --package evenfall-lab
	./scripts/paper.py target/release/evenfall-lab --minutes $(MINUTES) --data $(DATA)

bench:
	$(CARGO) run --release --package evenfall-lab -- bench fanout --fanout 10 --size 40
	./bench-peers/run.sh
	./bench-peers/store/run.sh

# Names the tools that are missing, whose tests print `skipped:`.
tools:
	@NO_INSTALL=1 ./scripts/deps.sh

deps:
	@./scripts/deps.sh || echo "going on without: some tests will say what they skip"
