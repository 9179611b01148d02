# SPDX-License-Identifier: MIT OR Apache-2.0
# How are libdebox-select.so and its tests built?
# Included by the root Makefile after libdebox/build.mk; works alone too.

ifndef LIBDEBOX_SRC
include $(abspath $(dir $(lastword $(MAKEFILE_LIST)))..)/libdebox/build.mk
endif

SELECT_SRC := real process context wait poll select entry track statistics tree
SELECT_OBJ := $(SELECT_SRC:%=$(C_OBJ)/select/%.o)
SELECT_HDR := $(wildcard $(TOP)/select/*.h) $(TOP)/libdebox/sys.h

.PHONY: libdebox-select
libdebox-select: $(OUT)/libdebox-select.so

$(C_OBJ)/select/%.o: $(TOP)/select/%.c $(SELECT_HDR)
	@mkdir -p $(@D)
	$(CC) $(DEBOX_CPPFLAGS) $(DEBOX_CFLAGS) $(DEBOX_LIBFLAGS) -fno-builtin-fclose $(DEBOX_WARN) -c -o $@ $<

$(OUT)/libdebox-select.so: $(SELECT_OBJ) $(TOP)/select/libdebox-select.map
	@mkdir -p $(@D)
	$(CC) $(DEBOX_CFLAGS) -shared -Wl,-soname,libdebox-select.so -Wl,-z,defs -Wl,-z,relro,-z,now \
		-Wl,--version-script=$(TOP)/select/libdebox-select.map -o $@ $(SELECT_OBJ) -ldl -lpthread

# ---------------------------------------------------------------- tests
SELECT_TESTS := $(C_OBJ)/tests/select
SELECT_SAN := -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
# The longer, the better: SELECT_STEPS=1000000 for a soak.
SELECT_STEPS ?= 3000
SELECT_SEED ?= $$(date +%s)
SELECT_RUN = LD_PRELOAD=$(OUT)/libdebox-select.so nice timeout 3000

.PHONY: select-tests select-test-programs
select-test-programs: $(SELECT_TESTS)/differential $(SELECT_TESTS)/semantics

$(SELECT_TESTS)/%: $(TOP)/tests/select/%.c $(TOP)/libdebox/sys.h
	@mkdir -p $(@D)
	$(CC) $(DEBOX_CPPFLAGS) -O2 -g $(DEBOX_WARN) -Wno-clobbered -o $@ $< -lpthread

select-tests: select-test-programs $(OUT)/libdebox-select.so
	$(SELECT_TESTS)/semantics
	DEBOX_SELECT= $(SELECT_RUN) $(SELECT_TESTS)/semantics
	DEBOX_SELECT=threshold=1 $(SELECT_RUN) $(SELECT_TESTS)/semantics
	DEBOX_SELECT=threshold=4 $(SELECT_RUN) $(SELECT_TESTS)/differential -s $(SELECT_SEED) -n $(SELECT_STEPS)
	DEBOX_SELECT= $(SELECT_RUN) $(SELECT_TESTS)/differential -s $(SELECT_SEED) -n $(SELECT_STEPS)
	DEBOX_SELECT=threshold=4 $(SELECT_RUN) $(SELECT_TESTS)/differential -s $(SELECT_SEED) -n $(SELECT_STEPS) -i
	DEBOX_SELECT=threshold=4 $(SELECT_RUN) $(SELECT_TESTS)/differential -s $(SELECT_SEED) -n $(SELECT_STEPS) -t 3
	DEBOX_SELECT=threshold=4 $(SELECT_RUN) $(SELECT_TESTS)/differential -s $(SELECT_SEED) -n $(SELECT_STEPS) -f
	DEBOX_SELECT=threshold=4,recheck=1 $(SELECT_RUN) $(SELECT_TESTS)/differential -s $(SELECT_SEED) -n $(SELECT_STEPS) -u
	tests/select/run.sh
	@echo "select-tests: all passed"
