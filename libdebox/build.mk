# SPDX-License-Identifier: MIT OR Apache-2.0
# How are libdebox.so, libdebox.a and the C tests built?
# Included by the root Makefile; works alone: make -f libdebox/build.mk

TOP ?= $(abspath $(dir $(lastword $(MAKEFILE_LIST)))..)
OUT ?= $(TOP)/target/release
C_OBJ ?= $(TOP)/target/c
CC ?= cc
DEBOX_CFLAGS ?= -O2 -g
DEBOX_CPPFLAGS := -I$(TOP)/include -D_GNU_SOURCE -U_FORTIFY_SOURCE
DEBOX_WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wno-unused-parameter
DEBOX_LIBFLAGS := -std=gnu11 -fPIC -fvisibility=hidden -fexceptions -ftls-model=initial-exec

LIBDEBOX_SRC := runtime access descriptor call chain clock record names print compat trace expression watch spliced
LIBDEBOX_OBJ := $(LIBDEBOX_SRC:%=$(C_OBJ)/libdebox/%.o)
LIBDEBOX_HDR := $(wildcard $(TOP)/include/*.h $(TOP)/include/debox/*.h $(TOP)/libdebox/*.h) $(TOP)/splice/state.h

.PHONY: libdebox
libdebox: $(OUT)/libdebox.so.0 $(OUT)/libdebox.so $(OUT)/libdebox.a

# The numbers and names of this machine's system calls, from its own headers.
$(C_OBJ)/libdebox/call_names.inc:
	@mkdir -p $(@D)
	echo '#include <asm/unistd.h>' | $(CC) -E -dM - \
	| sed -n 's/^#define __NR_\([a-z0-9_]*\) \([0-9][0-9]*\)$$/\2 \1/p' | sort -n \
	| sed 's/\([0-9]*\) \(.*\)/{ \1, "\2" },/' > $@.tmp
	test -s $@.tmp && mv $@.tmp $@

# What names in conditions stand for, and the numbers of errors: the data files
# of the Rust crates.
$(C_OBJ)/libdebox/call_sets.inc: $(TOP)/crates/condition/data/calls.tsv
	@mkdir -p $(@D)
	sed -n 's/^\(also\|group\)\t\([^\t]*\)\t\(.*\)$$/{ "\2", "\3" },/p' $< > $@.tmp
	test -s $@.tmp && mv $@.tmp $@
$(C_OBJ)/libdebox/errnos.inc: $(TOP)/crates/output/data/errno.tsv
	@mkdir -p $(@D)
	sed -n 's/^\([0-9][0-9]*\)\t\(E[A-Z0-9_]*\)$$/{ "\2", \1 },/p' $< > $@.tmp
	test -s $@.tmp && mv $@.tmp $@
DEBOX_INC := $(C_OBJ)/libdebox/call_names.inc $(C_OBJ)/libdebox/call_sets.inc $(C_OBJ)/libdebox/errnos.inc

$(C_OBJ)/libdebox/%.o: $(TOP)/libdebox/%.c $(LIBDEBOX_HDR) $(DEBOX_INC)
	@mkdir -p $(@D)
	$(CC) $(DEBOX_CPPFLAGS) $(DEBOX_CFLAGS) $(DEBOX_LIBFLAGS) $(DEBOX_WARN) -I$(C_OBJ)/libdebox -c -o $@ $<

$(OUT)/libdebox.so.0: $(LIBDEBOX_OBJ) $(TOP)/libdebox/libdebox.map
	@mkdir -p $(@D)
	$(CC) $(DEBOX_CFLAGS) -shared -Wl,-soname,libdebox.so.0 -Wl,--version-script=$(TOP)/libdebox/libdebox.map \
		-Wl,-z,defs -Wl,-z,relro,-z,now -o $@ $(LIBDEBOX_OBJ)

$(OUT)/libdebox.so: $(OUT)/libdebox.so.0
	ln -sf libdebox.so.0 $@

$(OUT)/libdebox.a: $(LIBDEBOX_OBJ)
	@mkdir -p $(@D)
	rm -f $@ && $(AR) rcs $@ $^

# ---------------------------------------------------------------- tests
# C, C++ and the tests of the library: no privileges, no BPF, no broker.

C_TESTS := $(C_OBJ)/tests
TEST_HDR := $(TOP)/tests/stress/fake_broker.h $(TOP)/tests/fresh_start.h
DEBOX_LINK = -L$(OUT) -Wl,-rpath,$(OUT)
TEST_CFLAGS := $(DEBOX_CPPFLAGS) -O2 -g $(DEBOX_WARN) -Wno-clobbered
DEBOX_SAN := -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
DEBOX_SAN_OBJ := $(LIBDEBOX_SRC:%=$(C_OBJ)/san/%.o)

.PHONY: c-tests c-test-programs
c-test-programs: $(C_TESTS)/library $(C_TESTS)/library-san $(C_TESTS)/interposer $(C_TESTS)/condition $(C_TESTS)/watch $(C_TESTS)/collect $(C_TESTS)/fake_broker $(C_TESTS)/two_copies $(C_TESTS)/signals $(C_TESTS)/signals-stamps \
	$(C_TESTS)/hostile_broker $(C_TESTS)/libdebox-wrap-ub.so $(C_TESTS)/layout-c $(C_TESTS)/layout-cxx $(C_TESTS)/bracket-cxx $(C_TESTS)/compat_paper

c-tests: c-test-programs $(OUT)/libdebox-wrap.so
	$(C_TESTS)/library
	ASAN_OPTIONS=detect_stack_use_after_return=0:detect_leaks=0 $(C_TESTS)/library-san
	ASAN_OPTIONS=detect_leaks=0 $(C_TESTS)/hostile_broker 200
	ASAN_OPTIONS=detect_leaks=0 $(C_TESTS)/hostile_broker 100 5000 \
		env LD_PRELOAD=$(C_TESTS)/libdebox-wrap-ub.so ls /
	$(C_TESTS)/condition $(TOP)/tests/condition/table.txt
	$(C_TESTS)/watch
	$(C_TESTS)/interposer
	LD_PRELOAD=$(OUT)/libdebox-wrap.so $(C_TESTS)/fake_broker $(C_TESTS)/two_copies shared
	$(C_TESTS)/fake_broker $(C_TESTS)/two_copies alone
	$(C_TESTS)/signals 3
	$(C_TESTS)/signals 3 clock_gettime
	$(C_TESTS)/signals-stamps 3 steps
	$(C_TESTS)/signals-stamps 3 back
	$(C_TESTS)/collect
	$(C_TESTS)/bracket-cxx
	$(C_TESTS)/fake_broker $(C_TESTS)/compat_paper
	@echo "c-tests: all passed"

$(C_TESTS)/%: $(TOP)/tests/stress/%.c $(TEST_HDR) $(LIBDEBOX_HDR) $(OUT)/libdebox.so
	@mkdir -p $(@D)
	$(CC) $(TEST_CFLAGS) -o $@ $< $(DEBOX_LINK) -ldebox -lpthread

$(C_TESTS)/interposer $(C_TESTS)/compat_paper: $(C_TESTS)/%: $(TOP)/tests/stress/%.c $(TEST_HDR) $(LIBDEBOX_HDR) $(OUT)/libdebox-wrap.so
	@mkdir -p $(@D)
	$(CC) $(TEST_CFLAGS) -o $@ $< $(DEBOX_LINK) -ldebox-wrap -ldebox -lpthread

$(C_TESTS)/two_copies: $(TOP)/tests/stress/two_copies.c $(LIBDEBOX_HDR) $(OUT)/libdebox.a
	@mkdir -p $(@D)
	$(CC) $(TEST_CFLAGS) -o $@ $< $(OUT)/libdebox.a -lpthread

$(C_TESTS)/fake_broker: $(TOP)/tests/stress/fake_broker.c $(TEST_HDR) $(LIBDEBOX_HDR)
	@mkdir -p $(@D)
	$(CC) $(TEST_CFLAGS) -o $@ $< -lpthread

$(C_OBJ)/san/%.o: $(TOP)/libdebox/%.c $(LIBDEBOX_HDR) $(DEBOX_INC)
	@mkdir -p $(@D)
	$(CC) $(DEBOX_CPPFLAGS) -O1 -g $(DEBOX_SAN) $(DEBOX_LIBFLAGS) $(DEBOX_WARN) -I$(C_OBJ)/libdebox -c -o $@ $<

$(C_TESTS)/library-san: $(TOP)/tests/stress/library.c $(TEST_HDR) $(DEBOX_SAN_OBJ)
	@mkdir -p $(@D)
	$(CC) $(TEST_CFLAGS) -O1 $(DEBOX_SAN) -o $@ $< $(DEBOX_SAN_OBJ) -lpthread

$(C_OBJ)/san/collect.o: $(TOP)/preload/collect.c $(TOP)/preload/collect.h $(LIBDEBOX_HDR)
	@mkdir -p $(@D)
	$(CC) $(DEBOX_CPPFLAGS) -O1 -g $(DEBOX_SAN) $(DEBOX_LIBFLAGS) $(DEBOX_WARN) -c -o $@ $<

$(C_TESTS)/hostile_broker: $(TOP)/tests/stress/hostile_broker.c $(C_OBJ)/san/collect.o $(DEBOX_SAN_OBJ)
	@mkdir -p $(@D)
	$(CC) $(TEST_CFLAGS) -O1 $(DEBOX_SAN) -o $@ $< $(C_OBJ)/san/collect.o $(DEBOX_SAN_OBJ) -lpthread

# The interposer with libdebox in it; undefined behaviour traps. (Not with the
# address sanitizer, whose own start would go through the interposed functions.)
$(C_TESTS)/libdebox-wrap-ub.so: $(TOP)/preload/wrap.c $(TOP)/preload/collect.c $(LIBDEBOX_SRC:%=$(TOP)/libdebox/%.c) \
		$(TOP)/preload/calls.def $(TOP)/preload/collect.h $(LIBDEBOX_HDR) $(DEBOX_INC)
	@mkdir -p $(@D)
	$(CC) $(DEBOX_CPPFLAGS) -O1 -g -fsanitize=undefined -fsanitize-undefined-trap-on-error $(DEBOX_LIBFLAGS) \
		-fno-builtin $(DEBOX_WARN) -I$(C_OBJ)/libdebox -shared -o $@ $(filter %.c,$^) -ldl -lpthread

$(C_TESTS)/condition: $(TOP)/tests/stress/condition.c $(DEBOX_SAN_OBJ)
	@mkdir -p $(@D)
	$(CC) $(TEST_CFLAGS) -O1 $(DEBOX_SAN) -o $@ $< $(DEBOX_SAN_OBJ) -lpthread

# The library on a time stamp counter that stands still or goes back.
STAMPS := -DDEBOX_STAMP_SOURCE_=fake_stamp -include $(TOP)/tests/stress/fake_stamp.h
$(C_TESTS)/signals-stamps: $(TOP)/tests/stress/signals.c $(TOP)/tests/stress/fake_stamp.c $(TOP)/tests/stress/fake_stamp.h $(TEST_HDR) $(LIBDEBOX_SRC:%=$(TOP)/libdebox/%.c) $(LIBDEBOX_HDR) $(DEBOX_INC)
	@mkdir -p $(@D)
	$(CC) $(TEST_CFLAGS) $(STAMPS) -std=gnu11 -I$(C_OBJ)/libdebox -o $@ $< $(TOP)/tests/stress/fake_stamp.c $(LIBDEBOX_SRC:%=$(TOP)/libdebox/%.c) -lpthread

$(C_TESTS)/layout-c: $(TOP)/tests/abi/layout.c $(LIBDEBOX_HDR)
	@mkdir -p $(@D)
	$(CC) $(TEST_CFLAGS) -o $@ $<

$(C_TESTS)/layout-cxx: $(TOP)/tests/abi/layout.c $(LIBDEBOX_HDR)
	@mkdir -p $(@D)
	$(CXX) $(DEBOX_CPPFLAGS) -O2 -Wall -Wextra -x c++ -std=c++11 -o $@ $<

$(C_TESTS)/bracket-cxx: $(TOP)/tests/stress/bracket.cc $(TEST_HDR) $(LIBDEBOX_HDR) $(OUT)/libdebox.so
	@mkdir -p $(@D)
	$(CXX) $(DEBOX_CPPFLAGS) -O2 -g -Wall -Wextra -std=c++11 -o $@ $< $(DEBOX_LINK) -ldebox

# ------------------------------------------------------------- examples
C_EXAMPLES := $(patsubst $(TOP)/examples/%.c,$(OUT)/examples/c-%,$(wildcard $(TOP)/examples/*.c))
.PHONY: c-examples
c-examples: $(C_EXAMPLES)
$(OUT)/examples/c-%: $(TOP)/examples/%.c $(LIBDEBOX_HDR) $(OUT)/libdebox.so $(OUT)/libdebox-wrap.so
	@mkdir -p $(@D)
	$(CC) $(TEST_CFLAGS) -o $@ $< -L$(OUT) -Wl,-rpath,'$$ORIGIN/..' -ldebox-wrap -ldebox
