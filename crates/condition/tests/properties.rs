// SPDX-License-Identifier: MIT OR Apache-2.0
//! Do compiled conjunctions pick the calls that the expression means, for
//! expressions and calls that nobody thought of?

#[path = "../../../fuzz/src/condition.rs"]
mod property;

use ::debox_condition::{
    Answer, CallFacts, CompileError, Expression, KernelAnswer, Number, SiteFacts, compile,
    kernel_judge,
};
use debox_abi::{
    DEBOX_COMM_LEN, DEBOX_CONDITION_ON, DEBOX_FIELDS, Pod, debox_condition as Condition, text_put,
};
use proptest::prelude::*;

/// The texts of the sites that random calls sleep at; the last one has none yet.
const SITES: [Option<(&str, &str)>; 6] = [
    Some(("inode-lock", "open_last_lookups")),
    Some(("page-in", "filemap_get_pages.isra.0")),
    Some(("page-writeback", "generic_buffers_fsync")),
    Some(("futex", "futex_wait_queue")),
    Some(("do_odd_things", "do_odd_things")),
    None,
];
const COMMS: [&str; 4] = ["nginx", "redis-server", "ng", ""];
const CALLS: [u32; 5] = [0, 1, 74, 257, 512 + 118];

#[derive(Clone, Debug)]
struct Call {
    key: u32,
    numbers: [i64; DEBOX_FIELDS],
    comm: usize,
    caller: usize,
    sites: Vec<usize>,
}

fn call() -> impl Strategy<Value = Call> {
    let number = prop_oneof![
        4 => 0i64..6,
        2 => (0i64..4).prop_map(|ms| ms * 1_000_000),
        1 => Just(i64::MAX)
    ];
    (
        prop::sample::select(&CALLS[..]),
        prop::array::uniform13(number),
        prop_oneof![0i64..3, -13i64..0, Just(-4096), Just(i64::MIN)],
        0..COMMS.len(),
        0..COMMS.len(),
        prop::collection::vec(0..SITES.len(), 0..3),
    )
        .prop_map(|(key, mut numbers, retval, comm, caller, sites)| {
            numbers[Number::Retval as usize] = retval;
            // A call that slept nowhere has not slept.
            let sleeps = &mut numbers[Number::Sleeps as usize];
            *sleeps = match sites.len() {
                0 => 0,
                least => (least as i64).max(*sleeps),
            };
            Call {
                key,
                numbers,
                comm,
                caller,
                sites,
            }
        })
}

fn test() -> impl Strategy<Value = String> {
    let order = prop::sample::select(&["==", "!=", "<", "<=", ">", ">="][..]);
    let time = prop::sample::select(&["wall", "cpu", "blocked", "runq"][..]);
    let times = prop::sample::select(&["0", "1ns", "3ns", "1ms", "1.5ms", "2ms"][..]);
    let count = prop::sample::select(
        &[
            "minflt",
            "majflt",
            "faults",
            "sleeps",
            "preemptions",
            "waiters",
            "pid",
            "tid",
        ][..],
    );
    let name = prop::sample::select(&["==", "!=", "=~", "!~"][..]);
    let quoted = |list: &'static [&'static str]| prop::sample::select(list);
    prop_oneof![
        (time, order.clone(), times).prop_map(|(f, o, v)| format!("{f} {o} {v}")),
        (count.clone(), order.clone(), 0..6).prop_map(|(f, o, v)| format!("{f} {o} {v}")),
        (count, prop::collection::vec(0..7, 1..4))
            .prop_map(|(f, v)| format!("{f} in {v:?}").replace('[', "{").replace(']', "}")),
        (order, -13i64..3).prop_map(|(o, v)| format!("retval {o} {v}")),
        quoted(&[
            "errno",
            "errno == EAGAIN",
            "errno != EINTR",
            "errno < 5",
            "error in {EAGAIN, EPERM}",
            "errno == 0",
            "call == read",
            "call in {read, fsync}",
            "call != %sync",
            "call =~ *write*",
            "call == open",
        ])
        .prop_map(str::to_owned),
        (
            quoted(&["label", "function"]),
            name.clone(),
            quoted(&[
                "page-in",
                "inode-lock",
                "futex",
                "do_odd_things",
                "filemap_get_pages",
                "nowhere"
            ])
        )
            .prop_map(|(f, o, v)| format!("{f} {o} {v}")),
        (
            quoted(&["label", "function"]),
            quoted(&["=~", "!~"]),
            quoted(&["page-*", "*", "*u*", "?"])
        )
            .prop_map(|(f, o, v)| format!("{f} {o} {v}")),
        quoted(&[
            "label in {page-in, futex}",
            "function in {a, futex_wait_queue}"
        ])
        .prop_map(str::to_owned),
        (
            quoted(&["comm", "caller", "holder", "root", "chain"]),
            name,
            quoted(&["nginx", "ng", "redis-server", "zz"])
        )
            .prop_map(|(f, o, v)| format!("{f} {o} {v}")),
        (
            quoted(&["comm", "caller", "holder", "root", "chain"]),
            quoted(&["=~", "!~"]),
            quoted(&["ng*", "*-*"])
        )
            .prop_map(|(f, o, v)| format!("{f} {o} {v}")),
        quoted(&["comm in {nginx, redis-server}", "caller in {nginx, ng}"]).prop_map(str::to_owned),
    ]
}

fn expression() -> impl Strategy<Value = String> {
    test().prop_recursive(4, 12, 3, |inner| {
        prop_oneof![
            inner.clone().prop_map(|e| format!("!({e})")),
            prop::collection::vec(inner.clone(), 2..4)
                .prop_map(|l| format!("({})", l.join(" && "))),
            prop::collection::vec(inner, 2..4).prop_map(|l| format!("({})", l.join(" || "))),
        ]
    })
}

/// Direct and by way of the kernel side's conditions.
fn compare(text: &str, call: &Call) -> Result<(), TestCaseError> {
    let expression = match Expression::parse(text) {
        Ok(expression) => expression,
        Err(error) => return Err(TestCaseError::fail(error.render(text))),
    };
    let facts = |named: bool| CallFacts {
        key: Some(call.key),
        numbers: std::array::from_fn(|i| call.numbers.get(i).copied()),
        comm: Some(COMMS[call.comm]),
        caller: Some(COMMS[call.caller]),
        sites: call
            .sites
            .iter()
            .map(|site| SiteFacts {
                label: SITES[*site].map(|s| s.0).or(named.then_some("late-label")),
                function: SITES[*site]
                    .map(|s| s.1)
                    .or(named.then_some("late_function")),
                holder: Some(COMMS[site % COMMS.len()]),
                root: Some("ng\nzz"),
                chain: Some(COMMS[call.caller]),
            })
            .collect(),
        sites_whole: true,
    };
    let direct = expression.judge(&facts(false));
    // With every site named nothing is unknown.
    let settled = expression.judge(&facts(true));
    prop_assert_ne!(settled, Answer::Unknown);
    if direct != Answer::Unknown {
        prop_assert_eq!(direct, settled);
    }

    let compiled = match compile(&expression, 256) {
        Err(CompileError::NeverTrue) => {
            prop_assert_eq!(settled, Answer::No, "never true: {}", text);
            return Ok(());
        }
        Err(_) => return Ok(()),
        Ok(compiled) => compiled,
    };
    let mut numbers = [0; Number::ALL.len()];
    numbers[..DEBOX_FIELDS].copy_from_slice(&call.numbers);
    let mut comm = [0; DEBOX_COMM_LEN];
    text_put(&mut comm, COMMS[call.comm]);
    let sites: Vec<u32> = call.sites.iter().map(|site| *site as u32 * 100).collect();
    let (mut met, mut uncertain) = (false, false);
    for part in &compiled.parts {
        let mut condition = Condition::zeroed_box();
        part.fill(&mut condition);
        condition.flags |= DEBOX_CONDITION_ON;
        for (index, text) in SITES.iter().enumerate() {
            let (word, bit) = (index * 100 / 64, index * 100 % 64);
            if let Some((label, function)) = text {
                condition.known[word] |= 1 << bit;
                if part.wants_site(label, function) {
                    condition.sites[word] |= 1 << bit;
                }
            }
        }
        match kernel_judge(&condition, call.key, &numbers, &comm, &sites) {
            KernelAnswer::Met => {
                met = true;
                // What the kernel side decides alone is never wrong.
                if part.exact() {
                    prop_assert_eq!(direct, Answer::Yes, "{} picks too much", text);
                }
            }
            KernelAnswer::Uncertain => uncertain = true,
            KernelAnswer::NotMet => {}
        }
    }
    // And nothing is missed.
    if direct == Answer::Yes {
        prop_assert!(met || uncertain, "{} misses a call", text);
    }
    if settled == Answer::Yes {
        prop_assert!(met || uncertain, "{} misses a call with a late label", text);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn conditions_pick_what_the_expression_means(
        text in expression(),
        calls in prop::collection::vec(call(), 8),
    ) {
        for call in &calls {
            compare(&text, call)?;
        }
    }

    #[test]
    fn any_text_is_parsed_or_refused(text in ".{0,60}") {
        property::check(&text);
    }

    #[test]
    fn pieces_of_the_language_are_parsed_or_refused(
        pieces in prop::collection::vec(prop::sample::select(&[
            "wall", "call", "label", "errno", "in", "{", "}", ",", "(", ")", "!", "&&", "||", "==", "!=",
            "<", ">=", "=~", "!~", "=", "1ms", "1", "-5", "fsync", "%net", "\"a b\"", "'", "\"", "*", "日本", " ",
        ][..]), 0..14),
        blanks in any::<bool>(),
    ) {
        property::check(&pieces.join(if blanks { " " } else { "" }));
    }
}
