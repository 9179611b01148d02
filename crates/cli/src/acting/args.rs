// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which conditions and actions does the command line name, and which belongs
//! to which?
//!
//! Order matters: --do belongs to the --on before it, --limit and --every to
//! the --do before them.

use clap::error::{Error, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use std::path::PathBuf;

#[derive(Clone, Debug, Default)]
pub struct ActArgs {
    pub rules: Vec<RuleArgs>,
    /// Where print and stack write.
    pub log: Option<PathBuf>,
}

#[derive(Clone, Debug)]
pub struct RuleArgs {
    pub on: String,
    /// At least one.
    pub actions: Vec<ActionArgs>,
}

#[derive(Clone, Debug, Default)]
pub struct ActionArgs {
    pub text: String,
    pub limit: Option<u64>,
    pub every: Option<String>,
}

/// What is done where no --do says what.
const DEFAULT_ACTION: &str = "print";

impl Args for ActArgs {
    fn augment_args(command: Command) -> Command {
        let repeated = |name: &'static str, value: &'static str| {
            Arg::new(name)
                .long(name)
                .value_name(value)
                .action(ArgAction::Append)
        };
        command
            .arg(
                repeated("on", "EXPR")
                    .help("Act when a call meets this condition, such as 'call == fsync && wall > 20ms'"),
            )
            .arg(repeated("do", "ACTION").help(
                "What to do then: print, stack, core, stop, 'signal NAME' or 'exec CMD'; several times \
                 for several actions [default: print]",
            ))
            .arg(
                repeated("limit", "N")
                    .hide_short_help(true)
                    .value_parser(clap::value_parser!(u64))
                    .help(
                        "Do the action before at most N times, 0: without limit [default: print 1000, \
                         stack 100, exec 10, signal 10, core 1, stop 1]",
                    ),
            )
            .arg(
                repeated("every", "TIME")
                    .hide_short_help(true)
                    .help("... and not again before this time has passed, such as 1s"),
            )
            .arg(
                Arg::new("log")
                    .long("log")
                    .value_name("FILE")
                    .value_parser(clap::value_parser!(PathBuf))
                    .requires("on")
                    .hide_short_help(true)
                    .help("Where print and stack write, instead of standard error"),
            )
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for ActArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let mut words: Vec<(usize, &str, String)> = Vec::new();
        for name in ["on", "do", "every"] {
            let values = matches.get_many::<String>(name).into_iter().flatten();
            let places = matches.indices_of(name).into_iter().flatten();
            words.extend(
                places
                    .zip(values)
                    .map(|(at, value)| (at, name, value.clone())),
            );
        }
        let values = matches.get_many::<u64>("limit").into_iter().flatten();
        let places = matches.indices_of("limit").into_iter().flatten();
        words.extend(
            places
                .zip(values)
                .map(|(at, n)| (at, "limit", n.to_string())),
        );
        words.sort();

        let wrong = |text: String| Error::raw(ErrorKind::MissingRequiredArgument, text + "\n");
        let mut rules: Vec<RuleArgs> = Vec::new();
        for (_, name, value) in words {
            if name == "on" {
                rules.push(RuleArgs {
                    on: value,
                    actions: Vec::new(),
                });
                continue;
            }
            let Some(rule) = rules.last_mut() else {
                return Err(wrong(format!(
                    "--{name} {value} needs a condition before it: --on EXPR"
                )));
            };
            if name == "do" {
                rule.actions.push(ActionArgs {
                    text: value,
                    ..ActionArgs::default()
                });
                continue;
            }
            if rule.actions.is_empty() {
                rule.actions.push(ActionArgs {
                    text: DEFAULT_ACTION.into(),
                    ..ActionArgs::default()
                });
            }
            let Some(action) = rule.actions.last_mut() else {
                continue;
            };
            let twice = if name == "limit" {
                action.limit.replace(value.parse().unwrap_or(0)).is_some()
            } else {
                action.every.replace(value).is_some()
            };
            if twice {
                return Err(wrong(format!(
                    "--{name} is given twice for --do {}",
                    action.text
                )));
            }
        }
        for rule in &mut rules {
            if rule.actions.is_empty() {
                rule.actions.push(ActionArgs {
                    text: DEFAULT_ACTION.into(),
                    ..ActionArgs::default()
                });
            }
        }
        Ok(Self {
            rules,
            log: matches.get_one("log").cloned(),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<ActArgs, Error> {
        let command = ActArgs::augment_args(Command::new("x"));
        ActArgs::from_arg_matches(&command.try_get_matches_from([&["x"], words].concat())?)
    }

    #[test]
    fn what_belongs_to_what_is_a_matter_of_order() {
        let args = parse(&[
            "--on",
            "a",
            "--do",
            "stack",
            "--limit",
            "3",
            "--do",
            "exec date",
            "--every",
            "1s",
            "--on",
            "b",
            "--limit",
            "7",
            "--on",
            "c",
        ])
        .unwrap();
        let flat: Vec<String> = args
            .rules
            .iter()
            .flat_map(|rule| {
                rule.actions.iter().map(|a| {
                    format!(
                        "{} {} {:?} {:?}",
                        rule.on,
                        a.text,
                        a.limit,
                        a.every.as_deref()
                    )
                })
            })
            .collect();
        assert_eq!(
            flat,
            [
                "a stack Some(3) None",
                "a exec date None Some(\"1s\")",
                "b print Some(7) None",
                "c print None None",
            ]
        );
        assert!(parse(&[]).unwrap().rules.is_empty());
    }

    #[test]
    fn nothing_is_left_hanging() {
        for bad in [
            &["--do", "stack"][..],
            &["--do", "stack", "--on", "a"],
            &["--limit", "1"],
            &["--on", "a", "--limit", "x"],
            &["--on", "a", "--do", "core", "--limit", "1", "--limit", "2"],
            &["--log", "x"],
        ] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
