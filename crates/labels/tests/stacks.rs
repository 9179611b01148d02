// SPDX-License-Identifier: MIT OR Apache-2.0
//! Do the rules that come with DeBox label real stacks as they should?
//!
//! labels/stacks/ holds one file for each kernel version, recorded on running
//! kernels, and one with stacks read out of the kernel's source for what could
//! not be provoked.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::path::PathBuf;

use debox_labels::Rules;

struct Stack {
    file: String,
    label: String,
    case: String,
    seen: bool,
    functions: Vec<String>,
}

fn stacks() -> Vec<Stack> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../labels/stacks");
    let mut stacks = Vec::new();
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let file = path.file_name().unwrap().to_str().unwrap().to_owned();
        let text = fs::read_to_string(&path).unwrap();
        let plain: String = text
            .lines()
            .filter(|l| !l.starts_with('#'))
            .flat_map(|l| [l, "\n"])
            .collect();
        for block in plain
            .split("\n\n")
            .map(str::trim)
            .filter(|block| !block.is_empty())
        {
            let (header, functions) = block.split_once('\n').expect(block);
            let words: Vec<&str> = header.split(' ').collect();
            let [label, case, origin] = words[..] else {
                panic!("{file}: {header}")
            };
            let label = label
                .strip_prefix('[')
                .and_then(|l| l.strip_suffix(']'))
                .expect(header);
            assert!(matches!(origin, "seen" | "source"), "{file}: {header}");
            stacks.push(Stack {
                file: file.clone(),
                label: label.to_owned(),
                case: case.to_owned(),
                seen: origin == "seen",
                functions: functions.split_whitespace().map(str::to_owned).collect(),
            });
        }
    }
    stacks
}

fn names(stack: &Stack) -> Vec<&str> {
    stack.functions.iter().map(String::as_str).collect()
}

#[test]
fn every_stack_gets_its_label() {
    let rules = Rules::builtin();
    let stacks = stacks();
    let mut wrong = Vec::new();
    for stack in &stacks {
        let got = rules.label(&names(stack));
        if got.is_none_or(|rule| rule.label != stack.label) {
            wrong.push(format!(
                "{}: {} should be {}, is {}: {}",
                stack.file,
                stack.case,
                stack.label,
                got.map_or("unlabelled".into(), |r| format!(
                    "{} (rule {})",
                    r.label, r.number
                )),
                stack.functions.join(" "),
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // A fixture that lost its files would otherwise pass.
    for version in ["6.1", "6.12", "6.18"] {
        let file = format!("linux-{version}.txt");
        let count = stacks.iter().filter(|s| s.file == file && s.seen).count();
        assert!(count > 120, "{file} has only {count} stacks");
    }
}

#[test]
fn every_rule_is_the_first_for_some_stack() {
    let rules = Rules::builtin();
    let stacks = stacks();
    let reached: HashSet<usize> = stacks
        .iter()
        .filter_map(|stack| rules.label(&names(stack)))
        .map(|r| r.number)
        .collect();
    let idle: Vec<String> = rules
        .iter()
        .filter(|rule| !reached.contains(&rule.number))
        .map(|rule| format!("{} {} ({})", rule.number, rule.label, rule.why))
        .collect();
    assert!(
        idle.is_empty(),
        "rules without a stack:\n{}",
        idle.join("\n")
    );
}

/// What a stack from the source is for: once a stack of the same label was
/// seen, the rule, not only the label, has to be one that needs it.
#[test]
fn source_stacks_are_only_for_rules_never_seen() {
    let rules = Rules::builtin();
    let stacks = stacks();
    let number = |stack: &Stack| rules.label(&names(stack)).map(|rule| rule.number);
    let seen: HashSet<_> = stacks.iter().filter(|s| s.seen).map(number).collect();
    let needless: Vec<&str> = stacks
        .iter()
        .filter(|s| !s.seen && seen.contains(&number(s)))
        .map(|s| s.case.as_str())
        .collect();
    assert!(
        needless.is_empty(),
        "already seen on a kernel: {needless:?}"
    );
}

#[test]
fn sites_are_never_plumbing_and_always_found() {
    let rules = Rules::builtin();
    for stack in stacks() {
        let site = rules.site_frame(&names(&stack));
        assert!(
            site.is_some_and(|site| site > 0),
            "{}: {}",
            stack.file,
            stack.case
        );
    }
}

#[test]
fn sites_are_the_functions_that_decided_to_sleep() {
    let rules = Rules::builtin();
    let stacks = stacks();
    for (file, case, site) in [
        ("linux-6.1.txt", "pipe_read", "pipe_read"),
        ("linux-6.18.txt", "pipe_read", "anon_pipe_read"),
        ("linux-6.1.txt", "futex_wait", "futex_wait_queue"),
        ("linux-6.18.txt", "futex_wait", "futex_do_wait"),
        ("linux-6.12.txt", "nanosleep", "hrtimer_nanosleep"),
        ("linux-6.12.txt", "wait4", "do_wait"),
        ("linux-6.18.txt", "tcp_recv", "tcp_recvmsg_locked"),
        ("linux-6.18.txt", "tcp_accept", "inet_csk_accept"),
        ("linux-6.18.txt", "inode_lock_unlink", "do_unlinkat"),
        ("linux-6.18.txt", "disk_file_position/ext4", "fdget_pos"),
        ("linux-6.18.txt", "vfork", "kernel_clone"),
        ("linux-6.18.txt", "tty_read", "n_tty_read"),
        ("linux-6.18.txt", "flock", "locks_lock_inode_wait"),
        (
            "linux-6.18.txt",
            "disk_osync/ext4",
            "ext4_block_write_begin",
        ),
        ("linux-6.18.txt", "fuse_fault_locked", "filemap_fault"),
        ("linux-6.18.txt", "fuse_page_locked", "filemap_get_pages"),
        ("linux-6.18.txt", "pipe_lock", "anon_pipe_write"),
        ("linux-6.18.txt", "sock_lock", "tcp_sendmsg"),
        ("linux-6.18.txt", "epoll", "do_epoll_wait"),
        ("linux-6.18.txt", "poll", "do_sys_poll"),
        ("linux-6.18.txt", "select", "do_select"),
    ] {
        let found: BTreeSet<&str> = stacks
            .iter()
            .filter(|stack| stack.file == file && stack.case == case)
            .map(|stack| names(stack)[rules.site_frame(&names(stack)).unwrap()])
            .collect();
        assert_eq!(found, BTreeSet::from([site]), "{file}: {case}");
    }
}

/// A real stack of a tp_btf program has other things in front of the scheduler.
#[test]
fn what_watches_does_not_change_the_label() {
    let rules = Rules::builtin();
    for stack in stacks() {
        let mut watched = vec![
            "bpf_prog_6deef7357e7b4530_debox_switch",
            "bpf_prog_d35b94b4c0c10efb_filemap_fault",
            "bpf_trace_run4",
            "__traceiter_sched_switch",
        ];
        watched.extend(names(&stack));
        let rule = rules.label(&watched).expect(&stack.case);
        assert_eq!(rule.label, stack.label, "{}: {}", stack.file, stack.case);
    }
}

#[test]
fn labels_are_not_many_and_each_has_its_reason() {
    let rules = Rules::builtin();
    let labels: BTreeSet<&str> = rules.iter().map(|rule| rule.label.as_str()).collect();
    for label in [
        "page-in",
        "page-writeback",
        "page-lock",
        "page-io",
        "buffer-io",
        "buffer-write",
        "journal-commit",
        "device-flush",
        "direct-io",
        "inode-lock",
        "rwsem",
        "mutex",
        "mmap-lock",
        "dirty-throttle",
        "memory-reclaim",
        "swap-in",
        "pipe-read",
        "pipe-write",
        "sock-accept",
        "sock-recv",
        "sock-send",
        "sock-connect",
        "unix-recv",
        "unix-send",
        "unix-connect",
        "unix-accept",
        "epoll",
        "poll",
        "select",
        "futex",
        "flock",
        "posix-lock",
        "wait-child",
        "nanosleep",
        "signal-wait",
        "eventfd",
        "timerfd",
        "tty-read",
        "tty-write",
        "vfork",
        "exec",
        "ptrace",
        "signal-stop",
        "io-uring",
        "nfs",
        "fuse",
        "cgroup-freezer",
        "rcu-wait",
        "bpf-wait",
        "task-exit",
        "coredump",
        "inotify",
        "msgqueue",
        "semop",
        "userfaultfd",
    ] {
        assert!(labels.contains(label), "no rule for {label}");
    }
}

/// Which kernels each rule was seen on, as docs/labels.md has it, and why the
/// others were not seen.
fn coverage() -> String {
    const KERNELS: [&str; 3] = ["6.1", "6.12", "6.18"];
    let rules = Rules::builtin();
    let stacks = stacks();
    let numbers: Vec<Option<usize>> = stacks
        .iter()
        .map(|stack| rules.label(&names(stack)).map(|rule| rule.number))
        .collect();
    let reasons = reasons();
    let mut text = String::from(
        "| label | what the thread waits for | 6.1 | 6.12 | 6.18 | never seen, since |\n\
         |---|---|:-:|:-:|:-:|---|\n",
    );
    for rule in rules.iter() {
        let of_rule: Vec<&Stack> = stacks
            .iter()
            .zip(&numbers)
            .filter(|(_, number)| **number == Some(rule.number))
            .map(|(stack, _)| stack)
            .collect();
        let mut row = format!("| {} | {} |", rule.label, rule.why);
        for kernel in KERNELS {
            let file = format!("linux-{kernel}.txt");
            let seen = of_rule.iter().any(|stack| stack.seen && stack.file == file);
            row += if seen { " yes |" } else { " |" };
        }
        let reason = of_rule
            .iter()
            .find(|stack| !stack.seen)
            .map(|stack| reasons[&stack.case].as_str());
        text += &format!("{row} {} |\n", reason.unwrap_or_default());
    }
    text
}

/// The line before each case of source.txt.
fn reasons() -> std::collections::HashMap<String, String> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../labels/stacks/source.txt");
    let text = fs::read_to_string(path).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    lines
        .windows(2)
        .filter(|pair| pair[1].starts_with('['))
        .map(|pair| {
            let reason = pair[0].strip_prefix("# never seen: ");
            let reason = reason.unwrap_or_else(|| panic!("no reason before {}", pair[1]));
            assert!(reason.len() > 10, "{}", pair[1]);
            let case = pair[1].split(' ').nth(1).unwrap();
            (case.to_owned(), reason.to_owned())
        })
        .collect()
}

/// `DEBOX_GOLDEN_WRITE=1` writes the table into the document.
#[test]
fn the_documented_coverage_is_current() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/labels.md");
    let text = fs::read_to_string(&path).unwrap();
    let (begin, end) = ("<!-- coverage: begin -->\n", "<!-- coverage: end -->");
    let (before, rest) = text.split_once(begin).expect("a begin mark");
    let (table, after) = rest.split_once(end).expect("an end mark");
    let current = coverage();
    if std::env::var_os("DEBOX_GOLDEN_WRITE").is_some() {
        fs::write(&path, format!("{before}{begin}{current}{end}{after}")).unwrap();
        return;
    }
    assert!(
        table == current,
        "docs/labels.md is out of date: DEBOX_GOLDEN_WRITE=1 cargo test -p debox-labels"
    );
}

/// Every rule was seen on some kernel, or its case says why not; and each
/// kernel at hand has seen most of them.
#[test]
fn each_rule_was_seen_or_says_why_not() {
    let rules = Rules::builtin();
    let stacks = stacks();
    let numbers: Vec<Option<usize>> = stacks
        .iter()
        .map(|stack| rules.label(&names(stack)).map(|rule| rule.number))
        .collect();
    let numbered = || stacks.iter().zip(&numbers);
    let reasons = reasons();
    let mut never = 0;
    for rule in rules.iter() {
        let of_rule = || numbered().filter(|(_, number)| **number == Some(rule.number));
        if of_rule().any(|(stack, _)| stack.seen) {
            continue;
        }
        never += 1;
        let (stack, _) = of_rule().next().expect("a stack");
        assert!(reasons.contains_key(&stack.case), "{}", rule.label);
    }
    let total = rules.iter().count();
    assert!(
        4 * never < total + 20,
        "{never} of {total} rules were never seen"
    );
    for kernel in ["6.1", "6.12", "6.18"] {
        let file = format!("linux-{kernel}.txt");
        let seen: HashSet<_> = numbered()
            .filter(|(stack, _)| stack.seen && stack.file == file)
            .filter_map(|(_, number)| *number)
            .collect();
        assert!(
            2 * seen.len() > total,
            "{kernel}: only {} of {total}",
            seen.len()
        );
    }
}
