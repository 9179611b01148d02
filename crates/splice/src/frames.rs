// SPDX-License-Identifier: MIT OR Apache-2.0
//! Will a signal handler return into the midst of what is to be replaced?
//!
//! A handler's frame holds the registers of whom it interrupted (`struct sigcontext`). It may lie on any
//! stack, in any memory that the process can write: so all of that is looked through, as far as it
//! is there. A frame that is only left from before looks the same: then it is said to be one.

use crate::maps::Mapping;
use crate::state::PAGE;
use crate::{Error, proc};
use std::io;

/// More memory is not looked through: all threads stand still meanwhile.
const MOST: u64 = 1 << 30;
const PIECE: u64 = 1 << 20;
/// Code and stack segments of 64-bit programs, as a frame has them, two words behind the address.
const CS: u64 = 0x33;
const SS: u64 = 0x2b;

fn failed(e: io::Error) -> Error {
    Error::Run(format!("its memory: {e}"))
}

/// Whether there is a frame whose address `matters`, in what it has mapped.
///
/// # Errors
/// When its memory cannot be read, or there is too much.
pub fn found(pid: i32, mappings: &[Mapping], matters: &dyn Fn(u64) -> bool) -> Result<bool, Error> {
    let mut left = MOST;
    let mut piece = Vec::new();
    for mapping in mappings.iter().filter(|mapping| mapping.is_own()) {
        for (start, end) in proc::present(pid, mapping.start, mapping.end).map_err(failed)? {
            left = left.checked_sub(end - start).ok_or_else(|| {
                Error::Run(format!(
                    "it has more than {} MiB of memory, in which signal handlers would have to be looked for",
                    MOST >> 20
                ))
            })?;
            let mut at = start;
            while at < end {
                // Two words of the next one belong to an address at its end.
                let bytes = (PIECE + PAGE).min(end - at);
                piece.resize(bytes as usize, 0);
                proc::memory_read(pid, at, &mut piece).map_err(failed)?;
                if in_piece(&piece, matters) {
                    return Ok(true);
                }
                at += PIECE;
            }
        }
    }
    Ok(false)
}

fn in_piece(piece: &[u8], matters: &dyn Fn(u64) -> bool) -> bool {
    let words = piece.as_chunks::<8>().0;
    words.windows(3).any(|three| {
        let segments = u64::from_le_bytes(three[2]);
        segments & 0xffff == CS
            && matches!(segments >> 48, SS | 0)
            && matters(u64::from_le_bytes(three[0]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_known_by_its_segments() {
        let words = |words: &[u64]| -> Vec<u8> {
            words.iter().flat_map(|word| word.to_le_bytes()).collect()
        };
        let matters = |address| address == 0x1234;
        let frame = [7, 0x1234, 0x246, SS << 48 | CS, 0];
        assert!(in_piece(&words(&frame), &matters));
        assert!(!in_piece(
            &words(&[7, 0x1235, 0x246, SS << 48 | CS]),
            &matters
        ));
        assert!(!in_piece(&words(&[7, 0x1234, 0x246, 0]), &matters));
        assert!(!in_piece(&[1, 2, 3], &matters));
    }
}
