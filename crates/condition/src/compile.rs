// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which few conjunctions say the same as an expression, and how much of each
//! can the kernel side decide?
//!
//! The expression is brought into disjunctive normal form over *boxes*: a range
//! for each number, a set of calls, what the command name is or is not, what
//! the places of its sleeps are or are not. Boxes that can never be met are
//! dropped, those inside another one too, and two that differ in one part only
//! become one where their union is a box again.

use crate::call_set::CallSet;
use crate::expression::{Expression, Node, Pattern, Predicate};
use crate::field::{Number, TextField};
use debox_abi::*;
use std::collections::BTreeSet;

/// So many boxes at once are not worth the time to simplify them.
const BOXES_MAX: usize = 512;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    #[error("no call can ever meet this condition")]
    NeverTrue,
    #[error(
        "this condition falls into {parts} alternatives, the kernel side takes {most} in all. Use fewer \
         '||', '!=' and lists of names; those of `call`, `label` and `function` cost nothing"
    )]
    TooManyParts { parts: usize, most: usize },
    #[error(
        "this condition falls into more than {BOXES_MAX} alternatives, the kernel side takes {most} in all. \
         Use fewer '||' and '!=' inside of '&&'"
    )]
    TooComplicated { most: usize },
}

/// Texts that any of a call's sleeps may have at its place.
type SiteSet = BTreeSet<(TextField, Pattern)>;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Cube {
    ranges: [(i64, i64); DEBOX_FIELDS],
    faults: (i64, i64),
    calls: CallSet,
    comm_is: Option<String>,
    comm_not: BTreeSet<String>,
    /// Alternatives, of which one must fit; or negated: none.
    comm_like: BTreeSet<(bool, BTreeSet<Pattern>)>,
    /// For user space to judge.
    later: BTreeSet<(TextField, bool, BTreeSet<Pattern>)>,
    /// Each has a sleep with one of its texts.
    any: BTreeSet<SiteSet>,
    /// No sleep has any of these.
    none: SiteSet,
}

fn domain(field: usize) -> (i64, i64) {
    Number::ALL[field].domain()
}

fn overlap(a: (i64, i64), b: (i64, i64)) -> Option<(i64, i64)> {
    let both = (a.0.max(b.0), a.1.min(b.1));
    (both.0 <= both.1).then_some(both)
}

fn inside(inner: (i64, i64), outer: (i64, i64)) -> bool {
    outer.0 <= inner.0 && inner.1 <= outer.1
}

/// The union, if it is a range.
fn joined(a: (i64, i64), b: (i64, i64)) -> Option<(i64, i64)> {
    let (low, high) = if a <= b { (a, b) } else { (b, a) };
    (high.0 <= low.1.saturating_add(1)).then_some((low.0, low.1.max(high.1)))
}

fn fits_one(patterns: &BTreeSet<Pattern>, field: TextField, name: &str) -> bool {
    patterns.iter().any(|pattern| pattern.fits(field, name))
}

impl Cube {
    fn everything() -> Self {
        Self {
            ranges: std::array::from_fn(domain),
            faults: Number::Faults.domain(),
            calls: CallSet::ALL,
            comm_is: None,
            comm_not: BTreeSet::new(),
            comm_like: BTreeSet::new(),
            later: BTreeSet::new(),
            any: BTreeSet::new(),
            none: SiteSet::new(),
        }
    }

    /// Both, or None when no call can be.
    fn and(&self, other: &Self) -> Option<Self> {
        let mut both = self.clone();
        for (mine, theirs) in both.ranges.iter_mut().zip(other.ranges) {
            *mine = overlap(*mine, theirs)?;
        }
        both.faults = overlap(self.faults, other.faults)?;
        both.calls = self.calls.intersection(&other.calls);
        if both.calls.is_empty() {
            return None;
        }
        match (&self.comm_is, &other.comm_is) {
            (Some(a), Some(b)) if a != b => return None,
            (None, Some(name)) => both.comm_is = Some(name.clone()),
            _ => {}
        }
        both.comm_not.extend(other.comm_not.iter().cloned());
        both.comm_like.extend(other.comm_like.iter().cloned());
        both.later.extend(other.later.iter().cloned());
        both.any.extend(other.any.iter().cloned());
        both.none.extend(other.none.iter().cloned());
        if let Some(name) = &both.comm_is {
            if both.comm_not.contains(name)
                || both
                    .comm_like
                    .iter()
                    .any(|(negated, list)| fits_one(list, TextField::Comm, name) == *negated)
            {
                return None;
            }
            // Settled by the one name.
            both.comm_not.clear();
            both.comm_like.clear();
        }
        // A sleep that must be there with texts that none may have.
        for set in &both.any {
            if set.iter().all(|text| both.none.contains(text)) {
                return None;
            }
        }
        Some(both)
    }

    /// Whether every call of `other` is one of these, as far as can be seen
    /// from the form.
    fn covers(&self, other: &Self) -> bool {
        let ranges = || {
            other
                .ranges
                .iter()
                .zip(self.ranges)
                .all(|(inner, outer)| inside(*inner, outer))
                && inside(other.faults, self.faults)
        };
        let comm = || {
            let is = match (&self.comm_is, &other.comm_is) {
                (None, _) => true,
                (Some(a), Some(b)) => a == b,
                (Some(_), None) => false,
            };
            let not = self.comm_not.iter().all(|name| {
                other.comm_not.contains(name) || other.comm_is.as_ref().is_some_and(|is| is != name)
            });
            let like = self.comm_like.iter().all(|test @ (negated, list)| {
                other.comm_like.contains(test)
                    || other
                        .comm_is
                        .as_ref()
                        .is_some_and(|is| fits_one(list, TextField::Comm, is) != *negated)
            });
            is && not && like
        };
        let sites = || {
            self.any
                .iter()
                .all(|wide| other.any.iter().any(|narrow| narrow.is_subset(wide)))
                && self.none.is_subset(&other.none)
        };
        ranges()
            && self.calls.covers(&other.calls)
            && comm()
            && self.later.is_subset(&other.later)
            && sites()
    }

    /// One box for two, if there is one that is exactly their union.
    fn merge(&self, other: &Self) -> Option<Self> {
        if self.covers(other) {
            return Some(self.clone());
        }
        if other.covers(self) {
            return Some(other.clone());
        }
        let mut one = self.clone();
        let mut differ = 0;
        for field in 0..DEBOX_FIELDS {
            if self.ranges[field] != other.ranges[field] {
                differ += 1;
                one.ranges[field] = joined(self.ranges[field], other.ranges[field])?;
            }
        }
        if self.faults != other.faults {
            differ += 1;
            one.faults = joined(self.faults, other.faults)?;
        }
        if self.calls != other.calls {
            differ += 1;
            one.calls = self.calls.union(&other.calls);
        }
        if self.comm_is != other.comm_is
            || self.comm_not != other.comm_not
            || self.comm_like != other.comm_like
            || self.none != other.none
        {
            return None;
        }
        if self.later != other.later {
            differ += 1;
            let mine: Vec<_> = self.later.difference(&other.later).collect();
            let theirs: Vec<_> = other.later.difference(&self.later).collect();
            let ([a @ (field, false, of_a)], [(same, false, of_b)]) = (&mine[..], &theirs[..])
            else {
                return None;
            };
            if field != same {
                return None;
            }
            one.later.remove(*a);
            one.later
                .insert((*field, false, of_a.union(of_b).cloned().collect()));
        }
        if self.any != other.any {
            differ += 1;
            // A sleep of these, or one of those: a sleep of either.
            let mine: Vec<_> = self.any.difference(&other.any).collect();
            let theirs: Vec<_> = other.any.difference(&self.any).collect();
            let ([a], [b]) = (&mine[..], &theirs[..]) else {
                return None;
            };
            let either: SiteSet = a.union(b).cloned().collect();
            one.any.remove(*a);
            one.any.insert(either);
        }
        (differ == 1).then_some(one)
    }
}

/// Merges until nothing more can be merged.
fn simplify(mut cubes: Vec<Cube>) -> Vec<Cube> {
    'again: loop {
        for i in 0..cubes.len() {
            for j in i + 1..cubes.len() {
                if let Some(one) = cubes[i].merge(&cubes[j]) {
                    cubes[i] = one;
                    cubes.remove(j);
                    continue 'again;
                }
            }
        }
        return cubes;
    }
}

struct TooMany;

fn conjunction(a: &[Cube], b: &[Cube]) -> Result<Vec<Cube>, TooMany> {
    let mut all: Vec<Cube> = Vec::new();
    for x in a {
        for y in b {
            let Some(both) = x.and(y) else { continue };
            if !all.iter().any(|cube| cube.covers(&both)) {
                all.push(both);
            }
            if all.len() > BOXES_MAX {
                return Err(TooMany);
            }
        }
    }
    Ok(simplify(all))
}

fn disjunction(mut a: Vec<Cube>, b: Vec<Cube>) -> Result<Vec<Cube>, TooMany> {
    a.extend(b);
    if a.len() > BOXES_MAX {
        return Err(TooMany);
    }
    Ok(simplify(a))
}

/// What is left of the domain.
fn complement(number: Number, range: Option<(i64, i64)>) -> Vec<(i64, i64)> {
    let (low, high) = number.domain();
    let Some((from, to)) = range else {
        return vec![(low, high)];
    };
    let below = from.checked_sub(1).map(|end| (low, end));
    let above = to.checked_add(1).map(|start| (start, high));
    let both = below.into_iter().chain(above);
    both.filter(|(from, to)| from <= to).collect()
}

fn number_cubes(number: Number, (from, to): (i64, i64)) -> Vec<Cube> {
    let with = |parts: &[(Number, (i64, i64))]| {
        let mut cube = Cube::everything();
        for (number, range) in parts {
            cube.ranges[*number as usize] = *range;
        }
        cube
    };
    let high = i64::MAX;
    match number {
        Number::Errno => {
            let mut cubes = Vec::new();
            if from == 0 {
                let last = crate::field::ERRNO_MAX;
                cubes.push(with(&[(Number::Retval, (0, high))]));
                cubes.push(with(&[(Number::Retval, (i64::MIN, -last - 1))]));
            }
            if to >= 1 {
                cubes.push(with(&[(Number::Retval, (-to, -from.max(1)))]));
            }
            cubes
        }
        // The kernel side knows minor and major ones, not their sum: it gets
        // the narrowest box around, and the rest is judged with the event.
        Number::Faults => {
            let (minor, major) = (Number::Minflt, Number::Majflt);
            let mut cubes = match from {
                0 => vec![with(&[(minor, (0, to)), (major, (0, to))])],
                _ => {
                    let half = from / 2 + from % 2;
                    vec![
                        with(&[(minor, (half, to)), (major, (0, to))]),
                        with(&[(minor, (0, to)), (major, (half, to))]),
                    ]
                }
            };
            let exact = to == 0 || to == high && from <= 1;
            if !exact {
                for cube in &mut cubes {
                    cube.faults = (from, to);
                }
            }
            cubes
        }
        number => vec![with(&[(number, (from, to))])],
    }
}

fn text_cube(field: TextField, pattern: &Pattern, negated: bool) -> Cube {
    let mut cube = Cube::everything();
    let pattern = pattern.clone();
    match (field, negated) {
        (TextField::Caller, _) => {
            cube.later
                .insert((field, negated, BTreeSet::from([pattern])));
        }
        (TextField::Holder | TextField::Root | TextField::Chain, _) => {
            cube.later
                .insert((field, negated, BTreeSet::from([pattern])));
            if !negated {
                let sleeps = Number::Sleeps as usize;
                cube.ranges[sleeps] = (1, domain(sleeps).1);
            }
        }
        (TextField::Label | TextField::Function, false) => {
            cube.any.insert(SiteSet::from([(field, pattern)]));
        }
        (TextField::Label | TextField::Function, true) => {
            cube.none.insert((field, pattern));
        }
        (TextField::Comm, _) if pattern.glob => {
            cube.comm_like.insert((negated, BTreeSet::from([pattern])));
        }
        (TextField::Comm, true) => {
            cube.comm_not.insert(pattern.text);
        }
        (TextField::Comm, false) => cube.comm_is = Some(pattern.text),
    }
    cube
}

fn cubes_of(node: &Node, negated: bool) -> Result<Vec<Cube>, TooMany> {
    match node {
        Node::Not(inner) => cubes_of(inner, !negated),
        Node::And(nodes) | Node::Or(nodes) => {
            let and = matches!(node, Node::And(_)) != negated;
            let mut result = if and {
                vec![Cube::everything()]
            } else {
                Vec::new()
            };
            for node in nodes {
                let more = cubes_of(node, negated)?;
                result = if and {
                    conjunction(&result, &more)?
                } else {
                    disjunction(result, more)?
                };
            }
            Ok(result)
        }
        Node::Test(test) => Ok(match &test.predicate {
            Predicate::Number(number, range) => {
                let ranges = if negated {
                    complement(*number, *range)
                } else {
                    range.iter().copied().collect()
                };
                simplify(
                    ranges
                        .iter()
                        .flat_map(|range| number_cubes(*number, *range))
                        .collect(),
                )
            }
            Predicate::Call(set) => {
                let mut cube = Cube::everything();
                cube.calls = if negated { set.complement() } else { *set };
                if cube.calls.is_empty() {
                    Vec::new()
                } else {
                    vec![cube]
                }
            }
            Predicate::Text(field, pattern) => vec![text_cube(*field, pattern, negated)],
        }),
    }
}

/// One conjunction of a compiled expression.
#[derive(Clone, Debug)]
pub struct Part {
    cube: Cube,
}

/// What the kernel side is to compare calls with: those that meet any of the
/// parts, and no others unless a part is not [`Part::exact`].
#[derive(Clone, Debug)]
pub struct Compiled {
    pub parts: Vec<Part>,
}

/// Compiles an expression into at most `most` conjunctions.
pub fn compile(expression: &Expression, most: usize) -> Result<Compiled, CompileError> {
    let cubes =
        cubes_of(expression.root(), false).map_err(|_| CompileError::TooComplicated { most })?;
    match cubes.len() {
        0 => Err(CompileError::NeverTrue),
        parts if parts > most => Err(CompileError::TooManyParts { parts, most }),
        _ => Ok(Compiled {
            parts: cubes.into_iter().map(|cube| Part { cube }).collect(),
        }),
    }
}

impl Compiled {
    /// Why some matching calls can only be told from their events; empty when
    /// the kernel side decides alone.
    pub fn late(&self) -> Vec<&'static str> {
        let all: BTreeSet<_> = self.parts.iter().flat_map(Part::late).collect();
        all.into_iter().collect()
    }
}

impl Part {
    /// What the kernel side leaves open of this part, in words.
    pub fn late(&self) -> Vec<&'static str> {
        let cube = &self.cube;
        let mut late = Vec::new();
        for (field, name) in [
            (TextField::Caller, "`caller`"),
            (TextField::Holder, "`holder`"),
            (TextField::Root, "`root`"),
            (TextField::Chain, "`chain`"),
        ] {
            if cube.later.iter().any(|(asked, _, _)| *asked == field) {
                late.push(name);
            }
        }
        if !cube.comm_like.is_empty() {
            late.push("patterns for `comm`");
        }
        if cube.comm_not.len() > 1 {
            late.push("more than one `comm` to be left out");
        }
        if cube.faults != Number::Faults.domain() {
            late.push("a number of `faults` (not `majflt` or `minflt`)");
        }
        if cube.any.len() + usize::from(!cube.none.is_empty()) > 1 {
            late.push("more than one demand on `label` and `function`");
        }
        late
    }

    /// Whether the kernel side decides alone, as soon as the places of the
    /// sleeps have their names.
    pub fn exact(&self) -> bool {
        self.late().is_empty()
    }

    /// Whether places of sleeps matter.
    pub fn asks_sites(&self) -> bool {
        !self.cube.any.is_empty() || !self.cube.none.is_empty()
    }

    /// Whether a place with this text belongs into the condition's `sites`.
    pub fn wants_site(&self, label: &str, function: &str) -> bool {
        self.places().iter().any(|(field, pattern)| {
            pattern.fits(
                *field,
                match field {
                    TextField::Label => label,
                    _ => function,
                },
            )
        })
    }

    fn places(&self) -> &BTreeSet<(TextField, Pattern)> {
        match self.cube.any.first() {
            Some(first) => first,
            None => &self.cube.none,
        }
    }

    /// Whether a place's label says all that is asked of it.
    pub fn asks_labels(&self) -> bool {
        self.asks_sites()
            && self
                .places()
                .iter()
                .all(|(field, _)| *field == TextField::Label)
    }

    /// Whether a label belongs into the condition's `labels`, with
    /// [`Part::asks_labels`].
    pub fn wants_label(&self, label: &str) -> bool {
        self.wants_site(label, "")
    }

    /// Fills in what is compared: `fields`, `min`, `max`, `calls`, `comm` and
    /// their flags. `sites` and `known` stay empty; what follows on a match
    /// (event, signal, limits) and DEBOX_CONDITION_ON are the caller's.
    pub fn fill(&self, condition: &mut debox_condition) {
        let cube = &self.cube;
        for (field, (min, max)) in cube.ranges.iter().copied().enumerate() {
            condition.min[field] = min;
            condition.max[field] = max;
            if (min, max) != domain(field) {
                condition.fields |= 1 << field;
            }
        }
        condition.calls = cube.calls.0;
        // Of several names to be left out the first: the others are late.
        let comm = match &cube.comm_is {
            Some(name) => Some((name, DEBOX_CONDITION_COMM)),
            None => (cube.comm_not.first()).map(|name| (name, DEBOX_CONDITION_COMM_NOT)),
        };
        if let Some((name, flag)) = comm {
            condition.flags |= flag;
            text_put(&mut condition.comm, name);
        }
        if !cube.any.is_empty() {
            condition.flags |= DEBOX_CONDITION_SITES;
        } else if !cube.none.is_empty() {
            condition.flags |= DEBOX_CONDITION_SITES_NOT;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(text: &str) -> Vec<Part> {
        let expression = Expression::parse(text).unwrap_or_else(|e| panic!("{}", e.render(text)));
        match compile(&expression, 64) {
            Ok(compiled) => compiled.parts,
            Err(CompileError::NeverTrue) => Vec::new(),
            Err(other) => panic!("{text}: {other}"),
        }
    }

    #[test]
    fn alternatives_that_are_one_box_become_one() {
        for (text, number) in [
            ("wall > 1ms", 1),
            ("wall > 1ms || wall > 2ms", 1),
            (
                "call == read && wall > 1ms || call == write && wall > 1ms",
                1,
            ),
            ("label == a || label == b || function =~ c*", 1),
            ("wall > 1ms && wall < 1ms", 0),
            ("wall < 2ms || wall >= 2ms", 1),
            ("retval != 0", 2),
            ("errno", 1),
            ("!errno", 2),
            ("errno in {EAGAIN, EINTR}", 2),
            ("errno in {1, 2, 3}", 1),
            ("comm in {a, b}", 2),
            ("caller in {a, b, c}", 1),
            ("caller in {a, b} && caller != c", 1),
            ("call in {read, write, %network} && label in {a, b, c}", 1),
            ("comm == a && comm != b", 1),
            ("comm == a && comm =~ b*", 0),
            ("!(comm == a || comm == b)", 1),
            ("call == read && call == write", 0),
            ("!(call =~ *)", 1),
            ("label == a && label != a", 0),
            ("faults > 0", 2),
            ("faults == 0", 1),
            (
                "(wall > 1ms || cpu > 1ms) && (call == read || call == write)",
                2,
            ),
            ("wall > 1ms && (wall > 1ms || cpu > 1ms)", 1),
            ("errno > 5000", 0),
        ] {
            assert_eq!(parts(text).len(), number, "{text}");
        }
    }

    #[test]
    fn what_is_left_to_user_space_is_told() {
        for (text, exact) in [
            ("call == open && blocked > 1ms && label == inode-lock", true),
            ("label != a && function != b", true),
            ("label == a && function == b", false),
            ("label == a && label != b", false),
            ("label in {a, b}", true),
            ("caller in {main, work}", false),
            ("comm =~ ng*", false),
            ("comm != a", true),
            ("comm != a && comm != b", false),
            ("comm == nginx && comm =~ ng*", true),
            ("faults > 3", false),
            ("faults > 0", true),
            ("majflt > 3", true),
        ] {
            let parts = parts(text);
            assert!(!parts.is_empty());
            assert_eq!(parts.iter().all(Part::exact), exact, "{text}");
        }
    }

    #[test]
    fn too_much_is_refused() {
        let text = (0..9)
            .map(|i| format!("tid == {}", i * 2))
            .collect::<Vec<_>>()
            .join(" || ");
        let expression = Expression::parse(&text).unwrap();
        assert_eq!(
            compile(&expression, 8).unwrap_err(),
            CompileError::TooManyParts { parts: 9, most: 8 }
        );
        // 4^10 boxes, most of which hold something.
        let text: Vec<String> = (0..10)
            .map(|i| format!("(pid != {} || tid != {})", i * 3, i * 5))
            .collect();
        let expression = Expression::parse(&text.join(" && ")).unwrap();
        assert!(matches!(
            compile(&expression, 8),
            Err(CompileError::TooComplicated { most: 8 } | CompileError::TooManyParts { .. })
        ));
    }
}
