/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Which maps that were given out does somebody in user space still hold?
 *
 * A descriptor, a mapping, a descriptor on its way through a socket: each is a
 * file of the map, and `usercnt` counts files. Maps of maps do not count
 * there. The user side puts the ids it asks about into `maps_asked` and reads the
 * iterator to its end.
 */
#ifndef DEBOX_HELD_H
#define DEBOX_HELD_H

#include "state.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 32768);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, u32);   /* map id */
	__type(value, u32); /* 1: held */
} maps_asked SEC(".maps");

SEC("iter/bpf_map")
int maps_held(struct bpf_iter__bpf_map *ctx)
{
	struct bpf_map *map = ctx->map;
	u32 id, *held;

	if (!map)
		return 0;
	id = map->id;
	held = bpf_map_lookup_elem(&maps_asked, &id);
	if (held)
		*held = map->usercnt.counter > 0;
	return 0;
}

#endif
