/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What is the path of a file at this moment?
 *
 * Its names are read from the leaf to the root, over mount points, and written from
 * the end of a buffer towards its beginning. The path is that of the file's own
 * mount namespace. Where the names do not fit, or one is being changed, the front
 * is missing, and the text does not begin with '/'.
 *
 * Whoever asks holds the RCU read lock (all BPF programs do), so directories and
 * names that are replaced meanwhile are not freed; a name that changed while it
 * was copied is not taken.
 */
#ifndef DEBOX_PATH_H
#define DEBOX_PATH_H

#include "state.h"

/* Names and mount points together. */
#define PATH_PARTS 128u

/* On its way from the leaf to the root. Programs that ask run with preemption off:
 * one for each CPU is enough, and one for an interrupt that comes in the midst. */
#define PATH_WALKS 2u
struct path_walk {
	u64 dentry;
	u64 mnt;
	u64 root; /* of the mount */
	u32 at;
	u32 whole;
	u32 which;
	u32 reserved;
	char text[2 * 256]; /* DEBOX_PATH_LEN of it; the verifier knows powers of two */
};
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, PATH_WALKS);
	__type(key, u32);
	__type(value, struct path_walk);
} path_walks SEC(".maps");

static __always_inline struct path_walk *path_walk_here(u32 which)
{
	struct path_walk *w = bpf_map_lookup_elem(&path_walks, &which);

	if (w)
		w->which = which;
	return w;
}

/* One name, or one mount point; 1: it was the last. */
static long path_part(u32 i, void *which)
{
	struct path_walk *w = path_walk_here(*(u32 *)which);
	struct qstr name = {}, again = {};
	struct dentry *dentry, *parent;
	u32 length, at;

	if (!w)
		return 1;
	dentry = (struct dentry *)w->dentry;
	parent = BPF_CORE_READ(dentry, d_parent);
	if (w->dentry == w->root || dentry == parent) {
		struct vfsmount *mnt = (struct vfsmount *)w->mnt;
		struct mount *mount =
			(struct mount *)((char *)mnt - bpf_core_field_offset(struct mount, mnt));
		struct mount *above = BPF_CORE_READ(mount, mnt_parent);

		if (!above || above == mount) {
			w->whole = 1;
			return 1;
		}
		w->dentry = (u64)BPF_CORE_READ(mount, mnt_mountpoint);
		mnt = (struct vfsmount *)((char *)above + bpf_core_field_offset(struct mount, mnt));
		w->mnt = (u64)mnt;
		w->root = (u64)BPF_CORE_READ(mnt, mnt_root);
		return 0;
	}
	bpf_core_read(&name, sizeof(name), &dentry->d_name);
	length = name.hash_len >> 32;
	at = w->at;
	if (!length || length > 255 || at >= DEBOX_PATH_LEN)
		return 1;
	if (at < length + 1) {
		/* Its end, as far as there is room. */
		if (!bpf_probe_read_kernel(w->text, at & 255, name.name + (length - at)))
			w->at = 0;
		bpf_core_read(&again, sizeof(again), &dentry->d_name);
		if (again.hash_len != name.hash_len || again.name != name.name)
			w->at = at;
		return 1;
	}
	at -= length;
	if (bpf_probe_read_kernel(&w->text[at & 255], length & 255, name.name))
		return 1;
	bpf_core_read(&again, sizeof(again), &dentry->d_name);
	if (again.hash_len != name.hash_len || again.name != name.name)
		return 1;
	at--;
	w->text[at & 255] = '/';
	w->at = at;
	w->dentry = (u64)parent;
	return 0;
}

/* Leaves the path in w->text, from w->at to DEBOX_PATH_LEN - 1. */
static __always_inline void path_write(struct path_walk *w, u64 mnt, u64 dentry)
{
	u32 which = w->which;

	w->dentry = dentry;
	w->mnt = mnt;
	w->root = (u64)BPF_CORE_READ((struct vfsmount *)mnt, mnt_root);
	w->at = DEBOX_PATH_LEN - 1;
	w->whole = 0;
	w->text[DEBOX_PATH_LEN - 1] = 0;
	bpf_loop(PATH_PARTS, path_part, &which, 0);
	if (w->whole && w->at == DEBOX_PATH_LEN - 1) {
		w->at--;
		w->text[DEBOX_PATH_LEN - 2] = '/';
	}
	/* Without its first part it must not look like a path from the root. */
	if (!w->whole && w->at < DEBOX_PATH_LEN - 1 && w->text[w->at & 255] == '/')
		w->at++;
}

static __always_inline void path_copy(char *to, struct path_walk *w)
{
	u32 at = w->at & 255, length;

	if (at >= DEBOX_PATH_LEN)
		return;
	length = DEBOX_PATH_LEN - at;
	barrier_var(length);
	if (length > DEBOX_PATH_LEN)
		return;
	bpf_probe_read_kernel(to, length, &w->text[at]);
}

#endif
