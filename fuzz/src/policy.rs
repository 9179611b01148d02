// SPDX-License-Identifier: MIT OR Apache-2.0
//! What may the words of a command line do: options of every command, --on and
//! --do with all that they plan, patterns of functions to trace? One word a
//! line. (There is no file of policies yet; what is set, is set this way.)

use debox_cli::fuzz;

pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let words: Vec<&str> = text.lines().collect();
    if let Err(error) = fuzz::command_line(&words) {
        assert!(!error.is_empty());
    }
    let Some(patterns) = words.first() else {
        return;
    };
    let names = ["vfs_read", "vfs_write", "ext4_file_read_iter", "bpf_x", ""];
    let chosen = fuzz::functions_choose(patterns, &names);
    assert!(chosen.iter().all(|name| names.contains(&name.as_str())));
}
