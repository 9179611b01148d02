// SPDX-License-Identifier: MIT OR Apache-2.0
//! Are the files that are made from the C headers what the headers say?
//!
//! `MADE` (what Rust shares with C) and `tests/abi/layout.c` (where a C compiler
//! puts every field) are made here and kept in the tree, so that building needs
//! nothing of this. `make abi` writes them. What a struct is made of and what a
//! function takes is clang's word, from its syntax tree; sizes, offsets and the
//! values of constants come from a C program that is compiled and run.
#![cfg(not(miri))]

use serde_json::Value;
use std::collections::HashMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

/// One file of Rust.
struct Made {
    file: &'static str,
    /// What the file answers for: "What ..., in Rust?"
    says: &'static str,
    uses: &'static str,
    headers: &'static [&'static str],
    /// Structs of other headers that these name.
    also: &'static [&'static str],
    documented: bool,
    /// What Rust links with for a function of C; None: it is not for others.
    function: fn(&str) -> Option<String>,
}

const MADE: [Made; 4] = [
    Made {
        file: "crates/abi/src/generated.rs",
        says: "do the headers in include/debox say",
        uses: "use crate::mirror;",
        headers: &[
            "include/debox/abi.h",
            "include/debox/protocol.h",
            "include/debox/trace.h",
        ],
        also: &[],
        documented: true,
        function: |_| None,
    },
    Made {
        file: "crates/debox/src/sys.rs",
        says: "does libdebox export, by include/debox.h",
        uses: "use debox_abi::*;",
        headers: &["include/debox.h"],
        also: &[],
        documented: false,
        function: |name| (!name.ends_with('_')).then(|| name.to_owned()),
    },
    Made {
        file: "crates/condition/src/generated.rs",
        says: "does libdebox/expression.h say",
        uses: "use debox_abi::*;",
        headers: &["libdebox/expression.h"],
        also: &["debox_watch_error"],
        documented: false,
        // As the crate's build.rs calls them.
        function: |name| {
            let own = name.strip_prefix("debox_expression_");
            let own = own.or_else(|| name.strip_prefix("debox_"))?;
            Some(format!("debox_condition_{own}"))
        },
    },
    Made {
        file: "crates/kern/src/generated.rs",
        says: "does bpf/kern.h say",
        uses: "use debox_abi::mirror;",
        headers: &["bpf/kern.h"],
        also: &[],
        documented: false,
        function: |_| None,
    },
];
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
    clang.args(["-D_GNU_SOURCE", "-I"]).arg(root());
    clang.arg("-I").arg(root().join("include"));
    clang
}

/// As it is included.
fn included(header: &str) -> &str {
    header.strip_prefix("include/").unwrap_or(header)
}

struct Constant {
    name: String,
    /// Empty: an enumerator.
    value: String,
    /// At the end of the line.
    comment: String,
}

/// A header's own constants, structs and functions, in its order.
struct Header {
    name: &'static str,
    constants: Vec<Constant>,
    /// With `struct` or `union`.
    structs: Vec<(String, String)>,
    functions: Vec<Function>,
    /// What stands between brackets, as lengths of arrays do.
    lengths: String,
}

impl Header {
    fn read(name: &'static str, tree: &Tree) -> Header {
        let text = std::fs::read_to_string(root().join(name)).unwrap();
        let mut header = Header {
            name,
            constants: vec![],
            structs: vec![],
            functions: vec![],
            lengths: String::new(),
        };
        for line in text.lines() {
            let (code, comment) = line.split_once("/*").unwrap_or((line, ""));
            if let Some((name, value)) = code
                .strip_prefix("#define ")
                .and_then(|rest| rest.split_once(' '))
            {
                // No function, no attribute, nor the header's own guard.
                if !name.contains('(') && !value.is_empty() && !value.starts_with("__") {
                    let comment = comment.strip_suffix("*/").unwrap_or("").trim();
                    header.constants.push(Constant {
                        name: name.into(),
                        value: value.trim().into(),
                        comment: comment.into(),
                    });
                }
            }
            let mut words = code.split_whitespace();
            if let (Some(kind), Some(name), Some("{")) = (words.next(), words.next(), words.next())
            {
                match kind {
                    "struct" | "union" => header.structs.push((kind.into(), name.into())),
                    "enum" => header
                        .constants
                        .extend(tree.enumerators[name].iter().map(|name| Constant {
                            name: name.clone(),
                            value: String::new(),
                            comment: String::new(),
                        })),
                    _ => {}
                }
            }
            if code.starts_with(char::is_alphabetic)
                && let Some((front, _)) = code.split_once('(')
                && let Some(function) = tree.functions.get(
                    front
                        .rsplit(|c: char| !c.is_alphanumeric() && c != '_')
                        .next()
                        .unwrap(),
                )
            {
                header.functions.push(function.clone());
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

#[derive(Clone)]
struct Function {
    name: String,
    result: String,
    /// Name and type.
    parameters: Vec<(String, String)>,
}

/// What clang makes of the headers, by name.
struct Tree {
    /// The fields, with the comment above.
    structs: HashMap<String, (Vec<String>, Vec<Field>)>,
    enumerators: HashMap<String, Vec<String>>,
    functions: HashMap<String, Function>,
}

fn tree() -> Tree {
    let mut clang = clang();
    clang.args(["-fsyntax-only", "-fparse-all-comments", "-x", "c"]);
    clang.args(["-Xclang", "-ast-dump=json", "/dev/null"]);
    for header in MADE.iter().flat_map(|made| made.headers) {
        clang.args(["-include", included(header)]);
    }
    let root: Value = serde_json::from_slice(&output(&mut clang)).unwrap();
    let name = |node: &Value| node["name"].as_str().unwrap_or("").to_owned();
    let of = |node: &Value| node["type"]["qualType"].as_str().unwrap().to_owned();
    let structs = children(&root, "RecordDecl")
        .filter(|record| record["completeDefinition"] == true)
        .map(|record| {
            let fields = children(record, "FieldDecl").map(|field| Field {
                name: name(field),
                of: of(field),
                comment: comment(field),
            });
            // Without what follows the struct in memory: that has no size.
            let fields = fields.filter(|field| !field.of.ends_with("[]"));
            (name(record), (comment(record), fields.collect()))
        })
        .collect();
    let enumerators = children(&root, "EnumDecl")
        .map(|all| {
            let constants = children(all, "EnumConstantDecl").map(name);
            (name(all), constants.collect())
        })
        .collect();
    let functions = children(&root, "FunctionDecl")
        .filter(|function| function["storageClass"] != "static")
        .map(|function| {
            let parameters = children(function, "ParmVarDecl").map(|p| (name(p), of(p)));
            let made = Function {
                name: name(function),
                result: of(function).split('(').next().unwrap().to_owned(),
                parameters: parameters.collect(),
            };
            (name(function), made)
        })
        .collect();
    Tree {
        structs,
        enumerators,
        functions,
    }
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

/// What a program says that is made of `source`.
fn said_by(compiler: &mut Command, source: &str) -> HashMap<String, String> {
    let name = Path::new(compiler.get_program()).display().to_string();
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (file, program) = (
        directory.join(format!("{name}.c")),
        directory.join(format!("{name}-said")),
    );
    std::fs::write(&file, source).unwrap();
    output(compiler.args(["-w", "-o"]).args([&program, &file]));
    let text = String::from_utf8(output(&mut Command::new(&program))).unwrap();
    text.lines()
        .map(|line| {
            let (at, _) = line.match_indices(' ').nth(1).unwrap();
            (line[..at].to_owned(), line[at + 1..].to_owned())
        })
        .collect()
}

/// Says of constants `NAME = TYPE VALUE`.
fn constants_c(headers: &[Header]) -> String {
    let mut print = String::new();
    for Constant { name, .. } in headers.iter().flat_map(|header| &header.constants) {
        writeln!(
            print,
            "\tprintf(_Generic(({name}), int: \"%s = i32 %d\\n\", unsigned: \"%s = u32 %u\\n\", \
             unsigned long: \"%s = usize %lu\\n\", unsigned long long: \"%s = u64 %llu\\n\", \
             char *: \"%s = &str \\\"%s\\\"\\n\"), \"{name}\", {name});"
        )
        .unwrap();
    }
    print
}

fn layout_c<'a>(headers: impl Iterator<Item = &'a Header> + Clone, tree: &Tree) -> String {
    let mut text = "\
/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * How does this compiler lay out what the parts share?
 *
 * Prints `STRUCT - SIZE ALIGNMENT` and `STRUCT FIELD OFFSET SIZE`, in the order
 * of the headers, for C and (compiled with -x c++) C++. Made by `make abi`, and
 * held against what Rust has.
 */
"
    .to_owned();
    for header in headers.clone() {
        writeln!(text, "#include <{}>", included(header.name)).unwrap();
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
    for (kind, name) in headers.flat_map(|header| &header.structs) {
        writeln!(text, "\tS({kind}, {name});").unwrap();
        for field in &tree.structs[name].1 {
            writeln!(text, "\tF({kind}, {name}, {});", field.name).unwrap();
        }
    }
    text + "\treturn 0;\n}\n"
}

/// None: Rust has no word for it (callbacks, streams).
fn rust_type(of: &str) -> Option<String> {
    if let Some((result, parameters)) = of.split_once("(*)") {
        let parameters = parameters.trim_matches(['(', ')']).split(", ");
        let parameters: Option<Vec<String>> = parameters.map(rust_type).collect();
        let (parameters, result) = (parameters?.join(", "), rust_type(result)?);
        return Some(format!(
            "Option<unsafe extern \"C\" fn({parameters}) -> {result}>"
        ));
    }
    let (one, lengths) = of.split_at(of.find('[').unwrap_or(of.len()));
    let one = one.trim_end();
    if let Some(to) = one.strip_suffix('*') {
        let to = to.trim_end();
        let constant = if to.ends_with('*') {
            None
        } else {
            to.strip_suffix("const").or(to.strip_prefix("const "))
        };
        let kind = if constant.is_some() { "const" } else { "mut" };
        let to = match constant.unwrap_or(to) {
            "char" => "c_char".to_owned(),
            "void" => "c_void".into(),
            // Private.
            to if to.ends_with('_') => "c_void".into(),
            to => rust_type(to)?,
        };
        return Some(format!("*{kind} {to}"));
    }
    let mut rust = match one {
        "char" | "__u8" | "uint8_t" => "u8".to_owned(),
        "__u16" | "uint16_t" => "u16".into(),
        "__u32" | "uint32_t" => "u32".into(),
        "__s32" | "int32_t" => "i32".into(),
        "__u64" | "uint64_t" => "u64".into(),
        "__s64" | "int64_t" => "i64".into(),
        "size_t" => "usize".into(),
        "int" => "c_int".into(),
        "unsigned int" => "c_uint".into(),
        "long" => "c_long".into(),
        other => match other.split_once(' ')? {
            ("enum", _) => "c_uint".into(),
            ("struct" | "union", name) => name.to_owned(),
            _ => return None,
        },
    };
    // The innermost array is written last in C.
    for length in lengths.trim_matches(['[', ']']).rsplit("][") {
        if !length.is_empty() {
            rust = format!("[{rust}; {length}]");
        }
    }
    Some(rust)
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

/// As rustfmt writes it.
fn function_rs(text: &mut String, name: &str, function: &Function) {
    let result = match &*function.result {
        "void " => String::new(),
        result => match rust_type(result) {
            Some(result) => format!(" -> {result}"),
            None => return,
        },
    };
    let parameters: Option<Vec<String>> = (function.parameters.iter())
        .map(|(name, of)| Some(format!("{name}: {}", rust_type(of)?)))
        .collect();
    let Some(parameters) = parameters else {
        return;
    };
    let line = format!("    pub fn {name}({}){result};", parameters.join(", "));
    if line.len() <= 100 {
        writeln!(text, "{line}").unwrap();
    } else {
        let parameters = parameters.join(",\n        ");
        writeln!(
            text,
            "    pub fn {name}(\n        {parameters},\n    ){result};"
        )
        .unwrap();
    }
}

fn struct_rs(
    made: &Made,
    (kind, name): (&str, &str),
    (comment, fields): &(Vec<String>, Vec<Field>),
    said: &HashMap<String, String>,
) -> String {
    let numbers = |of: &str| {
        let said = &said[&format!("{name} {of}")];
        let (one, two) = said.split_once(' ').unwrap();
        (one.parse::<usize>().unwrap(), two.parse::<usize>().unwrap())
    };
    let (size, align) = numbers("-");
    let points = fields.iter().any(|field| field.of.contains('*'));
    let how = if points { "laid_out" } else { "mirror" };
    let mut text = format!("\n{how}! {{\n");
    if made.documented {
        documentation(&mut text, "    ", comment);
    }
    writeln!(text, "    {name} = {size}, {align} {{").unwrap();
    for (at, field) in fields.iter().enumerate() {
        let (mut offset, _) = numbers(&field.name);
        let mut of = rust_type(&field.of)
            .unwrap_or_else(|| panic!("{}: a type that no field may have", field.of));
        // The room that a union keeps for what comes later.
        if kind == "union" && at > 0 {
            (_, offset) = numbers(&fields[0].name);
            of = format!("[u8; {}]", size - offset);
        }
        if made.documented {
            documentation(&mut text, "        ", &field.comment);
        }
        let name = match &*field.name {
            "type" => "kind",
            name => name,
        };
        writeln!(text, "        {name}: {of} = {offset},").unwrap();
    }
    text + "    }\n}\n"
}

fn generated_rs(
    made: &Made,
    headers: &[Header],
    tree: &Tree,
    said: &HashMap<String, String>,
) -> String {
    let of_this: Vec<&Header> = (headers.iter())
        .filter(|header| made.headers.contains(&header.name))
        .collect();
    let lengths: String = of_this.iter().map(|header| &*header.lengths).collect();
    let is_length = |name: &str| {
        COUNTS.contains(&name)
            || lengths
                .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                .any(|word| word == name)
    };
    // Names that end so are private.
    let told = |name: &str| !name.ends_with('_');
    let mut text = String::new();
    for header in &of_this {
        if of_this.len() > 1 {
            writeln!(text, "\n// {}", included(header.name)).unwrap();
        }
        text.push('\n');
        for Constant {
            name,
            value: written,
            comment,
        } in header.constants.iter().filter(|c| told(&c.name))
        {
            let (of, value) = said[&format!("{name} =")].split_once(' ').unwrap();
            let value = as_written(written).unwrap_or(value.to_owned());
            let of = match of {
                _ if is_length(name) => "usize",
                _ if written.is_empty() => "u32",
                of => of,
            };
            if made.documented && !comment.is_empty() {
                documentation(&mut text, "", std::slice::from_ref(comment));
            }
            writeln!(text, "pub const {name}: {of} = {value};").unwrap();
        }
        for (kind, name) in header.structs.iter().filter(|(_, name)| told(name)) {
            text += &struct_rs(made, (kind, name), &tree.structs[name], said);
        }
    }
    for name in made.also {
        text += &struct_rs(made, ("struct", name), &tree.structs[*name], said);
    }
    let mut functions = String::new();
    for function in of_this.iter().flat_map(|header| &header.functions) {
        if let Some(name) = (made.function)(&function.name) {
            function_rs(&mut functions, &name, function);
        }
    }
    if !functions.is_empty() {
        write!(text, "\nunsafe extern \"C\" {{\n{functions}}}\n").unwrap();
    }
    let words: Vec<&str> = ["c_char", "c_int", "c_long", "c_uint", "c_void"]
        .into_iter()
        .filter(|word| text.contains(word))
        .collect();
    let words = match &*words.join(", ") {
        "" => String::new(),
        words => format!("use core::ffi::{{{words}}};\n"),
    };
    format!(
        "\
// SPDX-License-Identifier: MIT OR Apache-2.0
//! What {}, in Rust?
//!
//! Made by `make abi` and not by hand. A constant that is an array's length is a
//! usize; a field that C calls `type` is called `kind`.
{}
{words}{}
{text}",
        made.says,
        if made.documented {
            "#![allow(rustdoc::broken_intra_doc_links)]\n"
        } else {
            ""
        },
        made.uses
    )
}

struct Headers {
    read: Vec<Header>,
    tree: Tree,
    /// tests/abi/layout.c
    layout: String,
    /// Constants as `constants_c`, structs as `layout_c` says.
    said: HashMap<String, String>,
}

static HEADERS: LazyLock<Headers> = LazyLock::new(|| {
    let tree = tree();
    let names = MADE.iter().flat_map(|made| made.headers);
    let read: Vec<Header> = names.map(|name| Header::read(name, &tree)).collect();
    let public = read.iter().filter(|h| h.name.starts_with("include/"));
    let layout = layout_c(public, &tree);
    let all = layout_c(read.iter(), &tree);
    let all = all.replace("\treturn 0;", &(constants_c(&read) + "\treturn 0;"));
    Headers {
        said: said_by(&mut clang(), &all),
        read,
        tree,
        layout,
    }
});

#[test]
fn what_is_made_from_the_headers_is_up_to_date() {
    let Headers {
        read,
        tree,
        layout,
        said,
    } = &*HEADERS;
    let rust = MADE
        .iter()
        .map(|made| (made.file, generated_rs(made, read, tree, said)));
    for (file, text) in rust.chain([("tests/abi/layout.c", layout.clone())]) {
        let file = root().join(file);
        if std::env::var_os(WRITE).is_some() {
            std::fs::write(&file, text).unwrap();
            continue;
        }
        let kept = std::fs::read_to_string(&file).unwrap_or_default();
        if kept != text {
            let differs = kept.lines().zip(text.lines()).find(|(a, b)| a != b);
            panic!(
                "{} is not what the headers say: run `make abi`. First difference: {differs:?}",
                file.display()
            );
        }
    }
}

/// Rust asserts of its structs what clang says of them.
#[test]
fn c_and_cxx_and_rust_agree() {
    for (compiler, language) in [
        ("cc", ["-xc", "-std=gnu11"]),
        ("c++", ["-xc++", "-std=c++11"]),
    ] {
        let mut command = Command::new(compiler);
        command.args(language).arg("-I").arg(root().join("include"));
        let layout = said_by(&mut command, &HEADERS.layout);
        assert!(layout.len() > 300);
        for (of, numbers) in layout {
            assert_eq!(HEADERS.said[&of], numbers, "{compiler}: {of}");
        }
    }
}
