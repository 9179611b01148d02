// SPDX-License-Identifier: MIT OR Apache-2.0
//! What did a sleep wait for that was cut off because debox ended the command?
//!
//! With --duration debox sends the command a signal, and whoever sleeps then is woken by
//! debox in kill(2). That is no waker of the program's: what it waited for had not come.

use debox_report::{ChainKind, ChainLink, CulpritRole, Report};

/// Our name in the kernel's books, and the call that ends a command.
const NAME: &str = "debox";
const CALL: &str = "kill";

/// Of a run that debox has ended: no sleep is said to have waited for that.
pub fn tell(report: &mut Report) {
    let links = &report.chain_links;
    let ours = |at: usize| {
        (links.get(at)).is_some_and(|link| link.comm == NAME && link.call.as_deref() == Some(CALL))
    };
    let cut_off: Vec<usize> = (links.iter().enumerate())
        .filter(|(_, link)| {
            // A program may give its threads our name, and those are watched.
            link.kind == ChainKind::Sleep && !link.by_own && link.parent.is_some_and(ours)
        })
        .map(|(at, _)| at)
        .collect();
    if !cut_off.is_empty() {
        let ended = report.chain_links.len();
        report.chain_links.push(ChainLink::of(ChainKind::Ended));
        for at in cut_off {
            report.chain_links[at].parent = Some(ended);
        }
    }
    (report.culprits).retain(|row| {
        row.role != CulpritRole::Waker
            || row.comm != NAME
            || row.culprit_call.as_deref() != Some(CALL)
    });
    let sleeps = (report.slow_calls.iter_mut()).flat_map(|call| call.sleeps.iter_mut());
    for sleep in sleeps {
        (sleep.waker).take_if(|who| who.comm == NAME && who.call.as_deref() == Some(CALL));
    }
}
