// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which conditions and actions does the command line name, and which belongs
//! to which?
//!
//! Order matters: --do belongs to the --on before it, --limit and --every to
//! the --do before them.

use clap::error::{Error, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use debox_command::duration;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Clone, Debug, Default)]
pub struct ActArgs {
    pub rules: Vec<RuleArgs>,
    /// Where print and stack write.
    pub log: Option<PathBuf>,
    /// Of who goes on for ever, and looks at events himself: hints were given, and `keep` is his.
    pub lasting: bool,
}

impl ActArgs {
    /// Of what is left on.
    pub fn lasting(rules: Vec<RuleArgs>) -> Self {
        Self {
            rules,
            log: None,
            lasting: true,
        }
    }
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
    pub every: Option<Duration>,
}

/// What is done where no --do says what.
const DEFAULT_ACTION: &str = "print";

impl RuleArgs {
    fn action(&mut self, text: String) {
        self.actions.push(ActionArgs {
            text,
            ..ActionArgs::default()
        });
    }

    fn action_last(&mut self) -> &mut ActionArgs {
        if self.actions.is_empty() {
            self.action(DEFAULT_ACTION.into());
        }
        self.actions.last_mut().expect("there is one now")
    }
}

enum Word {
    On(String),
    Do(String),
    Limit(u64),
    Every(Duration),
}

/// Where it stands on the command line, and as it was written.
struct Placed {
    at: usize,
    name: &'static str,
    value: String,
    word: Word,
}

fn placed<T: Clone + Send + Sync + 'static>(
    matches: &ArgMatches,
    name: &'static str,
    word: fn(T) -> Word,
) -> impl Iterator<Item = Placed> {
    let places = matches.indices_of(name).into_iter().flatten();
    let written = matches.get_raw(name).into_iter().flatten();
    let values = matches.get_many::<T>(name).into_iter().flatten();
    places
        .zip(written.zip(values))
        .map(move |(at, (written, value))| Placed {
            at,
            name,
            value: written.to_string_lossy().into_owned(),
            word: word(value.clone()),
        })
}

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
                    .help("Act when a call meets this condition, such as 'call == fsync && wall > 20ms'")
                    .long_help(
                        "Act when a call meets this condition, such as 'call == fsync && wall > 20ms'\n\n\
                         Times: wall, cpu, blocked, runq, irq. Numbers: retval, errno, faults, minflt, \
                         majflt, sleeps, preemptions, waiters, pid, tid. Names: call, label, function, \
                         holder, root, chain, comm, caller. They are compared by == != < <= > >= in, \
                         names by =~ !~ with * and ?, and put together by && || ! ( ). %file, %network, \
                         %sync and others are groups of calls",
                    ),
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
                    .value_parser(duration)
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
        let mut words: Vec<Placed> = placed(matches, "on", Word::On)
            .chain(placed(matches, "do", Word::Do))
            .chain(placed(matches, "limit", Word::Limit))
            .chain(placed(matches, "every", Word::Every))
            .collect();
        words.sort_by_key(|word| word.at);

        let wrong = |text: String| Error::raw(ErrorKind::MissingRequiredArgument, text + "\n");
        let mut rules: Vec<RuleArgs> = Vec::new();
        for Placed {
            name, value, word, ..
        } in words
        {
            if let Word::On(on) = word {
                rules.push(RuleArgs {
                    on,
                    actions: Vec::new(),
                });
                continue;
            }
            let Some(rule) = rules.last_mut() else {
                return Err(wrong(format!(
                    "--{name} {value} needs a condition before it: --on EXPR"
                )));
            };
            let twice = match word {
                Word::On(_) => false,
                Word::Do(text) => {
                    rule.action(text);
                    false
                }
                Word::Limit(limit) => rule.action_last().limit.replace(limit).is_some(),
                Word::Every(every) => rule.action_last().every.replace(every).is_some(),
            };
            if twice {
                return Err(wrong(format!(
                    "--{name} is given twice for --do {}",
                    rule.action_last().text
                )));
            }
        }
        for rule in &mut rules {
            rule.action_last();
        }
        Ok(Self {
            rules,
            log: matches.get_one("log").cloned(),
            lasting: false,
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
                rule.actions
                    .iter()
                    .map(|a| format!("{} {} {:?} {:?}", rule.on, a.text, a.limit, a.every))
            })
            .collect();
        assert_eq!(
            flat,
            [
                "a stack Some(3) None",
                "a exec date None Some(1s)",
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
