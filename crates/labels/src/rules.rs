// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which resource does a stack wait for, and which of its functions decided
//! to sleep?

use std::collections::{BTreeMap, HashMap};
use std::env;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde::Deserialize;

use crate::meaning::{Kind, Meaning, Meanings};

/// A label's longest length; with its NUL it fills `struct debox_site`'s label.
pub const LABEL_LEN_MAX: usize = 23;

const BUILTIN_NAME: &str = "labels/linux.toml";
const BUILTIN: &str = include_str!("../rules/linux.toml");
const IDLE_NAME: &str = "labels/idle.toml";
const IDLE: &str = include_str!("../rules/idle.toml");
const SYSTEM_FILE: &str = "/etc/debox/labels.toml";
static BUILTIN_MEANINGS: OnceLock<Meanings> = OnceLock::new();

/// The scheduler's own function: what lies inside of it is whoever watches,
/// what lies outside is the sleeper.
pub(crate) const SWITCH_FUNCTION: &str = "__schedule";

/// Why rules cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RulesError {
    #[error("label rules {path}: {source}. Make the file readable, or name another one")]
    Unreadable {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("label rules {file}, line {line}{}: {message}", in_rule(*.rule))]
    Syntax {
        file: String,
        line: usize,
        rule: usize,
        message: String,
    },
    #[error("label rules {file}, rule {rule} (label \"{label}\"): {problem}")]
    Rule {
        file: String,
        rule: usize,
        label: String,
        problem: String,
    },
    #[error("label rules {file}, place {place}: {problem}")]
    Place {
        file: String,
        place: usize,
        problem: String,
    },
    #[error("label rules {file}, [{table}]: {problem}")]
    Functions {
        file: String,
        table: &'static str,
        problem: String,
    },
}

fn in_rule(rule: usize) -> String {
    if rule == 0 {
        String::new()
    } else {
        format!(" (rule {rule})")
    }
}

/// One rule; see the head of labels/linux.toml.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    pub label: String,
    pub why: String,
    #[serde(default)]
    pub wait: Vec<String>,
    #[serde(default)]
    pub site: Vec<String>,
    #[serde(default)]
    pub any: Vec<String>,
    #[serde(default)]
    pub not: Vec<String>,
    pub what: Option<String>,
    pub group: Option<String>,
    pub kind: Option<Kind>,
    pub advice: Option<String>,
    /// The file that the rule is from.
    #[serde(skip)]
    pub file: String,
    /// Its place in that file, from 1.
    #[serde(skip)]
    pub number: usize,
}

/// What a place in a program says of who sleeps there; see the head of labels/idle.toml.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    pub functions: Vec<String>,
    pub rests: bool,
    pub why: String,
}

impl Place {
    pub fn fits(&self, function: &str) -> bool {
        self.functions.iter().any(|pattern| glob(pattern, function))
    }

    fn check(&self) -> Result<(), String> {
        let all = |pattern: &String| pattern.chars().all(|c| c == '*');
        if self.functions.is_empty() || self.functions.iter().any(all) {
            return Err("a pattern fits nothing or everything: name functions".into());
        }
        if self.why.trim().is_empty() {
            return Err("`why` is empty: say in a sentence what that place is".into());
        }
        Ok(())
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RulesFile {
    plumbing: Option<Functions>,
    grace_period: Option<Functions>,
    /// Texts that rules can name.
    #[serde(default)]
    advice: BTreeMap<String, String>,
    #[serde(default, rename = "rule")]
    rules: Vec<Rule>,
    #[serde(default, rename = "place")]
    places: Vec<Place>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Functions {
    functions: Vec<String>,
}

/// The rules in the order in which they are tried.
#[derive(Debug)]
pub struct Rules {
    rules: Vec<Rule>,
    pub(crate) conditions: Vec<Conditions>,
    pub(crate) patterns: Patterns,
    pub(crate) plumbing: Vec<usize>,
    grace_period: Vec<usize>,
    meanings: Meanings,
    places: Vec<Place>,
}

/// A rule's lists as pattern numbers.
#[derive(Debug)]
pub(crate) struct Conditions {
    pub wait: Vec<usize>,
    pub site: Vec<usize>,
    pub any: Vec<usize>,
    pub not: Vec<usize>,
}

impl Rules {
    /// The rules that come with DeBox, alone.
    pub fn builtin() -> Rules {
        Self::from_texts(&builtin_texts()).expect("the embedded rules are tested")
    }

    /// What the labels that come with DeBox mean.
    pub fn builtin_meanings() -> &'static Meanings {
        BUILTIN_MEANINGS.get_or_init(|| Rules::builtin().meanings)
    }

    /// All rules, in this order: the files in `extra`, the user's
    /// ($XDG_CONFIG_HOME/debox/labels.toml, else ~/.config), the system's
    /// (/etc/debox/labels.toml), and those that come with DeBox. The files in
    /// `extra` must exist, the others may be missing.
    pub fn load(extra: &[PathBuf]) -> Result<Rules, RulesError> {
        let user = user_file(env::var_os("XDG_CONFIG_HOME"), env::var_os("HOME"));
        Self::load_from(
            extra,
            user.iter()
                .map(PathBuf::as_path)
                .chain([Path::new(SYSTEM_FILE)]),
        )
    }

    fn load_from<'a>(
        extra: &[PathBuf],
        optional: impl Iterator<Item = &'a Path>,
    ) -> Result<Rules, RulesError> {
        let mut texts = Vec::new();
        for path in extra {
            texts.push((path.display().to_string(), read(path)?));
        }
        for path in optional {
            match read(path) {
                Ok(text) => texts.push((path.display().to_string(), text)),
                Err(RulesError::Unreadable { source, .. })
                    if source.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        let only_builtin = texts.is_empty();
        texts.extend(builtin_texts());
        let rules = Self::from_texts(&texts)?;
        if only_builtin {
            // To read them takes a millisecond and more.
            BUILTIN_MEANINGS.get_or_init(|| rules.meanings.clone());
        }
        Ok(rules)
    }

    /// Rules from one text alone; `name` is for messages.
    pub fn parse(name: &str, text: &str) -> Result<Rules, RulesError> {
        Self::from_texts(&[(name.to_owned(), text.to_owned())])
    }

    fn from_texts(texts: &[(String, String)]) -> Result<Rules, RulesError> {
        let mut all = Rules {
            rules: Vec::new(),
            conditions: Vec::new(),
            patterns: Patterns::default(),
            plumbing: Vec::new(),
            grace_period: Vec::new(),
            meanings: Meanings::default(),
            places: Vec::new(),
        };
        // The shipped texts of advice can be named in every file.
        let mut advice = BTreeMap::new();
        let mut files = Vec::new();
        for (file, text) in texts.iter().rev() {
            let mut parsed = parse(file, text)?;
            advice.append(&mut parsed.advice);
            files.push((file, parsed));
        }
        for (file, parsed) in files.into_iter().rev() {
            all.add(file, parsed, &advice)?;
        }
        Ok(all)
    }

    fn add(
        &mut self,
        file: &str,
        parsed: RulesFile,
        advice: &BTreeMap<String, String>,
    ) -> Result<(), RulesError> {
        for (table, functions, list) in [
            ("plumbing", parsed.plumbing, &mut self.plumbing),
            ("grace_period", parsed.grace_period, &mut self.grace_period),
        ] {
            for pattern in functions.iter().flat_map(|table| &table.functions) {
                let number =
                    (self.patterns.number(pattern)).map_err(|problem| RulesError::Functions {
                        file: file.to_owned(),
                        table,
                        problem,
                    })?;
                list.push(number);
            }
        }
        for (index, place) in parsed.places.into_iter().enumerate() {
            place.check().map_err(|problem| RulesError::Place {
                file: file.to_owned(),
                place: index + 1,
                problem,
            })?;
            self.places.push(place);
        }
        for (index, mut rule) in parsed.rules.into_iter().enumerate() {
            rule.file = file.to_owned();
            rule.number = index + 1;
            let problem = |problem| RulesError::Rule {
                file: file.to_owned(),
                rule: index + 1,
                label: rule.label.clone(),
                problem,
            };
            check(&rule).map_err(problem)?;
            let mut numbers = |patterns: &[String]| -> Result<Vec<usize>, RulesError> {
                patterns
                    .iter()
                    .map(|p| self.patterns.number(p).map_err(problem))
                    .collect()
            };
            self.conditions.push(Conditions {
                wait: numbers(&rule.wait)?,
                site: numbers(&rule.site)?,
                any: numbers(&rule.any)?,
                not: numbers(&rule.not)?,
            });
            if let Some(what) = &rule.what {
                self.meanings.add(&rule.label, || {
                    let written = rule.advice.clone().unwrap_or_default();
                    Meaning {
                        group: rule.group.clone().unwrap_or_else(|| rule.label.clone()),
                        kind: rule.kind.unwrap_or_default(),
                        what: what.clone(),
                        advice: advice.get(&written).cloned().unwrap_or(written),
                    }
                });
            }
            self.rules.push(rule);
        }
        Ok(())
    }

    pub fn iter(&self) -> impl Iterator<Item = &Rule> {
        self.rules.iter()
    }

    /// What the labels mean; a user's own file is believed before the shipped one.
    pub fn meanings(&self) -> &Meanings {
        &self.meanings
    }

    /// What places in programs say of who sleeps there, in the order in which they are tried.
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// The first rule that fits a stack of function names, innermost first.
    pub fn label(&self, functions: &[&str]) -> Option<&Rule> {
        let span = sleeper(functions);
        let matched: Vec<PatternSet> = functions[span.clone()]
            .iter()
            .map(|name| self.patterns.matching(name))
            .collect();
        let site = matched.iter().position(|set| !set.has_any(&self.plumbing));
        let none = self.patterns.empty_set();
        let union = |sets: &[PatternSet]| {
            sets.iter().fold(none.clone(), |mut all, set| {
                all.add(set);
                all
            })
        };
        let everywhere = union(&matched);
        // Up to the site; the whole stack if it is plumbing to its end.
        let inner = union(&matched[..site.map_or(matched.len(), |site| site + 1)]);
        let at_site = site.map_or(&none, |site| &matched[site]);
        let fits = |list: &Vec<usize>, set: &PatternSet| list.is_empty() || set.has_any(list);
        let first = self.conditions.iter().position(|rule| {
            fits(&rule.wait, &inner)
                && fits(&rule.site, at_site)
                && fits(&rule.any, &everywhere)
                && !everywhere.has_any(&rule.not)
        })?;
        Some(&self.rules[first])
    }

    /// Which frame decided to sleep: the first one outwards that is neither
    /// the scheduler nor a general way to wait. `None` if there is no such.
    pub fn site_frame(&self, functions: &[&str]) -> Option<usize> {
        let span = sleeper(functions);
        let offset = span.start;
        functions[span]
            .iter()
            .position(|name| !self.patterns.matching(name).has_any(&self.plumbing))
            .map(|frame| frame + offset)
    }

    /// Whether a sleep there ends when all CPUs have left what they read, whoever wakes it.
    pub fn grace_period(&self, functions: &[&str]) -> bool {
        let mut own = functions[sleeper(functions)].iter();
        own.any(|name| self.patterns.matching(name).has_any(&self.grace_period))
    }
}

/// The frames of the sleeping thread itself: from `__schedule` on. What runs
/// inside of it are the tracepoint and the BPF programs attached there, which
/// may be anybody's and have any name.
pub fn sleeper(functions: &[&str]) -> Range<usize> {
    let start = functions
        .iter()
        .position(|name| plain(name) == SWITCH_FUNCTION)
        .unwrap_or(0);
    start..functions.len()
}

/// A function's name in the source: without the suffixes that the compiler
/// gives to clones and parts (`.isra.0`, `.constprop.0`, `.part.0`, `.cold`).
pub fn plain(name: &str) -> &str {
    name.split('.').next().unwrap_or(name)
}

fn builtin_texts() -> [(String, String); 2] {
    [
        (BUILTIN_NAME.to_owned(), BUILTIN.to_owned()),
        (IDLE_NAME.to_owned(), IDLE.to_owned()),
    ]
}

fn user_file(config_home: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    // The XDG base directory specification: relative paths are to be ignored.
    let absolute = |path: OsString| Some(PathBuf::from(path)).filter(|path| path.is_absolute());
    let config = config_home
        .and_then(absolute)
        .or_else(|| home.and_then(absolute).map(|home| home.join(".config")))?;
    Some(config.join("debox/labels.toml"))
}

fn read(path: &Path) -> Result<String, RulesError> {
    fs::read_to_string(path).map_err(|source| RulesError::Unreadable {
        path: path.to_owned(),
        source,
    })
}

fn parse(file: &str, text: &str) -> Result<RulesFile, RulesError> {
    toml::from_str(text).map_err(|error| syntax_error(file, text, &error))
}

fn syntax_error(file: &str, text: &str, error: &toml::de::Error) -> RulesError {
    let before = &text[..error.span().map_or(0, |span| span.start.min(text.len()))];
    // Counts the headers up to and including the line where the error is.
    let line_end = text[before.len()..]
        .find('\n')
        .map_or(text.len(), |at| before.len() + at);
    let rule = text[..line_end]
        .lines()
        .filter(|line| line.trim_start().starts_with("[[rule]]"));
    RulesError::Syntax {
        file: file.to_owned(),
        line: before.matches('\n').count() + 1,
        rule: rule.count(),
        message: format!(
            "{}. The head of {BUILTIN_NAME} describes the fields of a rule",
            error.message()
        ),
    }
}

fn check(rule: &Rule) -> Result<(), String> {
    let label = &rule.label;
    let shape = label
        .bytes()
        .all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-'));
    if label.is_empty() || !shape || label.starts_with('-') || label.ends_with('-') {
        return Err("a label is lower-case letters, digits and inner hyphens: write it so".into());
    }
    if label.len() > LABEL_LEN_MAX {
        return Err(format!(
            "the label is {} bytes long, {LABEL_LEN_MAX} is the most: shorten it",
            label.len()
        ));
    }
    if rule.why.trim().is_empty() {
        return Err("`why` is empty: say in a sentence what the thread waits for".into());
    }
    if rule.wait.is_empty() && rule.site.is_empty() && rule.any.is_empty() {
        return Err(
            "it has none of `wait`, `site` and `any`, so it would fit every stack: give \
                    at least one"
                .into(),
        );
    }
    if rule.what.is_none() && (rule.kind.is_some() || rule.group.is_some() || rule.advice.is_some())
    {
        return Err(
            "it has `kind`, `group` or `advice` and no `what`: complete \"a call is waiting for ...\" \
             in it"
                .into(),
        );
    }
    Ok(())
}

/// All distinct patterns, numbered.
#[derive(Debug, Default)]
pub(crate) struct Patterns {
    numbers: HashMap<String, usize>,
    /// Those with a wildcard, by their first character (0: that is the wildcard): a
    /// kernel has a hundred thousand names. The others are found in `numbers`.
    globs: Vec<Vec<(String, usize)>>,
}

impl Patterns {
    fn number(&mut self, pattern: &str) -> Result<usize, String> {
        if let Some(&number) = self.numbers.get(pattern) {
            return Ok(number);
        }
        let bad = pattern
            .chars()
            .find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '*' | '?')));
        if let Some(bad) = bad {
            return Err(format!(
                "pattern \"{pattern}\" has the character '{bad}': a pattern is a function's \
                 name (letters, digits, _), with * for any characters and ? for one"
            ));
        }
        if pattern.is_empty() || pattern.bytes().all(|b| b == b'*') {
            return Err(format!(
                "pattern \"{pattern}\" fits nothing or everything: name a function"
            ));
        }
        let number = self.numbers.len();
        self.numbers.insert(pattern.to_owned(), number);
        if pattern.contains(['*', '?']) {
            let first = match pattern.as_bytes()[0] {
                b'*' | b'?' => 0,
                first => usize::from(first),
            };
            self.globs
                .resize_with(self.globs.len().max(first + 1), Vec::new);
            self.globs[first].push((pattern.to_owned(), number));
        }
        Ok(number)
    }

    fn empty_set(&self) -> PatternSet {
        PatternSet(vec![0; self.numbers.len().div_ceil(64)])
    }

    /// The patterns that fit one function's name.
    pub fn matching(&self, function: &str) -> PatternSet {
        let name = plain(function);
        let mut set = self.empty_set();
        if let Some(&number) = self.numbers.get(name) {
            set.insert(number);
        }
        let first = name.bytes().next().map_or(0, usize::from);
        for (glob, number) in self.globs_of(first).iter().chain(self.globs_of(0)) {
            if self::glob(glob, name) {
                set.insert(*number);
            }
        }
        set
    }

    /// Those whose first character is this one; 0: a wildcard.
    fn globs_of(&self, first: usize) -> &[(String, usize)] {
        self.globs.get(first).map_or(&[], Vec::as_slice)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct PatternSet(Vec<u64>);

impl PatternSet {
    fn insert(&mut self, number: usize) {
        self.0[number / 64] |= 1 << (number % 64);
    }

    fn add(&mut self, other: &PatternSet) {
        for (mine, others) in self.0.iter_mut().zip(&other.0) {
            *mine |= others;
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    pub fn has_any(&self, numbers: &[usize]) -> bool {
        numbers
            .iter()
            .any(|number| self.0[number / 64] >> (number % 64) & 1 == 1)
    }
}

/// `*` fits any characters, `?` exactly one. Goes back only to the last star,
/// so no pattern costs more than its length times the name's.
pub fn glob(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(&c) if c == b'?' || c == name[n] => {
                p += 1;
                n += 1;
            }
            _ => {
                let Some((star_p, star_n)) = star else {
                    return false;
                };
                p = star_p + 1;
                n = star_n + 1;
                star = Some((star_p, n));
            }
        }
    }
    pattern[p..].iter().all(|&c| c == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = r#"
        [plumbing]
        functions = ["__schedule", "schedule*", "mutex_lock*", "__mutex_lock*"]
        [[rule]]
        label = "pipe-lock"
        why = "the pipe's own lock"
        wait = ["mutex_lock*"]
        site = ["pipe_*"]
        [[rule]]
        label = "pipe-read"
        why = "an empty pipe"
        site = ["pipe_read"]
        not = ["splice_*"]
        [[rule]]
        label = "in-vfs"
        why = "anything below it"
        any = ["vfs_read"]
    "#;

    fn label<'a>(rules: &'a Rules, stack: &[&str]) -> Option<&'a str> {
        rules.label(stack).map(|rule| rule.label.as_str())
    }

    #[test]
    fn globs() {
        for (pattern, name, fits) in [
            ("pipe_read", "pipe_read", true),
            ("pipe_read", "pipe_reads", false),
            ("pipe_*", "pipe_", true),
            ("*_read", "anon_pipe_read", true),
            ("*_read", "anon_pipe_read_iter", false),
            ("a*b*c", "aXbXbXc", true),
            ("a*b*c", "aXbXbX", false),
            ("pipe_?", "pipe_a", true),
            ("pipe_?", "pipe_", false),
            ("**x", "x", true),
        ] {
            assert_eq!(glob(pattern, name), fits, "{pattern} {name}");
        }
    }

    #[test]
    fn a_hostile_glob_is_not_slow() {
        let pattern = "a*".repeat(200) + "b";
        let name = "a".repeat(2000);
        let start = std::time::Instant::now();
        assert!(!glob(&pattern, &name));
        assert!(start.elapsed().as_secs() < 2);
    }

    #[test]
    fn conditions_look_at_their_own_part_of_the_stack() {
        let rules = Rules::parse("small", SMALL).unwrap();
        let stack = ["__schedule", "schedule", "pipe_read", "vfs_read"];
        assert_eq!(label(&rules, &stack), Some("pipe-read"));
        assert_eq!(rules.site_frame(&stack), Some(2));
        // `wait` looks only up to the site, so a lock outside does not count.
        let outside = [
            "__schedule",
            "schedule",
            "pipe_read",
            "mutex_lock_nested",
            "vfs_read",
        ];
        assert_eq!(label(&rules, &outside), Some("pipe-read"));
        let locked = [
            "__schedule",
            "schedule",
            "__mutex_lock.constprop.0",
            "mutex_lock",
            "pipe_read",
        ];
        assert_eq!(label(&rules, &locked), Some("pipe-lock"));
        assert_eq!(rules.site_frame(&locked), Some(4));
        // `site` is one frame, `any` the whole stack, `not` too.
        assert_eq!(label(&rules, &["__schedule", "other", "pipe_read"]), None);
        assert_eq!(
            label(&rules, &["__schedule", "other", "vfs_read"]),
            Some("in-vfs")
        );
        assert_eq!(
            label(&rules, &["__schedule", "pipe_read", "splice_x"]),
            None
        );
    }

    #[test]
    fn who_watches_is_not_part_of_the_sleep() {
        let rules = Rules::parse("small", SMALL).unwrap();
        // A BPF program may have any name, a pattern's too, or none.
        let stack = [
            "pipe_read",
            "vfs_read",
            "bpf_trace_run4",
            "__schedule.isra.0",
            "f",
            "g",
        ];
        assert_eq!(label(&rules, &stack), None);
        assert_eq!(rules.site_frame(&stack), Some(4));
        // Without __schedule in it, the whole stack is the sleeper's.
        assert_eq!(label(&rules, &["pipe_read"]), Some("pipe-read"));
    }

    #[test]
    fn stacks_without_a_site() {
        let rules = Rules::parse("small", SMALL).unwrap();
        assert_eq!(rules.site_frame(&[]), None);
        assert_eq!(label(&rules, &[]), None);
        assert_eq!(rules.site_frame(&["__schedule", "schedule"]), None);
        assert_eq!(label(&rules, &["__schedule", "schedule"]), None);
    }

    #[test]
    fn errors_say_where_and_what_to_do() {
        let why = "why = \"w\"\n";
        for (text, words) in [
            (
                format!("[[rule]]\nlabel = \"a\"\n{why}wit = [\"f\"]\n"),
                &["line 4 (rule 1)", "`wit`", "`wait`"][..],
            ),
            (
                format!(
                    "[[rule]]\nlabel = \"a\"\n{why}any = [\"f\"]\n[[rule]]\n{why}any = [\"f\"]\n"
                ),
                &["rule 2", "missing field `label`"],
            ),
            ("[[rule]\n".into(), &["line 1"]),
            (
                "[plumbing]\nfunction = []\n".into(),
                &["line 2", "`functions`"],
            ),
            (
                format!("[[rule]]\nlabel = \"Big\"\n{why}any = [\"f\"]\n"),
                &["rule 1 (label \"Big\")", "lower-case"],
            ),
            (
                format!("[[rule]]\nlabel = \"-a\"\n{why}any = [\"f\"]\n"),
                &["inner hyphens"],
            ),
            (
                format!("[[rule]]\nlabel = \"abcdefghijklmnopqrstuvwx\"\n{why}any = [\"f\"]\n"),
                &["24 bytes", "shorten"],
            ),
            (
                "[[rule]]\nlabel = \"a\"\nwhy = \" \"\nany = [\"f\"]\n".into(),
                &["`why` is empty"],
            ),
            (
                format!("[[rule]]\nlabel = \"a\"\n{why}not = [\"f\"]\n"),
                &["every stack"],
            ),
            (
                format!("[[rule]]\nlabel = \"a\"\n{why}any = [\"f.isra.0\"]\n"),
                &["'.'", "function"],
            ),
            (
                format!("[[rule]]\nlabel = \"a\"\n{why}any = [\"*\"]\n"),
                &["everything"],
            ),
            (
                format!("[[rule]]\nlabel = \"a\"\n{why}any = [\"\"]\n"),
                &["nothing or everything"],
            ),
            (
                "[plumbing]\nfunctions = [\"a b\"]\n".into(),
                &["[plumbing]", "' '"],
            ),
        ] {
            let error = Rules::parse("my.toml", &text).expect_err(&text).to_string();
            assert!(error.starts_with("label rules my.toml, "), "{error}");
            for word in words {
                assert!(error.contains(word), "{error:?} lacks {word:?}");
            }
        }
    }

    #[test]
    fn own_rules_come_first_in_their_order() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, label: &str| {
            let path = dir.path().join(name);
            let text = format!("[[rule]]\nlabel = \"{label}\"\nwhy = \"w\"\nany = [\"do_wait\"]\n");
            fs::write(&path, text).unwrap();
            path
        };
        let stack = ["__schedule", "schedule", "do_wait"];
        let builtin = Rules::builtin().label(&stack).unwrap().label.clone();
        let (option, user, system) = (
            file("option", "option"),
            file("user", "user"),
            file("system", "system"),
        );
        let missing = dir.path().join("missing");

        let with = |extra: &[PathBuf], optional: &[&Path]| {
            let rules = Rules::load_from(extra, optional.iter().copied()).unwrap();
            rules.label(&stack).unwrap().label.clone()
        };
        assert_eq!(
            with(std::slice::from_ref(&option), &[&user, &system]),
            "option"
        );
        assert_eq!(with(&[], &[&user, &system]), "user");
        assert_eq!(with(&[], &[&missing, &system]), "system");
        assert_eq!(with(&[], &[&missing]), builtin);

        let error = Rules::load_from(std::slice::from_ref(&missing), [].into_iter())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("missing") && error.contains("readable"),
            "{error}"
        );
    }

    #[test]
    fn a_grace_period_is_told_by_who_waits_for_it() {
        let rules = Rules::builtin();
        let grows = [
            "__schedule",
            "wait_for_completion",
            "synchronize_rcu_normal",
            "expand_files",
        ];
        assert!(rules.grace_period(&grows));
        assert_eq!(rules.label(&grows).unwrap().label, "fd-table");
        // Within the switch are others' programs.
        assert!(!rules.grace_period(&["synchronize_rcu", "__schedule", "expand_files"]));
        let text = "[grace_period]\nfunctions = [\"mine\"]\n";
        assert!(Rules::parse("own", text).unwrap().grace_period(&["mine"]));
    }

    #[test]
    fn own_plumbing_is_added() {
        let text = format!("{}\n[plumbing]\nfunctions = [\"pipe_read\"]\n", "");
        let rules =
            Rules::from_texts(&[("own".into(), text), ("small".into(), SMALL.into())]).unwrap();
        assert_eq!(
            rules.site_frame(&["__schedule", "pipe_read", "vfs_read"]),
            Some(2)
        );
    }

    #[test]
    fn the_users_file() {
        let os = |text: &str| Some(OsString::from(text));
        assert_eq!(
            user_file(os("/c"), os("/h")),
            Some("/c/debox/labels.toml".into())
        );
        assert_eq!(
            user_file(None, os("/h")),
            Some("/h/.config/debox/labels.toml".into())
        );
        assert_eq!(
            user_file(os("rel"), os("/h")),
            Some("/h/.config/debox/labels.toml".into())
        );
        assert_eq!(user_file(os(""), None), None);
    }

    #[test]
    fn labels_have_a_meaning_and_a_users_own_is_believed_first() {
        let builtin = Rules::builtin();
        let known = builtin.meanings();
        for rule in builtin.iter() {
            let meaning = known.get(&rule.label);
            let meaning = meaning.unwrap_or_else(|| panic!("no words for {}", rule.label));
            assert!(
                meaning.advice.contains(' '),
                "{}: {}",
                rule.label,
                meaning.advice
            );
            let said = builtin
                .iter()
                .filter(|r| r.label == rule.label && r.what.is_some());
            assert_eq!(said.count(), 1, "{}", rule.label);
        }
        assert_eq!(known.get("pipe-read").unwrap().kind, Kind::Input);
        let own = r#"
            [[rule]]
            label = "pipe-read"
            why = "the other half of our pipeline"
            what = "the parser"
            group = "pipeline"
            kind = "loss"
            advice = "sync"
            site = ["pipe_read"]
            [[rule]]
            label = "in-vfs"
            why = "anything below it"
            any = ["vfs_read"]
        "#;
        let texts = [
            ("own".to_owned(), own.to_owned()),
            (BUILTIN_NAME.to_owned(), BUILTIN.to_owned()),
        ];
        let rules = Rules::from_texts(&texts).unwrap();
        let meaning = rules.meanings().get("pipe-read").unwrap();
        assert_eq!(
            (meaning.what.as_str(), meaning.kind),
            ("the parser", Kind::Loss)
        );
        assert_eq!(meaning.group, "pipeline");
        assert_eq!(
            meaning.advice,
            known.get("journal-commit").unwrap().advice,
            "a text of [advice] can be named from another file"
        );
        assert_eq!(rules.meanings().get("in-vfs"), None);
        assert_eq!(rules.meanings().get("flock"), known.get("flock"));
        let half = own.replace("what = \"the parser\"", "");
        let error = Rules::parse("own", &half).unwrap_err().to_string();
        assert!(error.contains("no `what`"), "{error}");
    }
}
