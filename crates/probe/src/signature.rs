// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which words of a raw stack prove that it is the same call chain?
//!
//! Pure arithmetic on one walk and one copy of the stack; `bpf/site.h` says
//! why comparing these words can never name a wrong site.

/// Limits shared with `bpf/site.h`.
pub const SIGNATURE_WORDS: usize = 64;
pub const STACK_DEPTH: usize = 40;

/// The words to compare, and how far to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    /// `(offset in words above the anchor, value)`, ascending.
    pub words: Vec<(u16, u64)>,
    /// Bytes to read from the anchor upwards.
    pub span: u32,
    /// Where the scheduler returns to, when the chain has it.
    pub schedule_word: Option<u16>,
}

/// Why a stack gets no signature: it is then walked each time, correct but
/// dearer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsigned {
    /// The raw stack could not be read.
    NoWords,
    /// The chain is deeper than the copy.
    BeyondCopy,
    /// More matching words than a signature holds.
    TooManyWords,
}

/// What one or more samples of the same chain say about where its addresses
/// stand.
///
/// One sample cannot tell the true place of an address from a stale copy of
/// it, so all places are compared. The outermost address needs more care: the
/// random part of do_syscall_64's frame begins right behind its true place and
/// is full of such copies, different each time. Its true place is the same in
/// every sample, so the places that all samples share are kept, and nothing
/// beyond them. Everything further in is compared exactly as first seen: a
/// sample that differs there is another variant, with a signature of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variant {
    /// Places of the outermost address that all samples share, ascending.
    outermost: Vec<u16>,
    /// Places of all other addresses, up to the last of `outermost`.
    inner: Vec<(u16, u64)>,
    address: u64,
    schedule_word: Option<u16>,
}

impl Variant {
    /// `frames` is the walk, innermost first, zero-terminated or full; `words`
    /// the stack from the anchor upwards; `is_kernel_text` tells the kernel's
    /// own code from the BPF program's frames, which lie below the anchor;
    /// `is_schedule` names the code of schedule() itself, `is_dispatch` that of
    /// the system calls' dispatch, with its frame of random size.
    pub fn learn(
        frames: &[u64],
        words: &[u64],
        is_kernel_text: impl Fn(u64) -> bool,
        is_schedule: impl Fn(u64) -> bool,
        is_dispatch: impl Fn(u64) -> bool,
    ) -> Result<Variant, Unsigned> {
        if words.is_empty() {
            return Err(Unsigned::NoWords);
        }
        let depth = frames.iter().position(|&f| f == 0).unwrap_or(frames.len());
        let truncated = depth >= STACK_DEPTH;
        let mut chain = &frames[..depth];
        // The entry code's address lies beyond the random frame: it is not
        // compared, and nothing else calls do_syscall_64. Outside of system
        // calls there is no such frame, and what the last function was called
        // from is part of the chain like any other: a fault and an interrupt
        // both leave through irqentry_exit_to_user_mode.
        let dispatched = !truncated && chain.len() > 1 && is_dispatch(chain[chain.len() - 2]);
        if dispatched {
            chain = &chain[..chain.len() - 1];
        }
        let own = chain.iter().take_while(|&&f| !is_kernel_text(f)).count();
        let Some((&address, inner_chain)) = chain[own..].split_last() else {
            return Err(Unsigned::BeyondCopy);
        };
        // Every address must stand in the copy, in order: then the true places
        // are among the matches collected below.
        let mut from = 0;
        let mut schedule_word = None;
        let mut previous = None;
        for &frame in inner_chain {
            let Some(at) = words[from..].iter().position(|&w| w == frame) else {
                return Err(Unsigned::BeyondCopy);
            };
            from += at + 1;
            if schedule_word.is_none() && previous.is_some_and(&is_schedule) && !is_schedule(frame)
            {
                schedule_word = Some((from - 1) as u16);
            }
            previous = Some(frame);
        }
        let mut outermost: Vec<u16> = (from..words.len())
            .filter(|&i| words[i] == address)
            .map(|i| i as u16)
            .collect();
        let Some(&end) = outermost.last() else {
            return Err(Unsigned::BeyondCopy);
        };
        let inner = (0..end)
            .filter(|&i| inner_chain.contains(&words[i as usize]))
            .map(|i| (i, words[i as usize]))
            .collect();
        if !dispatched || inner_chain.contains(&address) {
            // Not the system call's dispatch: no random frame behind it, and
            // its other places count like any other's.
            let all: Vec<(u16, u64)> = (0..=end)
                .filter(|&i| chain.contains(&words[i as usize]))
                .map(|i| (i, words[i as usize]))
                .collect();
            outermost = vec![end];
            return Ok(Variant {
                outermost,
                inner: all[..all.len() - 1].to_vec(),
                address,
                schedule_word,
            });
        }
        Ok(Variant {
            outermost,
            inner,
            address,
            schedule_word,
        })
    }

    /// Takes another sample of the same chain in; false when it is another
    /// variant.
    pub fn merge(&mut self, other: &Variant) -> bool {
        let shared: Vec<u16> = self
            .outermost
            .iter()
            .copied()
            .filter(|p| other.outermost.contains(p))
            .collect();
        let (Some(&first), Some(&end)) = (shared.first(), shared.last()) else {
            return false;
        };
        let below = |v: &Variant| -> Vec<(u16, u64)> {
            v.inner
                .iter()
                .copied()
                .take_while(|w| w.0 < first)
                .collect()
        };
        let mut inner = below(self);
        if inner != below(other) {
            return false;
        }
        inner.extend(
            self.inner
                .iter()
                .filter(|w| w.0 > first && w.0 < end && other.inner.contains(w)),
        );
        self.outermost = shared;
        self.inner = inner;
        true
    }

    pub fn signature(&self) -> Result<Signature, Unsigned> {
        let mut words = self.inner.clone();
        words.extend(self.outermost.iter().map(|&p| (p, self.address)));
        words.sort_unstable();
        if words.len() > SIGNATURE_WORDS {
            return Err(Unsigned::TooManyWords);
        }
        let end = words.last().map_or(0, |w| w.0 as u32 + 1);
        Ok(Signature {
            words,
            span: end * 8,
            schedule_word: self.schedule_word,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BPF: u64 = 0xffff_ffff_c000_0010;
    const TEXT: u64 = 0xffff_ffff_8100_0000;

    fn text(a: u64) -> bool {
        (TEXT..TEXT + 0x100_0000).contains(&a)
    }
    fn scheduler(a: u64) -> bool {
        (TEXT..TEXT + 0x100).contains(&a)
    }
    fn dispatch(a: u64) -> bool {
        [TEXT + 0x4000, TEXT + 0x8000].contains(&a)
    }
    /// frames: BPF program, run4, schedule, pipe_read, vfs_read, do_syscall, entry
    fn walk() -> Vec<u64> {
        let mut w = vec![
            BPF,
            TEXT + 0x1000,
            TEXT + 0x10,
            TEXT + 0x2000,
            TEXT + 0x3000,
            TEXT + 0x4000,
            TEXT + 0x5000,
        ];
        w.resize(STACK_DEPTH, 0);
        w
    }
    fn stack() -> Vec<u64> {
        vec![
            1,
            TEXT + 0x1000,
            2,
            3,
            TEXT + 0x10,
            4,
            TEXT + 0x2000,
            5,
            TEXT + 0x3000,
            6,
            TEXT + 0x4000,
            7,
            8,
            TEXT + 0x5000,
            9,
        ]
    }

    fn learn(
        frames: &[u64],
        words: &[u64],
        text: impl Fn(u64) -> bool,
        scheduler: impl Fn(u64) -> bool,
        dispatch: impl Fn(u64) -> bool,
    ) -> Result<Signature, Unsigned> {
        Variant::learn(frames, words, text, scheduler, dispatch)?.signature()
    }

    #[test]
    fn every_true_place_is_compared_and_the_entry_is_not() {
        let s = learn(&walk(), &stack(), text, scheduler, dispatch).unwrap();
        let at: Vec<u16> = s.words.iter().map(|w| w.0).collect();
        assert_eq!(at, [1, 4, 6, 8, 10]);
        assert_eq!(s.span, 11 * 8);
        assert_eq!(s.schedule_word, Some(6));
    }

    /// The same functions, called from a fault and from an interrupt.
    #[test]
    fn outside_of_system_calls_the_entry_is_compared() {
        let (mut frames, mut words) = (walk(), stack());
        frames[5] = TEXT + 0x4500;
        words[10] = TEXT + 0x4500;
        let s = learn(&frames, &words, text, scheduler, dispatch).unwrap();
        let at: Vec<u16> = s.words.iter().map(|w| w.0).collect();
        assert_eq!(at, [1, 4, 6, 8, 10, 13]);
        assert_eq!(s.span, 14 * 8);
        words[13] = TEXT + 0x5500;
        assert_eq!(
            learn(&frames, &words, text, scheduler, dispatch),
            Err(Unsigned::BeyondCopy)
        );
    }

    #[test]
    fn stale_copies_of_an_address_are_compared_too() {
        let mut words = stack();
        words[2] = TEXT + 0x2000; // below its true place
        words[7] = TEXT + 0x1000;
        let s = learn(&walk(), &words, text, scheduler, dispatch).unwrap();
        let at: Vec<u16> = s.words.iter().map(|w| w.0).collect();
        assert_eq!(at, [1, 2, 4, 6, 7, 8, 10]);
    }

    #[test]
    fn a_stale_copy_beyond_the_chain_widens_the_span_only() {
        let mut words = stack();
        words[12] = TEXT + 0x4000;
        let s = learn(&walk(), &words, text, scheduler, dispatch).unwrap();
        assert_eq!(s.span, 13 * 8);
        assert!(s.words.contains(&(10, TEXT + 0x4000)));
    }

    #[test]
    fn samples_agree_on_the_outermost_place() {
        let sample = |stale: &[usize]| {
            let mut words = stack();
            for &at in stale {
                words[at] = TEXT + 0x4000;
            }
            Variant::learn(&walk(), &words, text, scheduler, dispatch).unwrap()
        };
        let mut v = sample(&[9, 12]);
        assert_eq!(v.signature().unwrap().span, 13 * 8);
        assert!(v.merge(&sample(&[14])));
        let s = v.signature().unwrap();
        let at: Vec<u16> = s.words.iter().map(|w| w.0).collect();
        assert_eq!(
            at,
            [1, 4, 6, 8, 10],
            "the true place is in every sample, stale ones are not"
        );
        // a stale inner word is another variant, whatever it holds
        let mut words = stack();
        words[5] = TEXT + 0x2000;
        assert!(!v.merge(&Variant::learn(&walk(), &words, text, scheduler, dispatch).unwrap()));
    }

    #[test]
    fn a_chain_deeper_than_the_copy_is_walked_each_time() {
        assert_eq!(
            learn(&walk(), &stack()[..9], text, scheduler, dispatch),
            Err(Unsigned::BeyondCopy)
        );
        assert_eq!(
            learn(&walk(), &[], text, scheduler, dispatch),
            Err(Unsigned::NoWords)
        );
    }

    #[test]
    fn a_truncated_walk_keeps_its_last_frame() {
        let frames: Vec<u64> = (0..STACK_DEPTH as u64)
            .map(|i| TEXT + 0x1000 + i * 16)
            .collect();
        let s = learn(&frames, &frames, text, scheduler, dispatch).unwrap();
        assert_eq!(s.words.len(), STACK_DEPTH);
    }

    /// The promise of `bpf/site.h` on random stacks: whatever stack matches a
    /// signature, of one sample or of several, has every address of the walk
    /// at the place where the walk found it.
    #[test]
    fn no_stack_with_another_chain_matches() {
        let mut seed = 0x9e37_79b9_7f4a_7c15u64;
        let mut next = move || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed
        };
        let (mut signed, mut merged) = (0, 0);
        for _ in 0..20_000 {
            // a chain of 2..8 addresses out of a pool of 6, at random
            // distances, with stale words of the same pool between them and
            // the dispatch's address strewn behind it, in 3 samples
            let pool: Vec<u64> = (0..6).map(|i| TEXT + 0x1000 + i * 0x100).collect();
            let dispatch = TEXT + 0x8000;
            let n = 2 + (next() % 7) as usize;
            let mut words = vec![];
            let mut chain = vec![];
            let mut places = vec![];
            for i in 0..=n {
                for _ in 0..next() % 5 {
                    words.push(if next() % 4 == 0 {
                        pool[(next() % 6) as usize]
                    } else {
                        next()
                    });
                }
                let a = if i == n {
                    dispatch
                } else {
                    pool[(next() % 6) as usize]
                };
                places.push(words.len());
                chain.push(a);
                words.push(a);
            }
            let mut frames = chain.clone();
            frames.push(TEXT + 0x9000); // entry
            frames.resize(STACK_DEPTH, 0);
            let mut variants: Vec<Variant> = vec![];
            for _ in 0..3 {
                let mut sample = words.clone();
                for _ in 0..next() % 8 {
                    sample.push(match next() % 3 {
                        0 => dispatch,
                        1 => pool[(next() % 6) as usize],
                        _ => next(),
                    });
                }
                if next() % 4 == 0 {
                    let at = (next() as usize) % words.len();
                    if !places.contains(&at) {
                        sample[at] = dispatch;
                    }
                }
                let Ok(v) = Variant::learn(&frames, &sample, text, scheduler, self::dispatch)
                else {
                    continue;
                };
                if variants.iter_mut().any(|have| have.merge(&v)) {
                    merged += 1;
                } else {
                    variants.push(v);
                }
            }
            for v in &variants {
                let Ok(s) = v.signature() else { continue };
                signed += 1;
                for (place, address) in places.iter().zip(&chain) {
                    assert!(s.words.contains(&(*place as u16, *address)));
                }
            }
        }
        assert!(signed > 10_000 && merged > 10_000, "{signed} {merged}");
    }
}
