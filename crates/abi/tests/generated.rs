// SPDX-License-Identifier: MIT OR Apache-2.0
//! Are the files that are made from the C headers what the headers say?
//!
//! `src/generated.rs` (what Rust shares with C) and `tests/abi/layout.c` (where a C
//! compiler puts every field) are made here and kept in the tree, so that building
//! needs nothing of this. `make abi` writes them. What a struct is made of is
//! clang's word, from its syntax tree; sizes, offsets and the values of constants
//! come from a C program that is compiled and run.
#![cfg(not(miri))]

use serde_json::Value;
use std::collections::HashMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

const SHARED: [&str; 3] = ["debox/abi.h", "debox/protocol.h", "debox/trace.h"];
const OF_C_ALONE: &str = "debox.h";
/// Set: the files are written, not compared.
const WRITE: &str = "DEBOX_ABI_WRITE";
/// Counts of things in memory, like the lengths of arrays are.
const COUNTS: [&str; 2] = ["DEBOX_SEGMENT_SLOTS", "DEBOX_EVENTS_BYTES"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn output(command: &mut Command) -> Vec<u8> {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error} (make setup installs clang)"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
    output.stdout
}

fn clang() -> Command {
    let mut clang = Command::new("clang");
    clang.arg("-I").arg(root().join("include"));
    clang
}

struct Constant {
    name: String,
    value: String,
    /// At the end of the line.
    comment: String,
}

/// A header's own constants and structs, in its order.
struct Header {
    name: &'static str,
    constants: Vec<Constant>,
    /// With `struct` or `union`.
    structs: Vec<(String, String)>,
    /// What stands between brackets, as lengths of arrays do.
    lengths: String,
}

impl Header {
    fn read(name: &'static str) -> Header {
        let text = std::fs::read_to_string(root().join("include").join(name)).unwrap();
        let mut header = Header {
            name,
            constants: vec![],
            structs: vec![],
            lengths: String::new(),
        };
        for line in text.lines() {
            let (code, comment) = line.split_once("/*").unwrap_or((line, ""));
            if let Some((name, value)) = code
                .strip_prefix("#define ")
                .and_then(|rest| rest.split_once(' '))
            {
                // No function, nor the header's own guard.
                if name.starts_with("DEBOX_") && !name.contains('(') && !value.is_empty() {
                    let comment = comment.strip_suffix("*/").unwrap_or("").trim();
                    header.constants.push(Constant {
                        name: name.into(),
                        value: value.trim().into(),
                        comment: comment.into(),
                    });
                }
            }
            if let Some((kind, name)) = code
                .trim_end()
                .strip_suffix(" {")
                .and_then(|rest| rest.split_once(' '))
            {
                if matches!(kind, "struct" | "union") && name.starts_with("debox_") {
                    header.structs.push((kind.into(), name.into()));
                }
            }
            for inside in code.split('[').skip(1) {
                header.lengths += inside.split(']').next().unwrap();
                header.lengths.push(' ');
            }
        }
        header
    }
}

struct Field {
    name: String,
    of: String,
    comment: Vec<String>,
}

/// The fields of every struct, with the comment above it, by name.
fn tree() -> HashMap<String, (Vec<String>, Vec<Field>)> {
    let text = output(
        clang()
            .args(["-fsyntax-only", "-fparse-all-comments", "-x", "c"])
            .args(["-Xclang", "-ast-dump=json"])
            .arg(root().join("include").join(OF_C_ALONE))
            // debox.h itself includes the rest but this.
            .args(["-include", "debox/trace.h", "-include", "debox/protocol.h"]),
    );
    let tree: Value = serde_json::from_slice(&text).unwrap();
    let mut structs = HashMap::new();
    for record in children(&tree, "RecordDecl") {
        if record["completeDefinition"].as_bool() != Some(true) {
            continue;
        }
        let Some(name) = record["name"].as_str() else {
            continue;
        };
        let fields = children(record, "FieldDecl").map(|field| Field {
            name: field["name"].as_str().unwrap().to_owned(),
            of: field["type"]["qualType"].as_str().unwrap().replace(' ', ""),
            comment: comment(field),
        });
        structs.insert(name.to_owned(), (comment(record), fields.collect()));
    }
    structs
}

fn children<'a>(node: &'a Value, kind: &str) -> impl Iterator<Item = &'a Value> {
    let inner = node["inner"].as_array().map_or(&[][..], |v| v);
    inner.iter().filter(move |child| child["kind"] == kind)
}

/// The lines of what stands above or behind.
fn comment(node: &Value) -> Vec<String> {
    let mut lines: Vec<String> = vec![];
    let pieces = children(node, "FullComment")
        .flat_map(|full| children(full, "ParagraphComment"))
        .flat_map(|paragraph| children(paragraph, "TextComment"));
    for piece in pieces {
        let text = piece["text"].as_str().unwrap();
        match lines.last_mut() {
            // Clang tells where a line begins, and what is on it no more.
            Some(line) if piece["loc"]["line"].is_null() => line.push_str(text),
            _ => lines.push(text.to_owned()),
        }
    }
    lines.retain(|line| !line.trim().is_empty());
    lines.iter().map(|line| line.trim().to_owned()).collect()
}

/// What a C program says: constants as `NAME TYPE VALUE`, structs as
/// tests/abi/layout.c does.
fn said(headers: &[Header], layout: &str) -> HashMap<String, String> {
    let mut print = String::new();
    for Constant { name, .. } in headers.iter().flat_map(|header| &header.constants) {
        writeln!(
            print,
            "\tprintf(_Generic(({name}), unsigned: \"%s u32 %u\\n\", unsigned long: \"%s usize %lu\\n\", \
             unsigned long long: \"%s u64 %llu\\n\", char *: \"%s &str \\\"%s\\\"\\n\"), \
             \"{name}\", {name});"
        )
        .unwrap();
    }
    let source = layout.replace("\treturn 0;", &format!("{print}\treturn 0;"));
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (file, program) = (directory.join("said.c"), directory.join("said"));
    std::fs::write(&file, source).unwrap();
    output(clang().args(["-w", "-o"]).args([&program, &file]));
    let text = String::from_utf8(output(&mut Command::new(&program))).unwrap();
    text.lines()
        .map(|line| {
            let names_in_front = if line.starts_with("DEBOX_") { 1 } else { 2 };
            let at = line.match_indices(' ').nth(names_in_front - 1).unwrap().0;
            (line[..at].to_owned(), line[at + 1..].to_owned())
        })
        .collect()
}

fn layout_c(headers: &[Header], tree: &HashMap<String, (Vec<String>, Vec<Field>)>) -> String {
    let mut text = "\
/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * How does this compiler lay out what the parts share?
 *
 * Prints `STRUCT - SIZE ALIGNMENT` and `STRUCT FIELD OFFSET SIZE`, in the order
 * of the headers, for C and (compiled with -x c++) C++. Rust prints the same
 * lines of what it has, and all outputs are compared. Made by `make abi`.
 */
"
    .to_owned();
    for header in headers {
        writeln!(text, "#include <{}>", header.name).unwrap();
    }
    text += "
#include <stddef.h>
#include <stdio.h>

#define S(kind, name) \\
	printf(#name \" - %zu %zu\\n\", sizeof(kind name), (size_t)__alignof__(kind name))
#define F(kind, name, field)                                                \\
	printf(#name \" \" #field \" %zu %zu\\n\", offsetof(kind name, field), \\
	       sizeof(((kind name *)0)->field))

int main(void)
{
";
    for (kind, name) in headers.iter().flat_map(|header| &header.structs) {
        writeln!(text, "\tS({kind}, {name});").unwrap();
        for field in &tree[name].1 {
            writeln!(text, "\tF({kind}, {name}, {});", field.name).unwrap();
        }
    }
    text + "\treturn 0;\n}\n"
}

fn rust_type(of: &str) -> String {
    let (one, lengths) = of.split_at(of.find('[').unwrap_or(of.len()));
    let mut rust = match one {
        "char" | "__u8" => "u8".to_owned(),
        "__u16" => "u16".into(),
        "__u32" => "u32".into(),
        "__s32" => "i32".into(),
        "__u64" => "u64".into(),
        "__s64" => "i64".into(),
        other => other
            .strip_prefix("struct")
            .or(other.strip_prefix("union"))
            .unwrap_or_else(|| panic!("{of}: a type that nothing shared may have"))
            .to_owned(),
    };
    // The innermost array is written last in C.
    for length in lengths.trim_matches(['[', ']']).rsplit("][") {
        if !length.is_empty() {
            rust = format!("[{rust}; {length}]");
        }
    }
    rust
}

/// A bit, or a number in hexadecimal, stays one.
fn as_written(value: &str) -> Option<String> {
    let value = value.trim_matches(['(', ')']);
    if let Some((one, shift)) = value.split_once(" << ") {
        return (one.trim_end_matches(['u', 'l']) == "1" && shift.parse::<u32>().is_ok())
            .then(|| format!("1 << {shift}"));
    }
    let hexadecimal = value.strip_suffix('u').unwrap_or(value);
    hexadecimal
        .starts_with("0x")
        .then(|| hexadecimal.to_owned())
}

fn documentation(text: &mut String, indent: &str, lines: &[String]) {
    for line in lines {
        writeln!(text, "{indent}/// {line}").unwrap();
    }
}

fn generated_rs(
    headers: &[Header],
    tree: &HashMap<String, (Vec<String>, Vec<Field>)>,
    said: &HashMap<String, String>,
) -> String {
    let mut text = "\
// SPDX-License-Identifier: MIT OR Apache-2.0
//! What do the headers in include/debox say, in Rust?
//!
//! Made by `make abi` and not by hand. A constant that is an array's length is a
//! usize; a field that C calls `type` is called `kind`.
#![allow(rustdoc::broken_intra_doc_links)]

use crate::Layout;
use crate::pod::mirror;
"
    .to_owned();
    let lengths: String = headers.iter().map(|header| &*header.lengths).collect();
    let is_length = |name: &str| {
        COUNTS.contains(&name)
            || lengths
                .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                .any(|word| word == name)
    };
    let mut layouts = String::new();
    for header in headers {
        writeln!(text, "\n// {}\n", header.name).unwrap();
        for Constant {
            name,
            value: written,
            comment,
        } in &header.constants
        {
            let (of, value) = said[name].split_once(' ').unwrap();
            let value = as_written(written).unwrap_or(value.to_owned());
            let of = if is_length(name) { "usize" } else { of };
            if !comment.is_empty() {
                documentation(&mut text, "", std::slice::from_ref(comment));
            }
            writeln!(text, "pub const {name}: {of} = {value};").unwrap();
        }
        for (kind, name) in &header.structs {
            let size = said[&format!("{name} -")].split(' ').next().unwrap();
            text += "\nmirror! {\n";
            let (comment, fields) = &tree[name];
            documentation(&mut text, "    ", comment);
            writeln!(text, "    {name} = {size} {{").unwrap();
            for (at, field) in fields.iter().enumerate() {
                let place = &said[&format!("{name} {}", field.name)];
                let (mut offset, mut of) = (
                    place.split(' ').next().unwrap().to_owned(),
                    rust_type(&field.of),
                );
                // The room that a union keeps for what comes later.
                if kind == "union" && at > 0 {
                    let first = said[&format!("{name} {}", fields[0].name)]
                        .split(' ')
                        .nth(1);
                    let first: usize = first.unwrap().parse().unwrap();
                    of = format!("[u8; {}]", size.parse::<usize>().unwrap() - first);
                    offset = first.to_string();
                }
                let name = if field.name == "type" {
                    "kind"
                } else {
                    &field.name
                };
                documentation(&mut text, "        ", &field.comment);
                writeln!(text, "        {name}: {of} = {offset},").unwrap();
            }
            text += "    }\n}\n";
            if kind == "struct" {
                writeln!(layouts, "    {name}::LAYOUT,").unwrap();
            }
        }
    }
    write!(
        text,
        "\n/// Every struct of the headers.\npub const LAYOUTS: &[Layout] = &[\n{layouts}];\n"
    )
    .unwrap();
    text
}

#[test]
fn what_is_made_from_the_headers_is_up_to_date() {
    let mut headers: Vec<Header> = SHARED.into_iter().map(Header::read).collect();
    let tree = tree();
    headers.push(Header::read(OF_C_ALONE));
    let layout = layout_c(&headers, &tree);
    headers.pop();
    let said = said(&headers, &layout);
    let rust = generated_rs(&headers, &tree, &said);
    for (file, text) in [
        (root().join("crates/abi/src/generated.rs"), rust),
        (root().join("tests/abi/layout.c"), layout),
    ] {
        if std::env::var_os(WRITE).is_some() {
            std::fs::write(&file, text).unwrap();
            continue;
        }
        let kept = std::fs::read_to_string(&file).unwrap_or_default();
        if kept != text {
            let differs = kept.lines().zip(text.lines()).find(|(a, b)| a != b);
            panic!(
                "{} is not what the headers in include/ say: run `make abi`. First difference: {differs:?}",
                file.display()
            );
        }
    }
}
