# SPDX-License-Identifier: MIT OR Apache-2.0
# How are the case study's programs in C built?
# Included by the root Makefile. The load generator is built with the workspace.

CASES := $(TOP)/target/cases
FLASH := $(wildcard cases/flash/*.c)

.PHONY: case-programs
case-programs: $(CASES)/flash $(CASES)/slowdisk $(CASES)/rcu

$(CASES)/flash: $(FLASH) cases/flash/flash.h
	@mkdir -p $(@D)
	$(CC) -std=gnu11 -O2 -g -Wall -Wextra -o $@ $(FLASH) -lpthread

$(CASES)/rcu: cases/rcu/rcu.c
	@mkdir -p $(@D)
	$(CC) -std=gnu11 -O2 -g -Wall -Wextra -o $@ $< -lpthread

$(CASES)/slowdisk: cases/disk/slowdisk.c
	@mkdir -p $(@D)
	$(CC) -std=gnu11 -O2 -g -Wall -Wextra -o $@ $<
