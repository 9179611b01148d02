# SPDX-License-Identifier: MIT OR Apache-2.0
# How is DeBox set up, built, shown, tested, measured and installed?

TOP := $(CURDIR)
OUT := $(TOP)/target/release
PREFIX ?= /usr/local
DESTDIR ?=
export PATH := $(HOME)/.cargo/bin:$(PATH)

.DEFAULT_GOAL := help
.PHONY: help setup setup-test setup-bench build demo test bench install clean

help:
	@echo "make setup    install what building needs (Debian, Ubuntu)"
	@echo "make build    build target/release/debox, deboxd and the libraries beside them"
	@echo "make demo     set up, build, and run the main job on real input"
	@echo "make test     set up, build, and run every test (root; about 40 minutes)"
	@echo "make bench    measure what DeBox costs on this machine (docs/PERFORMANCE.md)"
	@echo "make install  install under PREFIX=$(PREFIX)"

setup:
	@setup/packages.sh build

setup-bench:
	@setup/packages.sh bench

setup-test:
	@setup/packages.sh test

include libdebox/build.mk
include preload/build.mk
include select/build.mk
include tests/build.mk

build: setup
	cargo build --release --workspace --bins
	$(MAKE) --no-print-directory libdebox libdebox-wrap libdebox-select

demo: build
	@examples/demo.sh

test: setup-test build
	tests/run.sh

bench: setup-bench build
	bench/run.sh

install: build
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/sbin $(DESTDIR)$(PREFIX)/lib \
		$(DESTDIR)$(PREFIX)/include/debox $(DESTDIR)$(PREFIX)/share/man/man1 \
		$(DESTDIR)$(PREFIX)/share/man/man3 $(DESTDIR)$(PREFIX)/share/man/man7 \
		$(DESTDIR)$(PREFIX)/share/man/man8 $(DESTDIR)$(PREFIX)/lib/systemd/system
	install $(OUT)/debox $(DESTDIR)$(PREFIX)/bin/
	install $(OUT)/deboxd $(DESTDIR)$(PREFIX)/sbin/
	install $(OUT)/libdebox.so.0 $(OUT)/libdebox-wrap.so $(OUT)/libdebox-select.so $(DESTDIR)$(PREFIX)/lib/
	ln -sf libdebox.so.0 $(DESTDIR)$(PREFIX)/lib/libdebox.so
	install -m 644 $(OUT)/libdebox.a $(DESTDIR)$(PREFIX)/lib/
	install -m 644 include/debox.h include/debox_compat.h $(DESTDIR)$(PREFIX)/include/
	install -m 644 include/debox/abi.h include/debox/protocol.h $(DESTDIR)$(PREFIX)/include/debox/
	for page in man/*.[1378]; do \
		install -m 644 $$page $(DESTDIR)$(PREFIX)/share/man/man$${page##*.}/ || exit 1; done
	for unit in systemd/deboxd.service systemd/deboxd.socket; do \
		sed 's|@SBINDIR@|$(PREFIX)/sbin|g' $$unit > $(DESTDIR)$(PREFIX)/lib/systemd/system/$${unit##*/} || exit 1; done
	@[ -n "$(DESTDIR)" ] || ldconfig || true

clean:
	cargo clean
	rm -rf target
