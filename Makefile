# Everything a person needs to run by name. Each target installs what it lacks, from package registries alone;
# a second run finds it there.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# Queries are checked against what lies in .sqlx/, so that building needs no database.
export SQLX_OFFLINE := true
# Where rustup puts cargo, for a shell that was opened before.
export PATH := $(PATH):$(HOME)/.cargo/bin
# Tests wait more than they compute.
export RUST_TEST_THREADS ?= 4
# Random tests find the same every time; `make random` rolls another seed.
export PROPTEST_RNG_SEED ?= 4
# Whatever database a developer works with is none of these targets' business.
unexport DATABASE_URL

.PHONY: help
help: ## Say what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## Start the whole thing: database, a bank, a clock, notes, the service
	@.ci/install rust postgres python node
	@.ci/demo-servers .chatelaine/venv
	@web/build.sh || echo "demo: going on without the web client, see above" >&2
	@echo "demo: building; the first time this takes some minutes"
	@cargo build --quiet --bin chatelaine --example bank --example notes
	@CHATELAINE_LOG="$${CHATELAINE_LOG:-warn}" exec "$${CARGO_TARGET_DIR:-target}/debug/chatelaine" demo

.PHONY: test
test: ## Run every test, with real servers and a real Postgres
	@.ci/install rust postgres python node ps
	@tests/servers/install.sh & servers=$$!; built=0; \
	  web/build.sh || echo "test: going on without the web client, see above" >&2; \
	  cargo test --no-run || built=$$?; \
	  wait $$servers && exit $$built
	cargo test
	CHATELAINE_TEST_POOLER=direct cargo test --test it -- $(BEHIND_POOLER)
	CHATELAINE_TEST_POOLER=off cargo test --test it -- turn::listening

# The modules that are tried once more with a pooler before Postgres: turns, consent, sign-ins, events, two replicas.
BEHIND_POOLER := turn:: approvals::deciding approvals::entry_points oauth::login api::events recovery::stop

.PHONY: random
random: ## Run the random tests with a seed that is rolled and printed
	@.ci/install rust postgres python node ps
	@tests/servers/install.sh
	.ci/random

.PHONY: web
web: ## Build the web client, for the next cargo build to embed
	@.ci/install node
	@web/build.sh

.PHONY: test-web
test-web: ## Try the web client in Chromium and its core in Firefox, against the demo
	@.ci/install rust postgres node chromium firefox
	@web/build.sh
	cargo build --bin chatelaine --example bank --example notes
	web/test/run.sh

.PHONY: pictures
pictures: ## Take the pictures of the README anew, after the page changed
	@.ci/install rust postgres node chromium
	@web/build.sh
	cargo build --bin chatelaine --example bank --example notes
	PROGRAM=$${CARGO_TARGET_DIR:-$(CURDIR)/target}/debug/chatelaine PICTURES=docs/pictures \
	  node --test web/test/pictures.test.mjs

.PHONY: frontends
frontends: ## Try the real Open WebUI in Chromium, in front of the demo; installs several gigabytes
	@.ci/install rust postgres python node chromium
	@web/build.sh
	cargo build --bin chatelaine --example bank --example notes
	tests/frontends/run.sh

.PHONY: repeats
repeats: ## Let clients from npm and PyPI repeat what fails by themselves; no tool may run twice for it
	@.ci/install rust postgres python node
	cargo build --bin chatelaine
	tests/frontends/repeats/run.sh

.PHONY: lighthouse
lighthouse: ## Measure how fast the web client's chat opens; needs a machine that is not busy
	@.ci/install rust postgres node chromium
	@web/build.sh
	cargo build --bin chatelaine --example bank --example notes
	PROGRAM=$${CARGO_TARGET_DIR:-$(CURDIR)/target}/debug/chatelaine node web/test/lighthouse.mjs

.PHONY: test-upgrade
test-upgrade: ## Replace the release PREVIOUS (a tag or commit) by this one under load, and back
	@.ci/install rust postgres python
	tests/upgrade/run.sh

.PHONY: test-citus
test-citus: ## Try the service on Citus, on one node and on three; CITUS_SOURCE is a checkout of it
	@.ci/install rust postgres python
	tests/citus/run.sh $(FILTERS)

.PHONY: torture
torture: ## Kill, freeze, crash, cut and garble while 10,000 calls wait for consent
	@.ci/install rust postgres ps
	CHATELAINE_TORTURE=$${CHATELAINE_TORTURE:-10000:100} cargo test --test it -- --exact --nocapture \
	  torture::nothing_runs_twice_or_without_consent_whatever_fails

.PHONY: soak
soak: ## Flood one process with hostile servers, guests and models for MINUTES (10), beside honest users
	@.ci/install rust postgres python node ps
	@tests/servers/install.sh
	cargo build --release --bin chatelaine
	CHATELAINE_SOAK=$${MINUTES:-10} \
	  CHATELAINE_TEST_PROGRAM=$${CARGO_TARGET_DIR:-$(CURDIR)/target}/release/chatelaine \
	  cargo test --test it -- --exact --nocapture \
	  soak::floods_cost_nobody_else_anything_and_leave_nothing_behind

.PHONY: test-alerts
test-alerts: ## Check the alert rules with promtool, and make each alert fire by its fault in a real Prometheus
	@.ci/install rust postgres python prometheus
	promtool check rules deploy/prometheus/alerts.yml
	promtool check config deploy/prometheus/prometheus.yml
	promtool test rules deploy/prometheus/alerts.test.yml
	cargo build --bin chatelaine
	tests/alerts/run.py $${CARGO_TARGET_DIR:-$(CURDIR)/target}/debug/chatelaine

.PHONY: soak-company
soak-company: ## Live through MINUTES (60) of a company: 2,000 users, faults, a rotation and an upgrade; all stays flat
	@.ci/install rust postgres
	cargo build --release --bin chatelaine
	CHATELAINE_SOAK_COMPANY=$${MINUTES:-60} \
	  CHATELAINE_TEST_PROGRAM=$${CHATELAINE_TEST_PROGRAM:-$${CARGO_TARGET_DIR:-$(CURDIR)/target}/release/chatelaine} \
	  cargo test --test it -- --exact --nocapture \
	  torture::company::an_hour_of_a_company_leaves_everything_flat

.PHONY: cluster
cluster: ## Let Postgres fail over under load: Patroni, etcd, HAProxy, three replicas, PgBouncer of PGBOUNCER_SOURCE
	@.ci/install rust postgres python cluster
	cargo build --bin chatelaine
	tests/cluster/run.sh $${CARGO_TARGET_DIR:-$(CURDIR)/target}/debug/chatelaine

.PHONY: torture-oauth
torture-oauth: ## Kill replicas while the tokens of 200 users end every five seconds
	@.ci/install rust postgres
	CHATELAINE_TORTURE_OAUTH=$${CHATELAINE_TORTURE_OAUTH:-200:3:180} cargo test --test it -- --exact --nocapture \
	  oauth::crowd::every_token_is_refreshed_once_in_its_life_and_none_is_lost_whatever_fails

.PHONY: conformance
conformance: ## Run the official conformance suite against our client and our MCP endpoint
	@.ci/install rust node postgres
	cargo build --bin chatelaine --example conformance
	.ci/conformance

.PHONY: fuzz
fuzz: ## Let fuzzers try the parsers, FUZZ_SECONDS (60) each; needs a nightly toolchain and cargo-fuzz
	@command -v cargo-fuzz >/dev/null || { echo "fuzz: cargo install cargo-fuzz" >&2; exit 1; }
	for target in $$(cargo +nightly fuzz list); do \
	  mkdir -p fuzz/corpus/$$target; \
	  cargo +nightly fuzz run $$target fuzz/corpus/$$target fuzz/seeds/$$target -- -max_total_time=$${FUZZ_SECONDS:-60}; \
	done

.PHONY: fuzz-api
fuzz-api: ## Try the API with what its own document describes, as nobody, as a user and as an admin
	@.ci/install rust postgres python
	@tests/servers/install.sh
	.ci/fuzz-api

.PHONY: clients
clients: ## Generate clients for Python, TypeScript, Go and Java, and let each send a message and a file
	@.ci/install rust postgres python node java
	cargo build --bin chatelaine --example bank --example notes
	tests/clients/run.sh

.PHONY: sdks
sdks: ## Read the requests that tests send to models with the types of the SDKs of OpenAI, Anthropic and Google
	@.ci/install rust postgres python node ps
	@tests/servers/install.sh
	tests/sdks/run.sh

.PHONY: lint
lint: ## Format, clippy, documentation, dependencies, queries
	@.ci/install rust postgres
	cargo fmt --all --check
	.ci/sqlx --check
	RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --workspace
	.ci/deny

.PHONY: bench
bench: ## Measure the performance figures
	@.ci/install rust postgres
	cargo bench

.PHONY: sqlx
sqlx: ## Write .sqlx/ anew, after a query or a migration changed
	@.ci/install rust postgres
	.ci/sqlx

.PHONY: check-sqlx
check-sqlx: ## Clippy, which fails also when .sqlx/ is not what the queries and migrations say
	@.ci/install rust postgres
	.ci/sqlx --check
