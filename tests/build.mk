# SPDX-License-Identifier: MIT OR Apache-2.0
# How are the test programs built that the Rust tests in tests/ run?
# Included by the root Makefile.

TRUTH := $(TOP)/target/truth
TEST_PROGRAMS := $(TRUTH)/callsites $(TRUTH)/callsites-static $(TRUTH)/dirfight $(TRUTH)/truth $(TRUTH)/inband $(TRUTH)/last $(TRUTH)/calls $(TRUTH)/calls-static $(TRUTH)/storm $(TRUTH)/chains $(TRUTH)/lives $(TRUTH)/oncpu $(TRUTH)/objects $(TRUTH)/stuck $(TRUTH)/locks $(TRUTH)/locks-musl $(TRUTH)/grow $(TRUTH)/gocalls $(TRUTH)/gochannel $(TRUTH)/calls-32 $(TRUTH)/traced $(TRUTH)/flood $(TRUTH)/attached $(TRUTH)/coroutines $(TRUTH)/restarted $(TRUTH)/clones $(TRUTH)/itself $(TOP)/target/proxy/proxy

.PHONY: test-programs
test-programs: $(TEST_PROGRAMS)

$(TRUTH)/truth $(TRUTH)/inband $(TRUTH)/last $(TRUTH)/flood: $(TRUTH)/%: tests/truth/%.c $(OUT)/libdebox.a $(wildcard include/*.h include/debox/*.h)
	@mkdir -p $(@D)
	$(CC) -O2 -g -Wall -Iinclude -o $@ $< $(OUT)/libdebox.a -lpthread

$(TRUTH)/traced: tests/truth/traced.c $(OUT)/libdebox.a $(wildcard include/*.h include/debox/*.h)
	@mkdir -p $(@D)
	$(CC) -O2 -g -Wall -Iinclude -o $@ $< $(OUT)/libdebox.a -lpthread

$(TRUTH)/callsites: tests/truth/callsites.c
	@mkdir -p $(@D)
	$(CC) -O2 -g -fomit-frame-pointer -Wall -o $@ $<

$(TRUTH)/callsites-static: tests/truth/callsites.c
	@mkdir -p $(@D)
	$(CC) -O2 -g -fomit-frame-pointer -static -Wall -o $@ $<

$(TRUTH)/calls $(TRUTH)/storm $(TRUTH)/chains $(TRUTH)/lives $(TRUTH)/oncpu $(TRUTH)/objects $(TRUTH)/stuck $(TRUTH)/locks $(TRUTH)/grow $(TRUTH)/dirfight: $(TRUTH)/%: tests/truth/%.c $(wildcard tests/truth/*.h)
	@mkdir -p $(@D)
	$(CC) -O2 -g -Wall -o $@ $< -lpthread

$(TRUTH)/calls-static: tests/truth/calls.c
	@mkdir -p $(@D)
	$(CC) -O2 -g -Wall -static -o $@ $< -lpthread

$(TRUTH)/attached $(TRUTH)/coroutines $(TRUTH)/restarted $(TRUTH)/clones $(TRUTH)/itself: $(TRUTH)/%: tests/splice/%.c
	@mkdir -p $(@D)
	$(CC) -O1 -g -Wall -o $@ $< -lpthread

# Another C library: package musl-tools. It has no headers of the kernel of its own.
$(TRUTH)/locks-musl: tests/truth/locks.c
	@mkdir -p $(@D)
	musl-gcc -O2 -g -Wall -idirafter /usr/include -idirafter /usr/include/x86_64-linux-gnu -static -o $@ $<

# The i386 entry: package gcc-multilib.
$(TRUTH)/calls-32: tests/truth/calls.c
	@mkdir -p $(@D)
	$(CC) -m32 -O2 -g -Wall -static -o $@ $< -lpthread

# A Go program makes its calls itself, without libc.
$(TRUTH)/gocalls $(TRUTH)/gochannel: $(TRUTH)/%: tests/truth/%.go
	@mkdir -p $(@D)
	CGO_ENABLED=0 GO111MODULE=off go build -o $@ $<

# The example that `debox kern` explains.
$(TOP)/target/proxy/proxy: examples/proxy/proxy.c
	@mkdir -p $(@D)
	$(CC) -O2 -Wall -static -o $@ $<
