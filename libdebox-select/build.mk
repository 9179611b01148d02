# SPDX-License-Identifier: MIT OR Apache-2.0
# How are libdebox-select.so and its tests built?
# Included by the root Makefile after libdebox/build.mk; works alone too.

ifndef LIBDEBOX_SRC
include $(abspath $(dir $(lastword $(MAKEFILE_LIST)))..)/libdebox/build.mk
endif

SELECT_SRC := real shared process context wait poll select entry track statistics tree measure
SELECT_OBJ := $(SELECT_SRC:%=$(C_OBJ)/select/%.o)
SELECT_HDR := $(wildcard $(TOP)/libdebox-select/*.h) $(TOP)/libdebox/sys.h

.PHONY: libdebox-select
libdebox-select: $(OUT)/libdebox-select.so

$(C_OBJ)/select/%.o: $(TOP)/libdebox-select/%.c $(SELECT_HDR)
	@mkdir -p $(@D)
	$(CC) $(DEBOX_CPPFLAGS) $(DEBOX_CFLAGS) $(DEBOX_LIBFLAGS) -fno-builtin-fclose $(DEBOX_WARN) -c -o $@ $<

$(OUT)/libdebox-select.so: $(SELECT_OBJ) $(TOP)/libdebox-select/libdebox-select.map
	@mkdir -p $(@D)
	$(CC) $(DEBOX_CFLAGS) -shared -Wl,-soname,libdebox-select.so -Wl,-z,defs -Wl,-z,relro,-z,now \
		-Wl,--version-script=$(TOP)/libdebox-select/libdebox-select.map -o $@ $(SELECT_OBJ) -ldl -lpthread

# ---------------------------------------------------------------- tests
SELECT_TESTS := $(C_OBJ)/tests/select
SELECT_SAN := -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
# The longer, the better: SELECT_STEPS=1000000 for a soak.
SELECT_STEPS ?= 3000
SELECT_SEED ?= $$(date +%s)
SELECT_RUN = LD_PRELOAD=$(OUT)/libdebox-select.so nice timeout 3000

.PHONY: select-tests select-test-programs
select-test-programs: $(SELECT_TESTS)/differential $(SELECT_TESTS)/semantics $(SELECT_TESTS)/tree

$(SELECT_TESTS)/%: $(TOP)/tests/select/%.c $(TOP)/libdebox/sys.h $(TOP)/tests/fresh_start.h
	@mkdir -p $(@D)
	$(CC) $(DEBOX_CPPFLAGS) -O2 -g $(DEBOX_WARN) -Wno-clobbered -o $@ $< -lpthread

$(SELECT_TESTS)/tree: $(TOP)/tests/select/tree.c $(C_OBJ)/select/tree.o $(C_OBJ)/select/measure.o $(SELECT_HDR)
	@mkdir -p $(@D)
	$(CC) $(DEBOX_CPPFLAGS) -O2 -g $(DEBOX_WARN) -o $@ $< $(C_OBJ)/select/tree.o $(C_OBJ)/select/measure.o -lpthread

# The library with the sanitizers of addresses and of undefined behaviour; without
# the first where the sanitizer itself comes by before it is set up.
$(SELECT_TESTS)/sanitized/%.o: $(TOP)/libdebox-select/%.c $(SELECT_HDR)
	@mkdir -p $(@D)
	$(CC) $(DEBOX_CPPFLAGS) -O1 -g $(if $(filter real track,$*),$(filter-out -fsanitize=%,$(SELECT_SAN)) -fsanitize=undefined,$(SELECT_SAN)) \
		$(DEBOX_LIBFLAGS) -fno-builtin-fclose $(DEBOX_WARN) -c -o $@ $<

$(SELECT_TESTS)/sanitized/libdebox-select.so: $(SELECT_SRC:%=$(SELECT_TESTS)/sanitized/%.o)
	$(CC) $(SELECT_SAN) -shared -Wl,--version-script=$(TOP)/libdebox-select/libdebox-select.map -o $@ $^ -ldl -lpthread

# The library with the sanitizer of threads: without it where that comes by itself
# before it is set up. Loaded before the sanitizer: what runs inside of the
# sanitizer's own poll is synchronized with nothing, to it.
SELECT_TSAN := $(SELECT_TESTS)/threads
$(SELECT_TSAN)/%.o: $(TOP)/libdebox-select/%.c $(SELECT_HDR)
	@mkdir -p $(@D)
	$(CC) $(DEBOX_CPPFLAGS) -O1 -g $(if $(filter real,$*),-Ddlsym=debox_libc_symbol,$(if $(filter track,$*),,-fsanitize=thread)) \
		$(DEBOX_LIBFLAGS) -fno-builtin-fclose $(DEBOX_WARN) -c -o $@ $<

$(SELECT_TSAN)/past_sanitizer.o: $(TOP)/tests/select/past_sanitizer.c
	@mkdir -p $(@D)
	$(CC) $(DEBOX_CPPFLAGS) -O1 -g $(DEBOX_LIBFLAGS) $(DEBOX_WARN) -c -o $@ $<

$(SELECT_TSAN)/libdebox-select.so: $(SELECT_SRC:%=$(SELECT_TSAN)/%.o) $(SELECT_TSAN)/past_sanitizer.o
	$(CC) -fsanitize=thread -shared -Wl,--version-script=$(TOP)/libdebox-select/libdebox-select.map -o $@ $^ -ldl -lpthread

SELECT_TSAN_RUN = nice timeout 3000 env DEBOX_SELECT=threshold=4,recheck=1 \
	TSAN_OPTIONS=suppressions=$(TOP)/tests/select/tsan.supp \
	LD_PRELOAD="$(SELECT_TSAN)/libdebox-select.so $$($(CC) -print-file-name=libtsan.so)"

# One rule lowers the machine's limit of epoll watches for a moment: nothing else
# that uses epoll may run beside it.
SELECT_ALONE := no_watches_left
SELECT_SEMANTICS := $(SELECT_TESTS)/semantics -x $(SELECT_ALONE)

SELECT_SAN_STEPS ?= 1000
SELECT_SAN_RUN = nice timeout 3000 env ASAN_OPTIONS=detect_leaks=0 DEBOX_SELECT=threshold=4,recheck=1 \
	LD_PRELOAD="$$($(CC) -print-file-name=libasan.so) $(SELECT_TESTS)/sanitized/libdebox-select.so"
.PHONY: select-sanitize
select-sanitize: select-test-programs $(SELECT_TESTS)/sanitized/libdebox-select.so $(SELECT_TSAN)/libdebox-select.so
	$(SELECT_SAN_RUN) $(SELECT_TESTS)/differential -l -s $(SELECT_SEED) -n $(SELECT_SAN_STEPS)
	$(SELECT_SAN_RUN) $(SELECT_TESTS)/differential -l -s $(SELECT_SEED) -n $(SELECT_SAN_STEPS) -t 3 -i
	$(SELECT_SAN_RUN) $(SELECT_TESTS)/differential -l -s $(SELECT_SEED) -n $(SELECT_SAN_STEPS) -t 3 -o
	$(SELECT_SAN_RUN) $(SELECT_TESTS)/differential -l -s $(SELECT_SEED) -n $(SELECT_SAN_STEPS) -f
	$(SELECT_SAN_RUN) $(SELECT_TESTS)/differential -l -s $(SELECT_SEED) -n $(SELECT_SAN_STEPS) -u
# The sanitizer aborts when a thread is cancelled in instrumented code, and its own
# handlers of signals are why the first SIGSTOP counts as an interruption.
	$(SELECT_SAN_RUN) $(SELECT_SEMANTICS) -l -x cancellation -x stopped_and_continued
	$(SELECT_TSAN_RUN) $(SELECT_TESTS)/differential -l -s $(SELECT_SEED) -n $(SELECT_SAN_STEPS) -t 3
	$(SELECT_TSAN_RUN) $(SELECT_TESTS)/differential -l -s $(SELECT_SEED) -n $(SELECT_SAN_STEPS) -t 3 -o
# Not -i: signals come to threads that it has not set up.
# It stands still over a bad pointer, wants memory itself where there is none, has
# handlers of its own, as above, and runs the program's only after epoll_pwait2.
	$(SELECT_TSAN_RUN) $(SELECT_SEMANTICS) -l -x bad_memory -x memory_runs_out -x stopped_and_continued \
		-x closed_on_the_way

SELECT_FUZZ = $(SELECT_RUN) $(SELECT_TESTS)/differential -l -s $(SELECT_SEED) -n $(SELECT_STEPS)
# A recheck that never comes: what it would make good shows.
SELECT_WAKE_UPS = recheck=3600000
select-tests: select-test-programs $(OUT)/libdebox-select.so select-sanitize
	$(SELECT_TESTS)/tree
	$(SELECT_SEMANTICS)
# A recheck so late that the first EINTR is the real call's, and the next wait epoll's.
	DEBOX_SELECT=threshold=4,recheck=150 $(SELECT_RUN) $(SELECT_TESTS)/semantics -l stopped_with_a_handler
	DEBOX_SELECT= $(SELECT_RUN) $(SELECT_SEMANTICS) -l
	DEBOX_SELECT=threshold=1 $(SELECT_RUN) $(SELECT_SEMANTICS) -l
	DEBOX_SELECT=$(SELECT_WAKE_UPS) $(SELECT_RUN) $(SELECT_SEMANTICS) -l -w
	DEBOX_SELECT=threshold=4 $(SELECT_FUZZ)
	DEBOX_SELECT= $(SELECT_FUZZ)
	DEBOX_SELECT=threshold=4,$(SELECT_WAKE_UPS) $(SELECT_FUZZ) -i
	DEBOX_SELECT=threshold=4,$(SELECT_WAKE_UPS) $(SELECT_FUZZ) -t 3
	DEBOX_SELECT=threshold=4 $(SELECT_FUZZ) -t 3
	DEBOX_SELECT=threshold=4,$(SELECT_WAKE_UPS) $(SELECT_FUZZ) -t 3 -o
	DEBOX_SELECT=threshold=4,recheck=1 $(SELECT_FUZZ) -t 3 -o -u
	DEBOX_SELECT=threshold=4 $(SELECT_FUZZ) -f
	DEBOX_SELECT=threshold=4,recheck=1 $(SELECT_FUZZ) -u
	@echo "select-tests: all passed"

.PHONY: select-tests-alone
select-tests-alone: select-test-programs $(OUT)/libdebox-select.so $(SELECT_TESTS)/sanitized/libdebox-select.so $(SELECT_TSAN)/libdebox-select.so
	$(SELECT_TESTS)/semantics $(SELECT_ALONE)
	DEBOX_SELECT= $(SELECT_RUN) $(SELECT_TESTS)/semantics -l $(SELECT_ALONE)
	DEBOX_SELECT=threshold=1 $(SELECT_RUN) $(SELECT_TESTS)/semantics -l $(SELECT_ALONE)
	DEBOX_SELECT=$(SELECT_WAKE_UPS) $(SELECT_RUN) $(SELECT_TESTS)/semantics -l -w $(SELECT_ALONE)
	$(SELECT_SAN_RUN) $(SELECT_TESTS)/semantics -l $(SELECT_ALONE)
	$(SELECT_TSAN_RUN) $(SELECT_TESTS)/semantics -l $(SELECT_ALONE)
