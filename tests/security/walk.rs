// SPDX-License-Identifier: MIT OR Apache-2.0
//! Does every promise in a table name a test that exists and runs?
//!
//! A table of SECURITY.md or docs/security.md with a column `test` makes
//! promises: that cell of each row names tests as `file::name`, and the file is
//! a path in this tree, or the end of one that is the only such.

use std::path::{Path, PathBuf};

/// One row of a table with a column `test`.
#[derive(Debug)]
pub struct Promise {
    pub line: usize,
    pub what: String,
    pub tests: Vec<(String, String)>,
}

/// The cells of a row of a Markdown table.
fn cells(line: &str) -> Option<Vec<String>> {
    let inner = line.trim().strip_prefix('|')?.strip_suffix('|')?;
    // `\|` is a bar in a cell.
    let inner = inner.replace("\\|", "\u{0}");
    let cell = |text: &str| text.replace('\u{0}', "|").trim().to_owned();
    Some(inner.split('|').map(cell).collect())
}

/// What stands between backquotes and has the form `file::name`.
fn references(cell: &str) -> Vec<(String, String)> {
    cell.split('`')
        .skip(1)
        .step_by(2)
        .filter_map(|code| code.split_once("::"))
        .map(|(file, name)| (file.to_owned(), name.to_owned()))
        .collect()
}

pub fn promises(text: &str) -> Vec<Promise> {
    let mut out = Vec::new();
    let mut column = None;
    let mut header_next = true;
    for (index, line) in text.lines().enumerate() {
        let Some(cells) = cells(line) else {
            (column, header_next) = (None, true);
            continue;
        };
        if header_next {
            column = cells
                .iter()
                .position(|cell| cell == "test" || cell == "tests");
            header_next = false;
            continue;
        }
        let rule = cells
            .iter()
            .all(|c| !c.is_empty() && c.chars().all(|c| "-: ".contains(c)));
        let Some(column) = column.filter(|_| !rule) else {
            continue;
        };
        out.push(Promise {
            line: index + 1,
            what: cells[0].clone(),
            tests: cells
                .get(column)
                .map(|cell| references(cell))
                .unwrap_or_default(),
        });
    }
    out
}

/// All files of the tree in which tests may stand.
pub fn files(root: &Path) -> Vec<PathBuf> {
    let mut out = Vec::new();
    let mut left = vec![root.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in std::fs::read_dir(&directory)
            .expect("a directory of the tree")
            .flatten()
        {
            let (path, name) = (entry.path(), entry.file_name());
            let kind = entry.file_type().expect("a kind of file");
            if kind.is_dir() && name != "target" && !name.to_string_lossy().starts_with('.') {
                left.push(path);
            } else if kind.is_file() {
                out.push(path);
            }
        }
    }
    out
}

/// Why `name` is no test of that file; None when it is one.
fn missing(path: &Path, text: &str, name: &str) -> Option<String> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let definition = match path.extension().and_then(|e| e.to_str()) {
        Some("rs") => format!("fn {name}("),
        Some("py") => format!("def {name}("),
        _ => format!("{name}("),
    };
    let Some(at) = lines.iter().position(|line| line.contains(&definition)) else {
        return Some(format!("there is no `{definition}` in {}", path.display()));
    };
    if path.extension().is_none_or(|e| e != "rs") {
        return None;
    }
    let attributes: Vec<&str> = lines[..at]
        .iter()
        .rev()
        .take_while(|line| line.starts_with("#[") || line.starts_with("//"))
        .copied()
        .collect();
    if attributes.iter().any(|line| line.starts_with("#[ignore")) {
        return Some(format!("{name} in {} is ignored", path.display()));
    }
    // A file without the test harness keeps a list of names.
    let listed = lines
        .iter()
        .any(|line| line.contains(&format!("\"{name}\"")));
    if !listed && !attributes.contains(&"#[test]") {
        return Some(format!("{name} in {} is not run as a test", path.display()));
    }
    None
}

/// What is wrong with the promises of `text`, one line each.
pub fn faults(document: &str, text: &str, root: &Path, tree: &[PathBuf]) -> Vec<String> {
    let mut out = Vec::new();
    for promise in promises(text) {
        let place = format!("{document}:{} ({})", promise.line, promise.what);
        if promise.tests.is_empty() {
            out.push(format!("{place} names no test"));
        }
        for (file, name) in &promise.tests {
            let whole: Vec<&PathBuf> = tree.iter().filter(|p| **p == root.join(file)).collect();
            let found = match whole.is_empty() {
                true => tree.iter().filter(|path| path.ends_with(file)).collect(),
                false => whole,
            };
            match found[..] {
                [path] => {
                    let text = std::fs::read_to_string(path).unwrap_or_default();
                    out.extend(missing(path, &text, name).map(|why| format!("{place}: {why}")));
                }
                [] => out.push(format!("{place}: there is no file {file}")),
                _ => out.push(format!("{place}: {file} is not one file but {found:?}")),
            }
        }
    }
    out
}

#[test]
fn a_promise_without_its_test_is_found() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("kept.rs");
    let text = "#[test]\nfn kept() {}\n#[test]\n#[ignore]\nfn ignored() {}\nfn helper() {}\n\
                const LIST: &[&str] = &[\"listed\"];\nfn listed() {}\n";
    std::fs::write(&file, text).expect("written");
    // The end of its path is that of another, too; the whole path comes first.
    let tree = [file, dir.path().join("elsewhere/kept.rs")];
    let table = "| promise | test |\n|---|---|\n\
                 | good | `kept.rs::kept`, `kept.rs::listed` |\n\
                 | a | `kept.rs::gone` |\n| b | `kept.rs::ignored` |\n\
                 | c \\| d | `kept.rs::helper` |\n| e | `other.rs::kept` |\n| f | by hand |\n\n\
                 | no | promise |\n|---|---|\n| x | y |\n";
    let faults = faults("T.md", table, dir.path(), &tree);
    let wanted = [
        "T.md:4 (a): there is no `fn gone(`",
        "T.md:5 (b): ignored in",
        "T.md:6 (c | d): helper in",
        "T.md:7 (e): there is no file other.rs",
        "T.md:8 (f) names no test",
    ];
    assert_eq!(faults.len(), wanted.len(), "{faults:#?}");
    for (fault, wanted) in faults.iter().zip(wanted) {
        assert!(fault.starts_with(wanted), "{fault}");
    }
}

#[test]
fn every_promise_names_tests_that_exist() {
    let root = debox_tests::root();
    let tree = files(&root);
    let mut out = Vec::new();
    for (document, at_least) in [("SECURITY.md", 10), ("docs/security.md", 5)] {
        let text = std::fs::read_to_string(root.join(document)).expect(document);
        let count = promises(&text).len();
        if count < at_least {
            out.push(format!(
                "{document} has {count} promises in tables with a column `test`"
            ));
        }
        out.extend(faults(document, &text, &root, &tree));
    }
    assert!(out.is_empty(), "{}", out.join("\n"));
}
