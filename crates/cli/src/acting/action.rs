// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does the text of an action stand for?

use crate::error::Error;
use debox_command::{Program, signal_name};
use debox_output::printable;
use std::ffi::OsString;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Print,
    Stack,
    Core,
    Stop,
    Signal(i32),
    /// Whoever looks at events does it.
    Keep,
    /// The words of a command.
    Exec(Vec<String>),
}

impl Action {
    /// The signal that the kernel side sends, if that is what it is.
    pub fn signal(&self) -> Option<i32> {
        match self {
            Action::Core => Some(libc::SIGABRT),
            Action::Stop => Some(libc::SIGSTOP),
            Action::Signal(number) => Some(*number),
            _ => None,
        }
    }

    /// So often where --limit says nothing; 0: without limit.
    pub fn limit(&self) -> u64 {
        match self {
            Action::Print => 1000,
            Action::Keep => 0,
            Action::Stack => 100,
            Action::Exec(_) | Action::Signal(_) => 10,
            Action::Core | Action::Stop => 1,
        }
    }

    /// "printed", "core dumped": what was done, so and so often.
    pub fn done(&self) -> &'static str {
        match self {
            Action::Print => "printed",
            Action::Stack => "stack printed",
            Action::Core => "told to dump core",
            Action::Stop => "stopped",
            Action::Signal(_) => "signal sent",
            Action::Exec(_) => "command run",
            Action::Keep => "told to be kept",
        }
    }

    pub fn text(&self) -> String {
        match self {
            Action::Print => "print".into(),
            Action::Keep => "keep".into(),
            Action::Stack => "stack".into(),
            Action::Core => "core".into(),
            Action::Stop => "stop".into(),
            Action::Signal(number) => format!("signal {}", signal_name(*number)),
            Action::Exec(words) => format!("exec {}", words.join(" ")),
        }
    }

    pub fn parse(text: &str) -> Result<Self, Error> {
        let wrong = |why: String| Error::Arguments(printable(&format!("--do '{text}': {why}")));
        let trimmed = text.trim();
        let (name, rest) = match trimmed.find(|c: char| c.is_whitespace() || c == ':') {
            Some(at) => (&trimmed[..at], trimmed[at + 1..].trim()),
            None => (trimmed, ""),
        };
        let alone = |action: Action| {
            if rest.is_empty() {
                Ok(action)
            } else {
                Err(wrong(format!("{name} takes no argument")))
            }
        };
        match name {
            "print" => alone(Action::Print),
            "stack" => alone(Action::Stack),
            "core" => alone(Action::Core),
            "stop" => alone(Action::Stop),
            "signal" if rest.is_empty() => {
                Err(wrong("say which signal, as in --do 'signal USR1'".into()))
            }
            "signal" => signal_number(rest)
                .map(Action::Signal)
                .ok_or_else(|| wrong(format!("there is no signal '{rest}' (kill -l lists them)"))),
            "exec" => {
                let words = words(rest).map_err(wrong)?;
                if words.is_empty() {
                    return Err(wrong(
                        "say which command, in one word for the shell: --do 'exec logger slow'"
                            .into(),
                    ));
                }
                // That it cannot be run should be known before it is needed.
                let all: Vec<OsString> = words.iter().map(Into::into).collect();
                Program::resolve(&all).map_err(|error| wrong(error.to_string()))?;
                Ok(Action::Exec(words))
            }
            other => Err(wrong(format!(
                "there is no action '{other}'; there are print, stack, core, stop, signal NAME and exec CMD"
            ))),
        }
    }
}

/// "USR1", "SIGUSR1", "10", "RTMIN+2".
fn signal_number(text: &str) -> Option<i32> {
    let last = libc::SIGRTMAX();
    if let Ok(number) = text.parse::<i32>() {
        return (1..=last).contains(&number).then_some(number);
    }
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    if let Some(rest) = name.strip_prefix("RTMIN") {
        let more: i32 = match rest {
            "" => 0,
            rest => rest.strip_prefix('+')?.parse().ok()?,
        };
        let number = libc::SIGRTMIN().checked_add(more)?;
        return (more >= 0 && number <= last).then_some(number);
    }
    (1..=31).find(|number| signal_name(*number)[3..] == *name)
}

/// Splits as a shell does, with quotes and backslashes, and nothing else of
/// what a shell does.
fn words(text: &str) -> Result<Vec<String>, String> {
    let mut all = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (None, '"' | '\'') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None | Some('"'), '\\') => match chars.next() {
                Some(next) => word.get_or_insert_default().push(next),
                None => return Err("it ends in a backslash".into()),
            },
            (None, c) if c.is_whitespace() => all.extend(word.take()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    if let Some(quote) = quote {
        return Err(format!("a {quote} is not closed"));
    }
    all.extend(word);
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_and_their_arguments() {
        let parse = |text: &str| Action::parse(text).map_err(|e| e.to_string());
        assert_eq!(parse("stack"), Ok(Action::Stack));
        assert_eq!(parse(" core "), Ok(Action::Core));
        assert_eq!(parse("signal USR1"), Ok(Action::Signal(10)));
        assert_eq!(parse("signal:sigusr2"), Ok(Action::Signal(12)));
        assert_eq!(parse("signal 9"), Ok(Action::Signal(9)));
        assert_eq!(
            parse("signal RTMIN+2"),
            Ok(Action::Signal(libc::SIGRTMIN() + 2))
        );
        assert_eq!(
            parse("exec sh -c 'echo \"$DEBOX_PID\"' a\\ b \"\""),
            Ok(Action::Exec(
                ["sh", "-c", "echo \"$DEBOX_PID\"", "a b", ""]
                    .map(String::from)
                    .to_vec()
            ))
        );
        for bad in [
            "",
            "cor",
            "core now",
            "signal",
            "signal USR9",
            "signal 0",
            "signal 99",
            "signal RTMIN+99",
            "exec",
            "exec 'sh",
            "exec no-such-command-anywhere",
            "exec sh \\",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
