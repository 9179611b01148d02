# SPDX-License-Identifier: MIT OR Apache-2.0
# How is the interposer libdebox-wrap.so built?
# Included by the root Makefile after libdebox/build.mk; works alone too.

ifndef LIBDEBOX_SRC
include $(abspath $(dir $(lastword $(MAKEFILE_LIST)))..)/libdebox/build.mk
endif

WRAP_OBJ := $(C_OBJ)/preload/wrap.o $(C_OBJ)/preload/collect.o

.PHONY: libdebox-wrap
libdebox-wrap: libdebox $(OUT)/libdebox-wrap.so

$(C_OBJ)/preload/%.o: $(TOP)/preload/%.c $(TOP)/preload/calls.def $(TOP)/preload/collect.h $(LIBDEBOX_HDR)
	@mkdir -p $(@D)
	$(CC) $(DEBOX_CPPFLAGS) $(DEBOX_CFLAGS) $(DEBOX_LIBFLAGS) -fno-builtin $(DEBOX_WARN) -c -o $@ $<

# libdebox.so.0 is found beside it, so that a program linked with -ldebox and
# its preloaded interposer share one state.
$(OUT)/libdebox-wrap.so: $(WRAP_OBJ) $(OUT)/libdebox.so.0
	$(CC) $(DEBOX_CFLAGS) -shared -Wl,-soname,libdebox-wrap.so -Wl,-rpath,'$$ORIGIN' -Wl,-z,defs \
		-Wl,-z,relro,-z,now -Wl,--no-as-needed -o $@ $(WRAP_OBJ) $(OUT)/libdebox.so.0 -ldl
