# SPDX-License-Identifier: MIT OR Apache-2.0
# How is DeBox set up, built, shown, tested, measured and installed?

TOP := $(CURDIR)
OUT := $(TOP)/target/release
PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
DESTDIR ?=
export PATH := $(HOME)/.cargo/bin:$(PATH)

.DEFAULT_GOAL := help
.PHONY: help setup setup-test setup-all setup-bench setup-packages build static abi demo check test test-all fuzz soak bench install uninstall packages crates clean

help:
	@echo "make setup    install what building needs (Debian, Ubuntu)"
	@echo "make build    build target/release/debox, deboxd and the libraries beside them"
	@echo "make abi      write what is made from C headers (Rust's side of them)"
	@echo "make demo     set up, build, and run the main job on real input"
	@echo "make check    build, and run what needs neither root nor BPF (DEVELOPING.md)"
	@echo "make test     set up, build, and run what must pass before a change lands (root)"
	@echo "make test-all run every test there is (root; about 40 minutes)"
	@echo "make fuzz     look for inputs that break something: SECONDS=60 for each target (docs/fuzzing.md)"
	@echo "make soak     leave it on under storms, kills and a full disk: MINUTES=90 (root; docs/RELIABILITY.md)"
	@echo "make bench    measure what DeBox costs here, and what the kernel does (docs/PERFORMANCE.md, docs/bench.md)"
	@echo "make install  install under PREFIX=$(PREFIX) (DESTDIR, LIBDIR: as usual)"
	@echo "make uninstall  take away what install put there"
	@echo "make static   build the programs so that they need no library of the machine they run on"
	@echo "make packages build Debian and RPM packages, a tarball for any distribution and an image of the agent in target/packages (docs/packages.md)"
	@echo "make crates   build what \`cargo publish\` would upload, in target/crates (docs/packages.md); it uploads nothing"

setup:
	@setup/packages.sh build

setup-bench:
	@setup/packages.sh bench

setup-test:
	@setup/packages.sh test

setup-all:
	@setup/packages.sh all

setup-packages:
	@setup/packages.sh packages

include libdebox/build.mk
include preload/build.mk
include splice/build.mk
include libdebox-select/build.mk
include cases/build.mk
include tests/build.mk

build: setup
	cargo build --release --workspace --bins
	$(MAKE) --no-print-directory -j$(shell nproc) libdebox libdebox-wrap splice-runtime libdebox-select

# With the C library and all others within. A target is named, so that what runs while
# it is built (macros of Rust's compiler) is not linked so. Of no program symbols are kept.
STATIC := x86_64-unknown-linux-gnu
# Where each pointer in the data is takes 1 MB, and packed (DT_RELR) a tenth of that: a glibc that applies
# them within a static program is 2.36 or later.
PACKED = $(shell getconf GNU_LIBC_VERSION 2>/dev/null | awk '{ split($$2, v, "."); if (v[1] > 2 || v[2] >= 36) print "-C link-arg=-Wl,-z,pack-relative-relocs" }')
static: setup
	RUSTFLAGS="-C target-feature=+crt-static $(PACKED)" CARGO_PROFILE_RELEASE_DEBUG=false \
		LIBBPF_SYS_LIBRARY_PATH=$(dir $(shell $(CC) -print-file-name=libelf.a)) cargo build --release --workspace --bins --features debox-probe/static --target $(STATIC)

abi:
	DEBOX_ABI_WRITE=1 cargo test -q -p debox-abi --test generated

demo: build
	@examples/demo.sh

check: build
	tests/run.py check

test: setup-test build
test-all: setup-all build
test test-all:
	tests/run.py $@

SECONDS ?= 60
fuzz: setup
	fuzz/run.sh -s $(SECONDS)

MINUTES ?= 90
soak: setup-test build
	MINUTES=$(MINUTES) tests/soak.py

bench: setup-bench build
	performance/run.sh

# Built first, unless somebody else has: `sudo make install` needs no compiler
# of root's own.
BUILT_BY_ANOTHER := $(shell [ ! -e $(OUT)/debox ] || [ -O $(OUT)/debox ] || echo yes)

install: $(if $(BUILT_BY_ANOTHER),,build)
	@PREFIX=$(PREFIX) LIBDIR=$(LIBDIR) DESTDIR=$(DESTDIR) OUT=$(OUT) setup/install.sh install

uninstall:
	@PREFIX=$(PREFIX) LIBDIR=$(LIBDIR) DESTDIR=$(DESTDIR) OUT=$(OUT) setup/install.sh uninstall

packages: setup-packages build static
	@OUT=$(OUT) setup/pack.sh

crates: build
	setup/crates.py

clean:
	cargo clean
	rm -rf target
