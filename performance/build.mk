# SPDX-License-Identifier: MIT OR Apache-2.0
# How are the C programs of the benchmarks built? make -f performance/build.mk

TOP ?= $(abspath $(dir $(lastword $(MAKEFILE_LIST)))..)
OUT ?= $(TOP)/target/release
CC ?= cc
BENCH := $(TOP)/target/bench
BENCH_HDR := $(wildcard $(TOP)/include/*.h $(TOP)/include/debox/*.h)
BENCH_CC = mkdir -p $(@D) && $(CC) -I$(TOP)/include -D_GNU_SOURCE -U_FORTIFY_SOURCE -O2 -g -Wall -Wextra \
	-o $@ $< -L$(OUT) -Wl,-rpath,$(OUT)

.PHONY: bench-c
bench-c: $(BENCH)/loops $(BENCH)/wrap_getpid $(BENCH)/threads $(BENCH)/calls

$(BENCH)/wrap_getpid: $(TOP)/performance/wrap_getpid.c $(BENCH_HDR) $(OUT)/libdebox-wrap.so
	$(BENCH_CC) -ldebox-wrap -ldebox -ldl

# Its own calls must be libc's: not linked with the interposer.
$(BENCH)/loops $(BENCH)/threads: $(BENCH)/%: $(TOP)/performance/%.c $(BENCH_HDR) $(OUT)/libdebox.so
	$(BENCH_CC) -ldebox -lpthread

# Knows nothing of DeBox: the tools of others watch it, too.
$(BENCH)/calls: $(TOP)/performance/calls.c
	mkdir -p $(@D) && $(CC) -D_GNU_SOURCE -O2 -g -Wall -Wextra -o $@ $<
