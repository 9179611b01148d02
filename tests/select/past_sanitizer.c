/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * How does the library reach libc's functions where ThreadSanitizer stands
 * between them?
 *
 * The sanitizer's own poll, close and dup treat descriptors as memory: a number
 * that one thread closes and another gets is a race to it. So a library that is
 * built with it looks its functions up in libc itself (dlsym is this, there).
 */
#include <dlfcn.h>

void *debox_libc_symbol(void *handle, const char *name) __attribute__((visibility("hidden")));
void *debox_libc_symbol(void *handle, const char *name)
{
	return dlsym(dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD), name);
}
