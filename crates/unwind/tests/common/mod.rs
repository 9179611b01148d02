// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which programs are the tables tried on?
#![allow(dead_code)] // each test file uses its own part

#[path = "../../../../tests/fresh_start.rs"]
mod fresh_start;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use debox_unwind::{Options, Table};

/// Runs a tool; a tool that is missing fails the test, with its name.
pub fn run(command: &mut Command) -> Output {
    let output = command
        .env("LC_ALL", "C")
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}; see setup/packages.sh"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

pub fn stdout(command: &mut Command) -> String {
    String::from_utf8_lossy(&run(command).stdout).into_owned()
}

/// Deep enough that a wrong row shows, and with a frame whose stack is aligned
/// by hand, a variable-length array (so rbp is the frame pointer in one
/// function although the compiler was told to omit it), and a large frame.
pub const C_PROGRAM: &str = r#"
#include <alloca.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
static volatile int sink;
__attribute__((noinline)) int leaf_wait(int fd)
{
	char byte;
	int got = (int)read(fd, &byte, 1);
	return got + sink;
}
__attribute__((noinline)) int big_frame(int fd)
{
	volatile char space[100000];
	space[17] = (char)fd;
	return leaf_wait(fd) + space[17];
}
__attribute__((noinline)) int variable_frame(int fd, int count)
{
	char *space = alloca((unsigned)count);
	memset(space, fd, (unsigned)count);
	int got = big_frame(fd);
	return got + space[count / 2];
}
__attribute__((noinline)) int aligned_frame(int fd, int b, int c, int d, int e, int f, int on_stack)
{
	_Alignas(64) volatile char space[128];
	char *more = alloca((unsigned)on_stack + 10);
	memset(more, fd, (unsigned)on_stack + 10);
	space[0] = 1;
	int got = variable_frame(fd, 1000 + on_stack + (int)((uintptr_t)space & 63));
	return got + space[0] + more[on_stack] + b + c + d + e + f + on_stack;
}
__attribute__((noinline)) int saves_registers(int fd, int a, int b, int c, int d)
{
	int got = aligned_frame(fd + a * 0, a, b, c, d, a, b);
	return got + a * b + c * d + sink;
}
int main(int argc, char **argv)
{
	(void)argv;
	return saves_registers(0, argc, argc + 1, argc + 2, argc + 3) & 0;
}
"#;

pub const GO_PROGRAM: &str = r#"
package main

import (
	"bufio"
	"os"
)

//go:noinline
func readLine(r *bufio.Reader) string {
	s, _ := r.ReadString('\n')
	return s
}

//go:noinline
func bigFrame(r *bufio.Reader) int {
	var space [20000]byte
	for i := range space {
		space[i] = byte(i)
	}
	s := readLine(r)
	return len(s) + int(space[len(s)])
}

func main() {
	println(bigFrame(bufio.NewReader(os.Stdin)))
}
"#;

/// Compiles a C program.
pub fn compile_c(dir: &Path, name: &str, source: &str, flags: &[&str]) -> PathBuf {
    let (file, program) = (dir.join(format!("{name}.c")), dir.join(name));
    fs::write(&file, source).unwrap();
    run(Command::new("gcc")
        .args(flags)
        .arg("-o")
        .arg(&program)
        .arg(&file));
    program
}

pub fn compile_go(dir: &Path, name: &str, source: &str, flags: &[&str]) -> PathBuf {
    let (file, program) = (dir.join(format!("{name}.go")), dir.join(name));
    fs::write(&file, source).unwrap();
    run(Command::new("go")
        .env("GOFLAGS", "-mod=mod")
        // Kept from one test to the next: it holds Go's compiled libraries.
        .env("GOCACHE", concat!(env!("CARGO_TARGET_TMPDIR"), "/go-cache"))
        .env("HOME", dir)
        .env("GO111MODULE", "off")
        .arg("build")
        .args(flags)
        .arg("-o")
        .arg(&program)
        .arg(&file));
    program
}

pub fn table_of(path: &Path) -> Table {
    debox_unwind::table_of_path(path, &Options::default())
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub fn libc() -> PathBuf {
    "/lib/x86_64-linux-gnu/libc.so.6".into()
}

/// Python's code: its library where it has one, else the program.
pub fn python() -> PathBuf {
    let maps =
        stdout(Command::new("python3").args(["-c", "print(open('/proc/self/maps').read())"]));
    let mut files: Vec<PathBuf> = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5))
        .filter(|path| {
            path.rsplit('/')
                .next()
                .is_some_and(|name| name.contains("python"))
        })
        .map(PathBuf::from)
        .collect();
    files.sort_by_key(|path| fs::metadata(path).map_or(0, |metadata| metadata.len()));
    files.pop().expect("python3 maps itself")
}
