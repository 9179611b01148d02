# SPDX-License-Identifier: MIT OR Apache-2.0
# How is the runtime of splice capture built?
# Included by the root Makefile after libdebox/build.mk; works alone too.

ifndef LIBDEBOX_SRC
include $(abspath $(dir $(lastword $(MAKEFILE_LIST)))..)/libdebox/build.mk
endif

SPLICE_CFLAGS := -std=gnu11 -O2 -g -ffreestanding -fno-builtin -fpie -mcmodel=small -fvisibility=hidden \
	-mgeneral-regs-only -mno-red-zone -fno-stack-protector -fcf-protection=none -fno-asynchronous-unwind-tables \
	-fno-tree-loop-distribute-patterns -fno-jump-tables -U_FORTIFY_SOURCE

.PHONY: splice-runtime
splice-runtime: $(OUT)/debox-splice.bin

$(C_OBJ)/splice/runtime.elf: $(TOP)/splice/runtime.c $(TOP)/splice/call_site.h $(TOP)/bpf/unwind_row.h $(TOP)/splice/state.h $(TOP)/splice/runtime.ld $(TOP)/libdebox/sys.h
	@mkdir -p $(@D)
	$(CC) $(SPLICE_CFLAGS) $(DEBOX_WARN) -c -o $(C_OBJ)/splice/runtime.o $<
	$(CC) -nostdlib -static -Wl,--build-id=none,--no-relax -Wl,-T,$(TOP)/splice/runtime.ld -o $@ $(C_OBJ)/splice/runtime.o

# Begins with splice_entry_begin.
$(OUT)/debox-splice.bin: $(C_OBJ)/splice/runtime.elf
	objcopy -O binary --only-section=.text $< $@
	@# SPLICE_RUNTIME_BYTES of bpf/state.h
	@test $$(stat -c %s $@) -le 24576
