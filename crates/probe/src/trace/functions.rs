// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which functions does a trace mean, and which of them can be traced here?

use std::collections::HashMap;

use debox_labels::glob;

/// What the layers of a system call are called, outermost first: the default
/// where hundreds of functions cost no more to attach than one. Helpers that
/// are called at every turn are left out, for each entry costs time.
pub const PATTERNS: &str = "ksys_*,do_sys_*,__do_sys_*,do_filp_open,path_openat,link_path_walk*,\
walk_component,lookup_fast,__lookup_slow,lookup_open*,do_open,vfs_*,rw_verify_area,filename_*,do_unlinkat,\
do_renameat2,do_mkdirat,do_truncate,notify_change,\
generic_file_*,generic_perform_write,filemap_*,__filemap_get_folio,page_cache_*,iterate_dir,\
ext4_*,jbd2_*,xfs_file_*,xfs_create,xfs_remove,xfs_free_eofblocks,btrfs_file_*,btrfs_create,btrfs_unlink,\
btrfs_sync_file,fuse_*,nfs_file_*,shmem_file_*,pipe_*,anon_pipe_*,do_epoll_*,ep_poll,do_sys_poll,core_sys_select,\
do_select,do_futex,futex_wait,futex_wake,futex_wait_queue*,\
__sys_*,sock_*,inet_*msg,inet_accept,inet_csk_accept,inet_stream_connect,tcp_*msg,tcp_*msg_locked,tcp_v4_connect,\
udp_*msg,unix_stream_*,unix_dgram_*,\
kernel_clone,copy_process,bprm_execve,load_elf_binary,begin_new_exec,do_exit,\
do_mmap,mmap_region,do_munmap,do_vmi_munmap,unmap_region,handle_mm_fault,do_user_addr_fault,\
down_read,down_write,mutex_lock,rwsem_down_*_slowpath,__mutex_lock*,\
submit_bio*,blk_mq_submit_bio,blkdev_issue_*,folio_wait_bit*,io_schedule,schedule,\
__fput,task_work_run,dput,iput,evict,truncate_inode_pages*,ext4_evict_inode";

/// The same idea where every function costs seconds to attach: the few that
/// tell most, by name. Not schedule(): what a thread returns through stays in the
/// kernel until it does, and idle kernel threads are in there for hours.
pub const CHOSEN: &str = "do_sys_openat2,do_filp_open,path_openat,link_path_walk,lookup_open,ext4_lookup,ext4_create,\
vfs_open,do_truncate,ext4_setattr,ext4_truncate,vfs_read,vfs_write,ext4_file_read_iter,ext4_file_write_iter,\
ext4_buffered_write_iter,generic_perform_write,generic_file_read_iter,filemap_read,vfs_fsync_range,ext4_sync_file,\
jbd2_log_wait_commit,jbd2_complete_transaction,file_write_and_wait_range,vfs_unlink,ext4_unlink,do_unlinkat,\
evict,ext4_evict_inode,vfs_statx,vfs_fstat,iterate_dir,pipe_read,pipe_write,do_epoll_wait,do_sys_poll,\
__sys_sendto,__sys_recvfrom,tcp_sendmsg,tcp_recvmsg,tcp_sendmsg_locked,unix_stream_sendmsg,\
unix_stream_read_generic,inet_csk_accept,do_futex,kernel_clone,copy_process,load_elf_binary,do_mmap,\
handle_mm_fault,submit_bio,io_schedule,mutex_lock,down_write";

/// Families of tracepoints that calls pass. Left out are those that fire at
/// every turn of the scheduler, the timers and the interrupts. They are attached
/// to in this order, up to the limit: what all programs pass comes before
/// filesystems that a kernel knows and the machine may not use.
pub const TRACEPOINTS: &str = "ext4_*,jbd2_*,block_rq_*,block_bio_*,block_plug,block_unplug,filemap_*,mm_filemap_*,balance_dirty_pages,\
contention_*,sched_process_*,sched_wakeup_new,sched_waking,sched_migrate_task,signal_*,task_newtask,\
task_rename,mm_vmscan_direct_*,mm_page_alloc,mm_page_free,page_fault_user,page_fault_kernel,\
exceptions_page_fault_*,vm_unmapped_area,vma_*,mmap_lock_*,sock_*,inet_*,net_dev_queue,net_dev_xmit,\
netif_receive_skb,netif_rx,sb_*,tcp_*,udp_*,skb_*,consume_skb,kfree_skb,fib_table_lookup,qdisc_*,neigh_*,\
fdb_*,generic_*_lease,locks_*,flock_lock_inode,fcntl_*,posix_lock_inode,writeback_*,io_uring_*,\
alloc_vmap_area,cgroup_*,iomap_*,xfs_file_*,xfs_setfilesize,btrfs_*,fuse_*,nfs_*,9p_*,virtio_*,virtqueue_*,\
console,selinux_audited,netfs_*,cachefiles_*,dax_*,fs_dax_*,erofs_*,overlayfs_*";

/// A pattern with `*` would match these as well; a trace of them is of the
/// tracer, or of what every function does.
const NEVER_BY_PATTERN: &[&str] = &[
    "__ftrace_invalid_address___*",
    "bpf_*",
    "__bpf_*",
    "*bpf_prog*",
    "htab_*",
    "array_map_*",
    "fprobe_*",
    "rethook_*",
    "ftrace_*",
    "trace_*",
    "__traceiter_*",
    "rcu_*",
    "__rcu_*",
    "_raw_*",
    "__raw_*",
    "preempt_*",
    "ktime_*",
    "__fentry__",
    "vfs_*_dirty_*",
    "ext4_*_csum*",
];

pub fn split(patterns: &str) -> Vec<&str> {
    patterns
        .split([',', ' ', '\n'])
        .map(str::trim)
        .filter(|p| !p.is_empty())
        .collect()
}

fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?'])
}

/// Names in the order of the patterns that match them first, then by name.
pub fn choose<'a>(patterns: &str, names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let patterns = split(patterns);
    let exact: HashMap<&str, usize> = patterns
        .iter()
        .enumerate()
        .filter(|(_, p)| !is_pattern(p))
        .map(|(i, p)| (*p, i))
        .collect();
    let globs: Vec<(usize, &str)> = patterns
        .iter()
        .copied()
        .enumerate()
        .filter(|(_, p)| is_pattern(p))
        .collect();
    let mut found: Vec<(usize, &str)> = names
        .filter_map(|name| {
            if let Some(&i) = exact.get(name) {
                return Some((i, name));
            }
            let (i, _) = globs.iter().find(|(_, pattern)| glob(pattern, name))?;
            let never = NEVER_BY_PATTERN.iter().any(|pattern| glob(pattern, name));
            (!never).then_some((*i, name))
        })
        .collect();
    found.sort();
    found.dedup();
    found.into_iter().map(|(_, name)| name.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_first_comes_first() {
        let names = ["ext4_b", "vfs_read", "ext4_a", "bpf_x", "rcu_read"];
        assert_eq!(
            choose("vfs_*,ext4_*", names.into_iter()),
            ["vfs_read", "ext4_a", "ext4_b"]
        );
        // A name is a wish, a pattern is a net.
        assert_eq!(choose("*cu*,bpf_x", names.into_iter()), ["bpf_x"]);
    }
}
