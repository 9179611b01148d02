// SPDX-License-Identifier: MIT OR Apache-2.0
//! Does every line of the shared table hold?

use debox_condition::*;

const TABLE: &str = include_str!("../../../tests/condition/table.txt");

fn facts(line: &str) -> CallFacts<'_> {
    let mut call = CallFacts::default();
    let none_unknown = |text| (text != "?").then_some(text);
    for part in line.split_whitespace() {
        let (name, value) = part.split_once('=').expect(part);
        let number = match name {
            "call" => {
                call.key = debox_symbol::syscall_number(value).map(|nr| nr as u32);
                assert!(call.key.is_some(), "{value}");
                continue;
            }
            "comm" => {
                call.comm = Some(value);
                continue;
            }
            "site" => {
                let (label, function) = value.split_once(':').expect(value);
                call.sites.push(SiteFacts {
                    label: none_unknown(label),
                    function: none_unknown(function),
                    ..SiteFacts::default()
                });
                continue;
            }
            "wall" => Number::Wall,
            "cpu" => Number::Cpu,
            "blocked" => Number::Blocked,
            "runq" => Number::Runq,
            "irq" => Number::Irq,
            "retval" => Number::Retval,
            "minflt" => Number::Minflt,
            "majflt" => Number::Majflt,
            "sleeps" => Number::Sleeps,
            "preemptions" => Number::Preemptions,
            "waiters" => Number::Waiters,
            "pid" => Number::Pid,
            "tid" => Number::Tid,
            other => panic!("no such fact: {other}"),
        };
        call.numbers[number as usize] = Some(value.parse().expect(value));
    }
    call
}

/// What stands between the bars, which are blank, bar, blank.
fn cells(line: &str) -> Vec<&str> {
    let cells: Vec<&str> = line
        .trim_end_matches(' ')
        .split('¦')
        .map(|cell| cell.strip_prefix(' ').unwrap_or(cell))
        .map(|cell| cell.strip_suffix(' ').unwrap_or(cell))
        .collect();
    assert_eq!(cells.len(), 4, "{line}");
    cells
}

#[test]
fn every_line_holds() {
    let mut call = CallFacts::default();
    let (mut lines, mut wrong) = (0, Vec::new());
    for line in TABLE.lines() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        lines += 1;
        let (kind, rest) = line.split_once(' ').unwrap();
        match kind {
            "ok" => {
                if let Err(error) = Expression::parse(rest) {
                    wrong.push(format!("{line}\n{}", error.render(rest)));
                }
            }
            "bad" => {
                let cells = cells(rest);
                match Expression::parse(cells[1]) {
                    Ok(_) => wrong.push(format!("{line}\naccepted")),
                    Err(error) => {
                        let found = format!(
                            "{} ¦ {} ¦ {} ¦ {}",
                            error.at + 1,
                            cells[1],
                            error,
                            error.help
                        );
                        if found != cells.join(" ¦ ") {
                            wrong.push(format!("{line}\nbad {found}"));
                        }
                    }
                }
            }
            "call" => call = facts(rest),
            "yes" | "no" | "unknown" => {
                let expected = match kind {
                    "yes" => Answer::Yes,
                    "no" => Answer::No,
                    _ => Answer::Unknown,
                };
                match Expression::parse(rest) {
                    Err(error) => wrong.push(format!("{line}\n{}", error.render(rest))),
                    Ok(expression) => {
                        let answer = expression.judge(&call);
                        if answer != expected {
                            wrong.push(format!("{line}: {answer:?}"));
                        }
                    }
                }
            }
            other => panic!("no such line: {other}"),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    assert!(lines > 120, "{lines}");
}

#[test]
fn callers_and_the_32_bit_table() {
    let mut call = CallFacts {
        key: Some(512 + 118),
        caller: Some("commit"),
        ..CallFacts::default()
    };
    let judge = |call: &CallFacts<'_>, text: &str| Expression::parse(text).unwrap().judge(call);
    assert_eq!(judge(&call, "call == fsync"), Answer::Yes);
    assert_eq!(judge(&call, "caller =~ comm*"), Answer::Yes);
    assert_eq!(judge(&call, "caller != commit"), Answer::No);
    call.caller = None;
    assert_eq!(judge(&call, "caller == commit"), Answer::Unknown);
    assert_eq!(judge(&call, "call == ugetrlimit"), Answer::No);
}
