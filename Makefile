# pg_baton: the whole product's front door.  `make help` lists the targets.
#
# The extension is built by PGXS against the server that PG_CONFIG names, the
# dispatcher by cargo.

# Not exported: on a fresh machine it is known only after setup, so whatever
# comes after setup runs in a make of its own, which looks again.
PG_CONFIG ?= $(lastword pg_config $(sort $(wildcard /usr/lib/postgresql/1[5678]/bin/pg_config)))
CARGO ?= cargo
PREFIX ?= /usr/local
DESTDIR ?=
PYTHON ?= .venv/bin/python
RUFF ?= .venv/bin/ruff

# Looked up when a recipe needs it: the server may not be installed yet.
SERVER_BIN = $(shell $(PG_CONFIG) --bindir)

# The program for people, and those that the server starts.
BATON = target/release/baton
DISPATCHER = target/release/baton-dispatcher
MONITOR = target/release/baton-monitor

# make bench QUICK=1 takes about six minutes, the full run an hour, and
# BENCH_OPTIONS="--only applications" about 13.
QUICK ?=
# make fuzz runs this long.
FUZZ_SECONDS ?= 3600
FUZZ_SEED ?=
# make fuzz-parsers runs this long, all targets together; make check a minute.
FUZZ_PARSERS_SECONDS ?= 3600
# make check fuzzes this many operations.
FUZZ_CHECK_STEPS ?= 6000
# As many of sessions of many roles.
FUZZ_CHECK_ROLES_STEPS ?= 1200
# make simulate runs this long, at most so many seeds, or this one.
SIMULATE_SECONDS ?= 600
SIMULATE_SEEDS ?=
SIMULATE_SEED ?=
SIMULATE_FROM ?=

REGRESS_OPTIONS ?=
SUITES ?=
TAP_OPTIONS ?=
PYTEST_FOLDERS ?= tests/behaviour tests/faults tests/abuse tests/drivers
MAJOR_PYTEST_FOLDERS ?= tests/behaviour
# Tests that run in two modes run in this one only: normal or forced.
TEST_MODE ?=
# Test files that run at a time; much of a test is waiting.  check-major runs
# one, or so many: CI has other tests beside.
TEST_WORKERS ?= 4
MAJOR_TEST_WORKERS ?= 0

# Tests ask the same pg_config.
WITH_SERVER = PG_CONFIG=$(PG_CONFIG)

.DEFAULT_GOAL := all
.PHONY: all extension dispatcher install install-files uninstall uninstall-files \
	setup setup-test setup-suite setup-bench demo run-demo run-bench check check-but-pytest check-fast check-major check-unit check-fuzz \
	check-regress check-isolation check-tap check-pytest check-sanitize check-assert installcheck bench fuzz lint format clean help

all: extension dispatcher ## Build the extension and the dispatcher

extension:
	$(MAKE) -C extension PG_CONFIG=$(PG_CONFIG)

# BATON_PREBUILT: the programs are there, as they are to be.
dispatcher:
	$(if $(BATON_PREBUILT),test -x $(BATON) -a -x $(DISPATCHER) -a -x $(MONITOR),$(CARGO) build --release --workspace)

# The program lies beside the server's own programs, where the launcher looks
# for it; PREFIX/bin gets a link for people.
install: all ## Install both for the server of PG_CONFIG (root, or asks sudo)
	@if [ -w "$(DESTDIR)$(SERVER_BIN)" ] || [ -n "$(DESTDIR)" ]; then \
		$(MAKE) --no-print-directory install-files; \
	else \
		tools/as-root $(MAKE) --no-print-directory install-files \
			PG_CONFIG=$(PG_CONFIG) PREFIX=$(PREFIX); \
	fi

install-files:
	$(MAKE) -C extension install PG_CONFIG=$(PG_CONFIG) DESTDIR=$(DESTDIR)
	install -d $(DESTDIR)$(SERVER_BIN) $(DESTDIR)$(PREFIX)/bin
	install -m 755 $(BATON) $(DISPATCHER) $(MONITOR) $(DESTDIR)$(SERVER_BIN)/
	ln -sf $(SERVER_BIN)/baton $(DESTDIR)$(PREFIX)/bin/baton

uninstall: ## Take both away again
	@if [ -n "$(DESTDIR)" ]; then \
		$(MAKE) --no-print-directory uninstall-files; \
	else \
		tools/as-root $(MAKE) --no-print-directory uninstall-files \
			PG_CONFIG=$(PG_CONFIG) PREFIX=$(PREFIX); \
	fi

uninstall-files:
	$(MAKE) -C extension uninstall PG_CONFIG=$(PG_CONFIG) DESTDIR=$(DESTDIR)
	rm -f $(DESTDIR)$(PREFIX)/bin/baton $(DESTDIR)$(SERVER_BIN)/baton
	rm -f $(DESTDIR)$(SERVER_BIN)/baton-dispatcher $(DESTDIR)$(SERVER_BIN)/baton-monitor

setup: ## Install what building needs and is missing (apt)
	@tools/setup build

setup-test:
	@tools/setup test

setup-suite:
	@tools/setup suite

setup-bench:
	@tools/setup bench

# One step after the other, whatever -j says: setup installs what building needs.
# Silent, so that compilers' command lines do not bury what there is to see.
demo: setup ## Build, install, and show the pool at work until Ctrl-C
	@echo "==> build and install"
	@$(MAKE) --no-print-directory --silent install
	@$(MAKE) --no-print-directory run-demo

# exec: Ctrl-C and its exit status are baton's.
run-demo:
	@exec $(SERVER_BIN)/baton demo --pg-config $(PG_CONFIG) $(DEMO_OPTIONS)

# pytest comes last: its closing line counts the tests.
check: setup-test ## Everything that must pass, on a clean clone
	@$(MAKE) --no-print-directory check-but-pytest
	@echo "==> behaviour, faults, drivers"
	@$(MAKE) --no-print-directory check-pytest

# What keeps the processors at work; pytest's tests wait much of their time.
check-but-pytest:
	@echo "==> build and install"
	@$(MAKE) --no-print-directory install
	@echo "==> lint"
	@$(MAKE) --no-print-directory lint
	@echo "==> unit tests"
	@$(MAKE) --no-print-directory check-unit
	@echo "==> simulator of the scheduler"
	@$(MAKE) --no-print-directory simulate SIMULATE_SECONDS=60
	@echo "==> fuzzer of parsers"
	@$(MAKE) --no-print-directory fuzz-parsers FUZZ_PARSERS_SECONDS=60
	@echo "==> fuzzer of session state"
	@$(MAKE) --no-print-directory check-fuzz
	@echo "==> fuzzer of session state, with DDL beside sessions"
	@$(MAKE) --no-print-directory check-fuzz-ddl
	@echo "==> fuzzer of session state, of many roles on few backends"
	@$(MAKE) --no-print-directory check-fuzz-roles
	@echo "==> PostgreSQL's regression suite"
	@$(MAKE) --no-print-directory check-regress
	@echo "==> PostgreSQL's isolation suite"
	@$(MAKE) --no-print-directory check-isolation
	@echo "==> PostgreSQL's tests of who comes in"
	@$(MAKE) --no-print-directory check-tap

# What an edit is tried with.  The programs are built without link-time optimization,
# in a folder of their own, and nothing is installed.
FAST_CARGO = CARGO_TARGET_DIR=target/fast CARGO_PROFILE_RELEASE_LTO=off \
	CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 $(CARGO)
FAST_TESTS = pool parameters statements temporary_objects login protocol

check-fast: setup-suite ## Under three minutes: unit tests, simulator, the core of behaviour
	@echo "==> build"
	@$(MAKE) --no-print-directory --silent extension
	$(FAST_CARGO) build --release --package baton --package baton-dispatcher --package baton-monitor
	@echo "==> unit tests, and the simulator of the scheduler for 10 seconds"
	BATON_SIMULATE_SECONDS=10 $(FAST_CARGO) test --release --package baton --package baton-dispatcher --package baton-monitor
	@echo "==> behaviour"
	$(WITH_SERVER) BATON_TEST_FROM=tree BATON_TEST_TARGET=target/fast BATON_TEST_MODE=forced \
		$(PYTHON) -m pytest --numprocesses 4 --dist loadfile $(FAST_TESTS:%=tests/behaviour/test_%.py)

installcheck: ## With a server that runs: PGHOST, PGPORT (its own, or the pool's), PGUSER
	@$(MAKE) --no-print-directory -C extension installcheck PG_CONFIG=$(PG_CONFIG)

# What differs from major to major: tools/with-postgres 17 make check-major, or
# tools/with-source FOLDER make check-major.  The isolation suite is not run by TLS:
# libpq then says in other words that a connection has ended.
check-major: setup-suite ## Of check: what depends on the server's major
	@echo "==> build and install"
	@$(MAKE) --no-print-directory install
	@echo "==> fuzzer of session state"
	@$(MAKE) --no-print-directory check-fuzz
	@echo "==> fuzzer of session state, with DDL beside sessions"
	@$(MAKE) --no-print-directory check-fuzz-ddl FUZZ_CHECK_STEPS=1200
	@echo "==> fuzzer of session state, of many roles on few backends"
	@$(MAKE) --no-print-directory check-fuzz-roles
	@echo "==> PostgreSQL's regression suite, under forced migration, beside other roles"
	@$(MAKE) --no-print-directory check-regress REGRESS_OPTIONS="--only direct --only forced --other-roles 4"
	@echo "==> PostgreSQL's isolation suite, under forced migration, beside other roles"
	@BATON_TEST_TLS= $(MAKE) --no-print-directory check-isolation ISOLATION_OPTIONS="--only forced --other-roles 4"
	@echo "==> PostgreSQL's tests of who comes in, under forced migration"
	@$(MAKE) --no-print-directory check-tap TAP_OPTIONS="--only direct --only forced"
	@echo "==> behaviour"
	@$(MAKE) --no-print-directory check-pytest TEST_WORKERS=$(MAJOR_TEST_WORKERS) PYTEST_FOLDERS="$(MAJOR_PYTEST_FOLDERS)"

# What is built here is built with -Werror, as in CI; what was built before is not
# built again.
lint: export BATON_WERROR = 1
lint: extension ## rustfmt, clippy, ruff, pg_bsd_indent, variables and layers in C, comparisons of names
	$(CARGO) fmt --all --check
	$(CARGO) fmt --manifest-path fuzz/Cargo.toml --check
	$(WITH_SERVER) tools/indent --check
	tools/check-statics
	tools/check-includes
	tools/check-names
	tools/check-clocks
	$(RUFF) check tests bench
	$(RUFF) format --check tests bench
	$(CARGO) clippy --release --workspace --all-targets -- -D warnings
	CARGO_TARGET_DIR=target/fuzz $(CARGO) clippy --release --locked --manifest-path fuzz/Cargo.toml -- -D warnings

format: extension ## Format Rust with rustfmt, Python with ruff, and C with pg_bsd_indent
	$(CARGO) fmt --all
	$(CARGO) fmt --manifest-path fuzz/Cargo.toml
	$(RUFF) check --fix tests bench
	$(RUFF) format tests bench
	$(WITH_SERVER) tools/indent

check-unit:
	$(CARGO) test --release --workspace

.PHONY: simulate
simulate: ## The scheduler against a simulated world (SIMULATE_SECONDS, SIMULATE_SEED, SIMULATE_FROM)
	BATON_SIMULATE_SECONDS=$(SIMULATE_SECONDS) BATON_SIMULATE_SEED=$(SIMULATE_SEED) \
		BATON_SIMULATE_SEEDS=$(SIMULATE_SEEDS) BATON_SIMULATE_FROM=$(SIMULATE_FROM) \
		$(CARGO) test --release --package baton-dispatcher simulator -- --nocapture

.PHONY: fuzz-parsers
fuzz-parsers: ## Fuzz the parsers that strangers reach (FUZZ_PARSERS_SECONDS, 3600)
	tools/fuzz-parsers $(FUZZ_PARSERS_SECONDS)

# First against a world that loses sessions' state now and then: a fuzzer that
# does not see that would prove nothing.
check-fuzz:
	$(WITH_SERVER) $(PYTHON) -m tests.fuzz --seed 1 --steps 2000 --against broken --no-shrink
	$(WITH_SERVER) $(PYTHON) -m tests.fuzz --seed 1 --steps $(FUZZ_CHECK_STEPS)
	$(WITH_SERVER) BATON_TEST_SET=pg_baton.dispatchers=4 $(PYTHON) -m tests.fuzz --seed 2 --steps 2000

.PHONY: check-fuzz-ddl
check-fuzz-ddl:
	$(WITH_SERVER) $(PYTHON) -m tests.fuzz --seed 1000 --steps $(FUZZ_CHECK_STEPS) --ddl 0.7 --no-seeds

# The roles that sessions live as are not shut out or renamed (--shut-out).
.PHONY: check-fuzz-roles
check-fuzz-roles:
	$(WITH_SERVER) $(PYTHON) -m tests.fuzz --seed 2000 --steps $(FUZZ_CHECK_ROLES_STEPS) --roles 0.7 --no-seeds

check-regress:
	$(WITH_SERVER) tests/regress/run $(REGRESS_OPTIONS)

check-isolation:
	$(WITH_SERVER) $(PYTHON) tests/isolation/run.py $(ISOLATION_OPTIONS)

# TAP_OPTIONS names others: "src/bin/pg_dump src/test/subscription".
check-tap:
	$(WITH_SERVER) $(PYTHON) tests/tap/run.py $(TAP_OPTIONS)

.PHONY: check-suites
# SUITES="pgx django" runs these; tests/suites/run.py --list names all.
check-suites: ## Drivers' and frameworks' own suites, as directly (SUITES: all, or names)
	$(WITH_SERVER) $(PYTHON) tests/suites/run.py $(SUITES)

check-pytest:
	$(WITH_SERVER) BATON_TEST_MODE=$(TEST_MODE) $(PYTHON) -m pytest \
		--numprocesses $(TEST_WORKERS) --dist loadfile $(PYTEST_FOLDERS)

# Assertions of the server's own, about what an extension may not do.
check-assert: ## With a server with assertions, from PG_SOURCE, a source tree
	@test -n "$(PG_SOURCE)" || { echo "make check-assert PG_SOURCE=FOLDER, PostgreSQL's source tree"; exit 2; }
	tools/with-source --assert $(PG_SOURCE) $(MAKE) check-major \
		MAJOR_PYTEST_FOLDERS="tests/behaviour tests/faults"

# A copy of the tree in build/sanitize, its extension with AddressSanitizer and
# UndefinedBehaviorSanitizer, whose word in a server's log fails the test.  The
# server is Debian's, so the runtime is preloaded (asan_first.c says what else
# that takes), and an overrun that stays within one of palloc's blocks is not
# seen.  Leaks are not looked for, a backend frees little at its end; signed
# overflow neither: PostgreSQL's compiler flags (-fwrapv) define it.  PGXS gives
# COPT to the linker as well.
SANITIZE = -fsanitize=address,undefined,float-cast-overflow,float-divide-by-zero
SERVER_CC = $(shell $(PG_CONFIG) --cc)

check-sanitize: setup-test ## The extension under ASan and UBSan: behaviour and faults
	@$(MAKE) --no-print-directory dispatcher
	rm -rf build/sanitize
	mkdir -p build/sanitize/target/release
	cp -a Cargo.toml extension shared tests build/sanitize/
	cp $(BATON) $(DISPATCHER) build/sanitize/target/release/
	$(MAKE) -C build/sanitize/extension clean PG_CONFIG=$(PG_CONFIG)
	$(MAKE) -C build/sanitize/extension PG_CONFIG=$(PG_CONFIG) \
		COPT="$(SANITIZE) -fno-omit-frame-pointer"
	$(SERVER_CC) -shared -fPIC -fno-builtin -Wl,-z,initfirst \
		-o build/sanitize/asan_first.so tests/harness/asan_first.c
	BATON_TEST_FROM=tree \
		BATON_TEST_PRELOAD="$$($(SERVER_CC) -print-file-name=libasan.so) build/sanitize/asan_first.so" \
		ASAN_OPTIONS=detect_leaks=0:quarantine_size_mb=16:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 \
		$(PYTHON) -m pytest build/sanitize/tests/behaviour build/sanitize/tests/faults

fuzz: setup-test ## Fuzz for FUZZ_SECONDS (3600), from FUZZ_SEED or the clock
	@$(MAKE) --no-print-directory install
	$(WITH_SERVER) $(PYTHON) -m tests.fuzz --seconds $(FUZZ_SECONDS) $(if $(FUZZ_SEED),--seed $(FUZZ_SEED))

bench: setup-bench ## Measure against direct and PgBouncer (QUICK=1: 6 minutes)
	@$(MAKE) --no-print-directory all
	@$(MAKE) --no-print-directory run-bench

run-bench:
	PG_CONFIG=$(PG_CONFIG) python3 bench/run.py $(if $(QUICK),--quick) $(BENCH_OPTIONS)

.PHONY: bench-tls
bench-tls: setup-bench ## Measure TLS against PgBouncer's and the server's own
	@$(MAKE) --no-print-directory all
	PG_CONFIG=$(PG_CONFIG) python3 bench/tls.py $(BENCH_OPTIONS)

.PHONY: bench-strangers
bench-strangers: setup-bench ## Measure what strangers at the door cost a load beside them
	@$(MAKE) --no-print-directory all
	PG_CONFIG=$(PG_CONFIG) python3 bench/strangers.py $(BENCH_OPTIONS)

clean: ## Remove what was built
	$(MAKE) -C extension clean PG_CONFIG=$(PG_CONFIG)
	rm -rf target .venv build bench/results/scratch
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
