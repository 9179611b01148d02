// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does blocked time look to pprof?
//!
//! A gzipped profile.proto. Each sample is a stack of the program, the system
//! call, the kernel's functions and, innermost, the label in brackets. Four
//! values: calls and their wall time (from call sites, or per call where there
//! are none), sleeps and their blocked time (from paths). `call` and `label`
//! are there as sample labels too, for -tagfocus and -tagroot.

use std::collections::HashMap;
use std::io::Write;

use debox_report::Report;
use flate2::{Compression, GzBuilder};
use prost::Message;

use crate::path::{Step, call_name, frame_name, paths, program_steps};

// The messages of profile.proto (github.com/google/pprof), by field number.

#[derive(Clone, PartialEq, Message)]
struct Profile {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(message, repeated, tag = "3")]
    mapping: Vec<Mapping>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    #[prost(int64, tag = "10")]
    duration_nanos: i64,
    #[prost(int64, repeated, tag = "13")]
    comment: Vec<i64>,
    #[prost(int64, tag = "14")]
    default_sample_type: i64,
}

#[derive(Clone, PartialEq, Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    kind: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    label: Vec<Label>,
}

#[derive(Clone, PartialEq, Message)]
struct Label {
    #[prost(int64, tag = "1")]
    key: i64,
    #[prost(int64, tag = "2")]
    str: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Mapping {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "5")]
    filename: i64,
    #[prost(bool, tag = "7")]
    has_functions: bool,
    #[prost(bool, tag = "8")]
    has_filenames: bool,
    #[prost(bool, tag = "9")]
    has_line_numbers: bool,
    #[prost(bool, tag = "10")]
    has_inline_frames: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    mapping_id: u64,
    #[prost(uint64, tag = "3")]
    address: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<Line>,
}

#[derive(Clone, PartialEq, Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function_id: u64,
    #[prost(int64, tag = "2")]
    line: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "3")]
    system_name: i64,
    #[prost(int64, tag = "4")]
    filename: i64,
}

/// Tables in which everything stands once.
#[derive(Default)]
struct Build {
    profile: Profile,
    strings: HashMap<String, i64>,
    mappings: HashMap<String, u64>,
    functions: HashMap<(String, String), u64>,
    locations: HashMap<(u64, u64, u64, i64), u64>,
}

impl Build {
    fn string(&mut self, s: &str) -> i64 {
        if let Some(index) = self.strings.get(s) {
            return *index;
        }
        let index = self.profile.string_table.len() as i64;
        self.profile.string_table.push(s.to_owned());
        self.strings.insert(s.to_owned(), index);
        index
    }

    fn mapping(&mut self, name: &str) -> u64 {
        if let Some(id) = self.mappings.get(name) {
            return *id;
        }
        let id = self.profile.mapping.len() as u64 + 1;
        let filename = self.string(name);
        // Everything has names already: pprof need not look for symbols.
        self.profile.mapping.push(Mapping {
            id,
            filename,
            has_functions: true,
            has_filenames: true,
            has_line_numbers: true,
            has_inline_frames: true,
        });
        self.mappings.insert(name.to_owned(), id);
        id
    }

    fn location(
        &mut self,
        module: &str,
        address: u64,
        function: &str,
        file: &str,
        line: u32,
    ) -> u64 {
        let mapping_id = self.mapping(module);
        let name = (function.to_owned(), file.to_owned());
        let function_id = match self.functions.get(&name) {
            Some(id) => *id,
            None => {
                let id = self.profile.function.len() as u64 + 1;
                let name_index = self.string(function);
                let filename = self.string(file);
                self.profile.function.push(Function {
                    id,
                    name: name_index,
                    system_name: name_index,
                    filename,
                });
                self.functions.insert(name, id);
                id
            }
        };
        let key = (mapping_id, address, function_id, i64::from(line));
        if let Some(id) = self.locations.get(&key) {
            return *id;
        }
        let id = self.profile.location.len() as u64 + 1;
        self.profile.location.push(Location {
            id,
            mapping_id,
            address,
            line: vec![Line {
                function_id,
                line: i64::from(line),
            }],
        });
        self.locations.insert(key, id);
        id
    }

    fn step(&mut self, step: &Step) -> u64 {
        match step {
            Step::Cut => self.location("", 0, "(cut off)", "", 0),
            Step::Program(frame) => self.location(
                frame.module.as_deref().unwrap_or(""),
                frame.offset,
                &frame_name(frame),
                frame.file.as_deref().unwrap_or(""),
                frame.line.unwrap_or(0),
            ),
            Step::Call(call) => self.location("[system call]", 0, call, "", 0),
            Step::Kernel(function, site) => {
                let file = site.and_then(|s| s.file.as_deref()).unwrap_or("");
                let line = site.and_then(|s| s.line).unwrap_or(0);
                self.location("[kernel]", 0, function, file, line)
            }
            Step::Label(label) => self.location("[label]", 0, &format!("[{label}]"), "", 0),
        }
    }

    fn sample(&mut self, steps: &[Step], values: [u64; 4], call: &str, label: Option<&str>) {
        // Innermost first.
        let location_id = steps.iter().rev().map(|s| self.step(s)).collect();
        let mut labels = Vec::new();
        for (key, value) in [("call", Some(call)), ("label", label)] {
            if let Some(value) = value {
                labels.push(Label {
                    key: self.string(key),
                    str: self.string(value),
                });
            }
        }
        let value = values
            .iter()
            .map(|v| i64::try_from(*v).unwrap_or(i64::MAX))
            .collect();
        self.profile.sample.push(Sample {
            location_id,
            value,
            label: labels,
        });
    }
}

/// A gzipped profile.
pub fn pprof(report: &Report) -> Vec<u8> {
    let mut b = Build::default();
    b.string("");
    for (kind, unit) in [
        ("calls", "count"),
        ("wall", "nanoseconds"),
        ("sleeps", "count"),
        ("blocked", "nanoseconds"),
    ] {
        let value = ValueType {
            kind: b.string(kind),
            unit: b.string(unit),
        };
        b.profile.sample_type.push(value);
    }
    b.profile.default_sample_type = b.string("blocked");
    b.profile.duration_nanos = i64::try_from(report.run.wall_ns).unwrap_or(i64::MAX);
    // pprof calls the profile by its first mapping.
    let program = report.run.command.first().map_or("", String::as_str);
    b.mapping(program.rsplit('/').next().unwrap_or(program));
    let comment = format!(
        "DeBox {}: {}",
        report.debox_version,
        report.run.command.join(" ")
    );
    let comment = b.string(&comment);
    b.profile.comment.push(comment);

    for path in paths(report) {
        let values = [0, 0, path.count, path.total_ns];
        b.sample(&path.steps, values, &path.call, Some(path.label));
    }
    if report.call_sites.is_empty() {
        for row in &report.calls {
            let call = call_name(Some(&row.name), row.abi);
            let values = [row.count, row.wall(), 0, 0];
            b.sample(&[Step::Call(call.clone())], values, &call, None);
        }
    }
    for row in &report.call_sites {
        let mut steps = program_steps(report, row.stack);
        // Without a stack the place is known as text only.
        let frame = debox_report::Frame {
            function: Some(row.place.clone()),
            ..Default::default()
        };
        if steps.is_empty() {
            steps.push(Step::Program(&frame));
        }
        steps.push(Step::Call(row.call.clone()));
        b.sample(&steps, [row.count, row.wall(), 0, 0], &row.call, None);
    }

    let mut gzip = GzBuilder::new().write(Vec::new(), Compression::default());
    gzip.write_all(&b.profile.encode_to_vec())
        .and_then(|()| gzip.finish())
        .expect("memory takes everything")
}
