// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who is followed because it woke somebody who is watched, and what chains came
//! of it?
//!
//! The kernel side notes wakers (`bpf/follow.h`); an iterator over the tasks
//! gives them a past, and lets go of those that have woken nobody for a while.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use debox_abi::{DEBOX_CHAIN_NONE, DEBOX_CHAINS_MAX, Pod, debox_chain};
use libbpf_rs::{MapCore, MapFlags};

use crate::{Probe, iterate, skel};

/// Tasks beyond the watched ones; each costs 3 KiB and a microsecond a switch.
const FOLLOWED_MAX: u32 = 1024;
/// Who has woken nobody for so long is let go.
const IDLE: Duration = Duration::from_secs(10);
/// A walk over all tasks of a large machine takes milliseconds, and whoever is
/// watched can cause one by being woken: they take a fiftieth of a CPU at most.
const PAUSE: Duration = Duration::from_millis(20);
const PAUSE_WALKS: u32 = 50;
/// The first walks of a report come without a pause, or the second commit of a program that
/// calls fsync twice in a row would be over before its journal is followed.
const AT_ONCE: u32 = 8;
/// So many are given once in this time, however many reports begin.
const AT_ONCE_EVERY: Duration = Duration::from_secs(1);
/// How long a link may be in the making: a few stores with preemption off.
const MAKING: Duration = Duration::from_millis(2);

/// When the next walk may be.
struct Pacing {
    next: Instant,
    at_once: u32,
    given: Option<Instant>,
}

impl Pacing {
    fn report_begins(&mut self, now: Instant) {
        let given = self.given.map(|given| now.saturating_duration_since(given));
        if given.is_none_or(|since| since >= AT_ONCE_EVERY) {
            self.given = Some(now);
            self.at_once = AT_ONCE;
        }
        if self.at_once > 0 {
            self.next = now;
        }
    }

    fn walked(&mut self, begin: Instant, end: Instant) {
        if self.at_once > 0 {
            self.at_once -= 1;
            self.next = end;
            return;
        }
        let walk = end.saturating_duration_since(begin);
        self.next = end + PAUSE.max(walk * PAUSE_WALKS);
    }
}

pub(crate) struct Follow {
    asked: Arc<AtomicBool>,
    pacing: Pacing,
    swept: Instant,
}

impl Follow {
    pub fn new(asked: Arc<AtomicBool>) -> Self {
        let now = Instant::now();
        Self {
            asked,
            pacing: Pacing {
                next: now,
                at_once: 0,
                given: None,
            },
            swept: now,
        }
    }

    /// How long until the iterator is to run; None: nobody has asked.
    pub fn due(&self) -> Option<Duration> {
        let asked = self.asked.load(Ordering::Relaxed);
        asked.then(|| self.pacing.next.saturating_duration_since(Instant::now()))
    }

    /// Who wakes its threads is followed at once.
    pub fn report_begins(&mut self) {
        self.pacing.report_begins(Instant::now());
    }
}

impl Probe {
    /// Follows who was asked for; `let_go`: of everybody.
    pub(crate) fn follow_run(&mut self, let_go: bool) {
        self.follow.asked.store(false, Ordering::Relaxed);
        let begin = Instant::now();
        let sweep = self.follow.swept.elapsed() >= IDLE;
        if sweep {
            self.follow.swept = Instant::now();
        }
        let link = match self.programs.iterator(&self.skel.progs.follow_threads) {
            Ok(link) => link,
            Err(error) => {
                tracing::warn!(%error, "wakers are not followed: task iterator refused");
                return;
            }
        };
        let Some(bss) = self.skel.maps.bss_data.as_deref_mut() else {
            return;
        };
        bss.follow = skel::types::follow_request {
            most: FOLLOWED_MAX,
            let_go: let_go.into(),
            idle_ns: if sweep { IDLE.as_nanos() as u64 } else { 0 },
            ..Default::default()
        };
        if let Err(error) = iterate(&link) {
            tracing::warn!(%error, "wakers are not followed");
        }
        self.follow.pacing.walked(begin, Instant::now());
        if let Some(bss) = self.skel.maps.bss_data.as_deref_mut() {
            let done = bss.follow;
            // A place that a task with the same remainder holds, or one that has
            // ended: whoever is still there asks again.
            bss.follow_asked.fill(0);
            tracing::debug!(followed = done.followed, refused = done.refused, "followed");
        }
    }

    fn chains_copy(&self, from: u32, to: u32) -> Vec<debox_chain> {
        (from..to)
            .map_while(|id| {
                let bytes = self
                    .skel
                    .maps
                    .chains
                    .lookup(&id.to_ne_bytes(), MapFlags::ANY)
                    .ok()??;
                debox_chain::read_from(&bytes)
            })
            .collect()
    }

    pub(crate) fn chains_read(&self, from: u32) -> Vec<debox_chain> {
        let used = self
            .skel
            .maps
            .bss_data
            .as_deref()
            .map_or(0, |bss| bss.chains_used);
        let (from, to) = (from.max(1), (used + 1).min(DEBOX_CHAINS_MAX as u32));
        let chains = self.chains_copy(from, to);
        if chains.iter().all(|chain| chain.kind != DEBOX_CHAIN_NONE) {
            return chains;
        }
        // In the making, or never used since another CPU was faster.
        std::thread::sleep(MAKING);
        self.chains_copy(from, to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_walks_of_a_report_come_at_once_and_the_others_after_a_pause() {
        let start = Instant::now();
        let after = |ms| start + Duration::from_millis(ms);
        let mut pacing = Pacing {
            next: start,
            at_once: 0,
            given: None,
        };
        // Nobody has begun a report: the pause is kept.
        pacing.walked(start, after(1));
        assert_eq!(pacing.next, after(1 + 50));
        pacing.report_begins(after(2));
        assert_eq!(pacing.next, after(2));
        for walk in 0..u64::from(AT_ONCE) {
            let end = after(2 + walk);
            pacing.walked(end, end);
            assert_eq!(pacing.next, end);
        }
        pacing.walked(after(20), after(20));
        assert_eq!(pacing.next, after(40));
        // Many reports do not give more of them.
        pacing.report_begins(after(21));
        assert_eq!(pacing.next, after(40));
        pacing.report_begins(after(1002));
        assert_eq!((pacing.next, pacing.at_once), (after(1002), AT_ONCE));
    }
}
