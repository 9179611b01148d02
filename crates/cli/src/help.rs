// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does a command line look like, and what do --help and --help-all show?
//!
//! Help and completions come from the definitions of the arguments; the tests
//! below hold the manual pages, and every command line that is written down in
//! them and in the documents, against these.

use crate::args::Cli;
use clap::builder::Resettable;
use clap::{Arg, ArgAction, Command, CommandFactory, FromArgMatches};
use std::ffi::OsString;

/// --help shows the options that people use; those that are marked
/// `hide_short_help` come with --help-all only.
fn with_help(command: Command) -> Command {
    let short = Arg::new("help")
        .short('h')
        .long("help")
        .action(ArgAction::HelpShort)
        .help("Print the usual options")
        .help_heading(Resettable::Reset);
    let all = Arg::new("help-all")
        .long("help-all")
        .action(ArgAction::HelpLong)
        .help("Print all options, and more about them")
        .help_heading(Resettable::Reset);
    command
        .disable_help_flag(true)
        .arg(short)
        .arg(all)
        .mut_subcommands(with_help)
}

/// debox with all its commands and options.
pub fn command() -> Command {
    // `run` has more ways than a running process.
    let less = |command: Command| command.mut_arg("capture_way", |way| way.hide_short_help(true));
    with_help(Cli::command().mut_subcommand("attach", less))
}

pub fn parse(
    words: impl IntoIterator<Item = impl Into<OsString> + Clone>,
) -> clap::error::Result<Cli> {
    let mut matches = command().try_get_matches_from(words)?;
    Cli::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::error::{ContextKind, ErrorKind};
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};

    /// What people use of `run`, beside help.
    const USUAL: usize = 10;

    fn top() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    fn read(path: &Path) -> String {
        std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    fn is_help(arg: &Arg) -> bool {
        ["help", "help-all", "version"].contains(&arg.get_id().as_str())
    }

    /// Options of a command and of those below it, as users see them.
    fn options(command: &Command, found: &mut Vec<Arg>) {
        let shown = command
            .get_arguments()
            .filter(|arg| !arg.is_positional() && !arg.is_hide_set() && !is_help(arg));
        found.extend(shown.cloned());
        for below in command.get_subcommands().filter(|c| !c.is_hide_set()) {
            options(below, found);
        }
    }

    fn options_of(command: &Command) -> Vec<Arg> {
        let mut found = Vec::new();
        options(command, &mut found);
        found
    }

    /// Two of one name would get each other's rules, in a release without a word.
    #[test]
    fn options_have_names_of_their_own() {
        for command in command().get_subcommands() {
            let mut seen = BTreeSet::new();
            for arg in command.get_arguments() {
                assert!(
                    seen.insert(arg.get_id().clone()),
                    "{}: two are {}",
                    command.get_name(),
                    arg.get_id()
                );
            }
        }
    }

    #[test]
    fn usual_options_are_few_and_the_rest_is_not_lost() {
        for name in ["run", "attach", "kern", "top"] {
            let mut all = command();
            all.build();
            let command = all.find_subcommand_mut(name).unwrap();
            let (short, long) = (
                command.render_help().to_string(),
                command.render_long_help().to_string(),
            );
            let options = options_of(command);
            // Whom to watch is a section of its own.
            let usual = options
                .iter()
                .filter(|arg| !arg.is_hide_short_help_set() && arg.get_help_heading().is_none());
            assert!(usual.count() <= USUAL, "{short}");
            for arg in &options {
                let option = format!("--{}", arg.get_long().unwrap());
                let stands = |help: &str| {
                    let list = help.split("\nExamples:").next().unwrap_or_default();
                    list.split_whitespace().any(|word| word == option)
                };
                assert!(stands(&long), "{option} in:\n{long}");
                assert_eq!(
                    stands(&short),
                    !arg.is_hide_short_help_set(),
                    "{option} in:\n{short}"
                );
            }
            assert!(short.contains("--help-all"));
        }
    }

    /// The options that a manual page defines: `.It Fl o , Fl \&-output Ar file`.
    fn defined(page: &str) -> BTreeSet<String> {
        page.lines()
            .filter_map(|line| line.strip_prefix(".It Fl "))
            .flat_map(|line| line.split(" , Fl "))
            .map(|option| {
                let name = option.split_whitespace().next().unwrap();
                let takes = option
                    .split_whitespace()
                    .nth(1)
                    .is_some_and(|word| word == "Ar" || word == "Op");
                let dashes = name.replace("\\&", "-");
                let dashes = if dashes.starts_with('-') {
                    dashes
                } else {
                    format!("-{dashes}")
                };
                format!("{dashes}{}", if takes { " VALUE" } else { "" })
            })
            .collect()
    }

    /// The same of the command: the long option with its value, as pages have
    /// it at the end.
    fn wanted(arg: &Arg) -> Vec<String> {
        let takes = if arg.get_action().takes_values() {
            " VALUE"
        } else {
            ""
        };
        let short = arg.get_short().map(|short| format!("-{short}"));
        let long = arg.get_long().map(|long| format!("--{long}{takes}"));
        short.into_iter().chain(long).collect()
    }

    #[test]
    fn every_option_has_its_place_in_the_manual_and_no_other_is_there() {
        let run = defined(&read(&top().join("man/debox-run.1")));
        let mut wrong = Vec::new();
        for command in command()
            .get_subcommands()
            .filter(|c| c.get_name() != "help")
        {
            let name = format!("debox-{}.1", command.get_name());
            let text = read(&top().join("man").join(&name));
            let here = defined(&text);
            let mut known = here.clone();
            if text.contains("those of\n.Xr debox-run 1 .")
                || text.contains("As in\n.Xr debox-run 1 .")
            {
                known.extend(run.iter().cloned());
            }
            let wanted: Vec<String> = options_of(command).iter().flat_map(wanted).collect();
            wrong.extend(
                wanted
                    .iter()
                    .filter(|w| !known.contains(*w))
                    .map(|w| format!("{name} lacks {w}")),
            );
            wrong.extend(
                here.iter()
                    .filter(|h| !wanted.contains(h))
                    .map(|h| format!("{name} defines {h}")),
            );
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    #[test]
    fn the_manual_speaks_of_no_option_that_is_gone() {
        let mut known: BTreeSet<String> = ["--help", "--help-all", "--version"]
            .map(str::to_owned)
            .into();
        known.extend(
            options_of(&command())
                .iter()
                .map(|arg| format!("--{}", arg.get_long().unwrap())),
        );
        let man = top().join("man");
        let broker = defined(&read(&man.join("deboxd.8")));
        known.extend(
            broker
                .iter()
                .filter_map(|option| option.split(' ').next().map(str::to_owned)),
        );
        let mut wrong = Vec::new();
        for entry in std::fs::read_dir(man).unwrap() {
            let path = entry.unwrap().path();
            let text = read(&path);
            for option in text.split("Fl \\&-").skip(1) {
                let end = option.find(|c: char| !(c.is_ascii_lowercase() || c == '-'));
                let option = format!("--{}", &option[..end.unwrap_or(option.len())]);
                // "--" itself stands before a command.
                if option != "--" && !known.contains(&option) {
                    wrong.push(format!("{}: {option}", path.display()));
                }
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
        let overview = read(&top().join("man/debox.1"));
        for command in command().get_subcommands().filter(|c| !c.is_hide_set()) {
            let entry = format!(".It Xr debox-{} 1\n", command.get_name());
            assert!(overview.contains(&entry), "debox.1 lacks {entry}");
        }
    }

    /// A line of a shell as words; None: more than a plain command stands there.
    fn words(line: &str) -> Option<Vec<String>> {
        let (mut words, mut word, mut quote, mut begun) = (Vec::new(), String::new(), None, false);
        let mut rest = line.chars().peekable();
        while let Some(c) = rest.next() {
            match (quote, c) {
                (Some(q), c) if c == q => quote = None,
                (Some(_), c) => word.push(c),
                (None, '\'' | '"') => (quote, begun) = (Some(c), true),
                (None, '\\') => return None,
                (None, '$') if rest.peek() == Some(&'(') => {
                    // Of $(pidof nginx) something comes.
                    rest.by_ref().take_while(|c| *c != ')').for_each(drop);
                    (word, begun) = ("1".into(), true);
                }
                (None, '|' | '&' | ';' | '>' | '<' | '#') => break,
                (None, c) if c.is_whitespace() => {
                    if begun || !word.is_empty() {
                        words.push(std::mem::take(&mut word));
                    }
                    begun = false;
                }
                (None, c) => word.push(c),
            }
        }
        if begun || !word.is_empty() {
            words.push(word);
        }
        quote.is_none().then_some(words)
    }

    /// Command lines that a document shows.
    fn shown(text: &str, manual: bool) -> Vec<String> {
        let mut found: Vec<String> = text
            .split('`')
            .skip(1)
            .step_by(2)
            .map(|code| code.replace('\n', " "))
            .collect();
        // Prose may begin with "debox", what is indented is meant to be typed.
        let mut fenced = manual;
        let typed = text.lines().filter(|line| {
            fenced ^= line.starts_with("```");
            fenced || line.starts_with("  ")
        });
        found.extend(typed.map(|line| {
            let line = line.trim_start();
            let line = line.strip_prefix(".Dl ").unwrap_or(line);
            line.replace("\\(aq", "'").replace("\\&", "")
        }));
        // In front stand prompts, variables, sudo.
        let front = |line: &str| {
            let mut words = line.split(' ');
            words
                .find(|w| !(["$", "#", "sudo"].contains(w) || w.contains('=')))
                .map(str::to_owned)
        };
        found.retain(|line| front(line).as_deref() == Some("debox"));
        for line in &mut found {
            let at = line.find("debox").unwrap_or(0);
            line.drain(..at);
        }
        found
    }

    #[test]
    fn every_command_line_that_is_written_down_can_be_said() {
        let mut files = vec![
            top().join("README.md"),
            top().join("SECURITY.md"),
            top().join("ARCHITECTURE.md"),
        ];
        for folder in ["docs", "docs/examples", "man"] {
            let entries = std::fs::read_dir(top().join(folder)).unwrap();
            files.extend(
                entries
                    .map(|entry| entry.unwrap().path())
                    .filter(|path| path.is_file()),
            );
        }
        let mut texts: Vec<(String, String)> = files
            .iter()
            .map(|path| (path.display().to_string(), read(path)))
            .collect();
        let mut all = command();
        all.build();
        for command in all.get_subcommands_mut() {
            let mut text = command.render_long_help().to_string();
            for below in command.get_subcommands_mut() {
                text += &below.render_long_help().to_string();
            }
            texts.push((format!("{} --help-all", command.get_name()), text));
        }
        let (mut checked, mut wrong) = (0, Vec::new());
        for (name, text) in &texts {
            for line in shown(text, name.ends_with(|c: char| c.is_ascii_digit())) {
                // "debox bench os: ..." is what it says.
                let meant = |words: &Vec<String>| !words.iter().take(3).any(|w| w.ends_with(':'));
                let Some(words) = words(&line).filter(meant) else {
                    continue;
                };
                checked += 1;
                let Err(error) = command().try_get_matches_from(&words) else {
                    continue;
                };
                let is_wrong = match error.kind() {
                    ErrorKind::UnknownArgument
                    | ErrorKind::InvalidSubcommand
                    | ErrorKind::ArgumentConflict
                    | ErrorKind::TooManyValues => true,
                    // An option is named in a sentence without its value.
                    ErrorKind::InvalidValue => {
                        let value = error.get(ContextKind::InvalidValue);
                        value.is_some_and(|value| !value.to_string().is_empty())
                    }
                    _ => false,
                };
                if is_wrong {
                    wrong.push(format!("{name}: {line}: {error}"));
                }
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
        assert!(checked > 100, "only {checked} command lines were found");
    }
}
