// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where do trampolines find the thread's state? As `splice/state.h` has it, which says why.

/// Offsets in a block, from the base of GS.
pub mod block {
    pub const OPEN: u64 = 0;
    pub const START: u64 = 8;
    pub const NR: u64 = 16;
    pub const TIMED: u64 = 20;
    pub const CALLS: u64 = 24;
    pub const FAILED: u64 = 28;
    pub const CALLED_NS: u64 = 32;
    pub const TID: u64 = 40;
    pub const PID: u64 = 44;
    pub const ENTER: u64 = 48;
    pub const EXIT: u64 = 56;
    pub const BEFORE: u64 = 64;
    pub const AFTER: u64 = 72;
    pub const SELF: u64 = 88;
    pub const STATE: u64 = 96;
    pub const UNTIMED: u64 = 104;
    pub const ABANDONED: u64 = 112;
    pub const AREA: u64 = 120;
    pub const FIND: u64 = 136;
    pub const DOOR: u64 = 344;
    pub const LAST_NS: u64 = 352;
    pub const INNER_START: u64 = 488;
    pub const RATE: u64 = 472;
    pub const LAST_RESULT: u64 = 480;
    pub const SPECIAL: u64 = 512;
    pub const DOORS: u64 = 1024;
    pub const ROW: u64 = 2544;
    pub const ROWS: u64 = 4096;
    pub const SAMPLE: u64 = ROWS + super::NRS as u64 * super::row::BYTES;
    pub const BYTES: u64 = SAMPLE + super::NRS as u64 * super::sample::BYTES;
}

/// Offsets in a row of a block: the sums of one call.
pub mod row {
    pub const COUNT: u64 = 0;
    pub const WALL_NS: u64 = 8;
    pub const MAX_NS: u64 = 16;
    pub const ERRORS: u64 = 24;
    pub const HIST: u64 = 32;
    pub const MISSING: u64 = 1192;
    pub const ONES: u64 = 1200;
    pub const BYTES: u64 = 1216;
}

/// Behind the rows of a block: which calls of a number are stamped, and what of the others is known.
pub mod sample {
    pub const UNSTAMPED: u64 = 0;
    pub const ESTIMATED_NS: u64 = 8;
    pub const SKIP: u64 = 16;
    /// By us, together with the next one.
    pub const SPAN: u64 = 24;
    pub const ESTIMATE_NS: u64 = 28;
    pub const BYTES: u64 = 32;
}

/// The first page of an area, which is of one program.
pub mod area {
    pub const FORKS: u64 = 4;
    pub const CHUNK_BLOCKS: u64 = 32;
    pub const CHUNKS: u64 = 32;
    pub const BLOCKS: u64 = CHUNK_BLOCKS * CHUNKS;
    pub const BLOCKS_LOST: u64 = 8;
    pub const LATE_CODE: u64 = 12;
    pub const LEFT: u64 = 16;
    pub const OFF: u64 = 20;
    pub const UNFOLLOWED: u64 = 32;
    pub const READS: u64 = 124;
    pub const REPLACED: u64 = 128;
    /// Inode and device.
    pub const REPLACED_BYTES: u64 = 16;
    pub const REPLACED_MOST: u64 = 128;
    pub const LEFT_DEVICE: u64 = REPLACED + REPLACED_MOST * REPLACED_BYTES;
    pub const LEFT_INODE: u64 = LEFT_DEVICE + 8;
    pub const PLACES: u64 = super::PAGE + BLOCKS * super::block::BYTES;
    pub const BYTES: u64 = PLACES + super::places::BYTES;
}

/// Where calls came from, behind the blocks of an area.
pub mod places {
    pub const LOST: u64 = 0;
    pub const FILE: u64 = 8;
    pub const FILE_BYTES: u64 = 16;
    pub const FILES: u64 = 254;
    /// Code that is of no file, at its address.
    pub const FILE_NONE: u64 = 255;
    pub const FILE_DEVICE: u64 = 8;
    pub const PLACE: u64 = 4096;
    pub const PLACES: u64 = 1024;
    pub const PLACE_BYTES: u64 = 40;
    pub const BYTES: u64 = PLACE + PLACES * PLACE_BYTES;
    /// In a key.
    pub const OFFSET_BITS: u32 = 47;
    pub const FILE_SHIFT: u32 = 56;
    /// Of a place, whose key comes first.
    pub const COUNT: u64 = 8;
    pub const ERRORS: u64 = 16;
    pub const WALL_NS: u64 = 24;
    pub const MAX_NS: u64 = 32;
}

/// Before the rows of a file of [`crate::callers`].
pub mod callers {
    pub const MAGIC: u64 = 0x4c4c_4143_5842_4544;
    pub const SEGMENTS: usize = 4;
    pub const SEGMENT: usize = 24;
    pub const BYTES: usize = SEGMENT + SEGMENTS * 24;
}

/// The first page of a run's file.
pub mod run {
    pub const BYTES: u64 = 4096;
    pub const WATCHER: u64 = 4;
    pub const BELL: u64 = 8;
    pub const PRIVILEGED: u64 = 12;
    pub const LOOKED_AT: u64 = 16;
    pub const ONLY: u64 = 20;
    pub const RATE: u64 = 24;
    pub const IMAGES: u64 = 32;
    pub const IMAGES_BYTES: u64 = 256;
    pub const REQUEST: u64 = 288;
    pub const REQUEST_BYTES: u64 = 48;
    pub const REQUESTS: usize = 48;
    pub const DOORS: u64 = 2592;
    pub const PLACES: u64 = 3616;
    pub const USER: u64 = 3620;
    pub const SAMPLE: u64 = 3624;
    /// Of a request, whose state comes first.
    pub const KIND: u64 = 4;
    pub const TID: u64 = 8;
    pub const FD: u64 = 12;
    pub const ANSWER: u64 = 16;
    pub const SOCKET: u64 = 20;
    pub const AT: u64 = 24;
    pub const WORD_AT: u64 = 32;
    pub const WORD: u64 = 40;
}

/// What the runtime is told of a process that runs; threads and codes follow.
pub mod attach {
    pub const RUN_BYTES: u64 = 64;
    pub const BYTES: u64 = 128;
    pub const STEP: u64 = 120;
    /// `enum splice_step`.
    pub const STEP_BLOCKS: u32 = 1;
    pub const STEP_BASES: u32 = 2;
    pub const STEP_REPLACED: u32 = 3;
    pub const STEP_ALONE: u32 = 4;
    pub const THREAD_BYTES: u64 = 32;
    pub const THREAD_BLOCK: u64 = 24;
    pub const CODE_BYTES: u64 = 48;
    pub const CODE_REPLACED: u64 = 46;
}

/// `off` of an area: whoever attached to it has gone.
pub const OFF_LEFT: u32 = 3;
/// Where in the runtime the code lies that maps it,
pub const MAP: u64 = 64;
/// ... behind the call that opens it.
pub const MAP_OPENED: u64 = 7;
pub const MAP_BYTES: u64 = 112;
/// that which splices a process that runs,
pub const ATTACH: u64 = 192;
/// and that which makes one call.
pub const CALL: u64 = 256;
pub const CALL_BYTES: u64 = 40;
pub const PAGE: u64 = 4096;
/// Answers to a thread that gives up rights: it goes on in the file that it has, or in one that was sent.
pub const ALONE: i32 = 2;
pub const MOVES: i32 = 3;
/// In a request's [`run::SOCKET`]: `enum splice_behind`.
pub const BEHIND_SHIFT: u32 = 30;
pub const BEHIND_ABOVE: u32 = 1;
pub const BEHIND_CALLERS: u32 = 2;
pub const BEHIND_RUN: u32 = 3;
/// Calls that are counted by their number; the last one stands for all beyond.
pub const NRS: u32 = 512;
pub const BUCKETS: u32 = 290;
pub const DOOR_FIRST: u32 = 15;
/// `enum splice_timed`: as much as a call without a stamp is.
pub const UNSTAMPED: u32 = 3;
/// What it is said to have lasted.
pub const NO_TIME: u64 = u64::MAX;
pub const DOOR_NONE: u16 = 0xffff;
/// Always, and the call may have taken memory away.
pub const DOOR_UNMAPS: u16 = 0;
pub const VERSION: u32 = 36;
/// Of which a process keeps that their code is replaced.
pub const FILES: usize = 128;
pub const IMAGE_MAGIC: u64 = 0x4741_4d49_5842_4544;
pub const IMAGE_SEGMENTS: usize = 4;
/// Where the path begins in its last page.
pub const IMAGE_PATH: usize = 512;
/// What an image tells in the place of how many calls are left, where nothing of its process may be spliced.
pub const KNOWS_ITS_CALLS: u32 = u32::MAX;
pub const SETS_GS: u32 = u32::MAX - 1;
/// Of no image: there is none.
pub const NO_IMAGE: u32 = u32::MAX - 2;

/// What is left of a stamp in a request to come along with an execve.
pub const BEGAN_SHIFT: u32 = 5;

/// How many ticks ago that was, as of `now`: whoever asks waits for less than what is left can tell.
pub fn since(began: u32, now: u64) -> u64 {
    u64::from(((now >> BEGAN_SHIFT) as u32).wrapping_sub(began)) << BEGAN_SHIFT
}

/// Calls that most programs make, in the order of their rows: `SPLICE_OFTEN`.
const OFTEN: [u16; 65] = [
    0, 3, 9, 10, 11, 12, 17, 21, 59, 257, 262, 158, 218, 273, 334, 302, 318, 231, 157, 5, 1, 13,
    14, 56, 61, 16, 8, 72, 39, 110, 102, 104, 107, 108, 186, 202, 58, 435, 60, 22, 293, 32, 33, 7,
    271, 20, 4, 6, 89, 267, 79, 217, 332, 228, 35, 230, 44, 45, 46, 47, 232, 281, 28, 24, 63,
];

/// Of each number which row is its.
const ROW_NUMBERS: [u16; NRS as usize] = {
    const NONE: u16 = u16::MAX;
    let mut numbers = [NONE; NRS as usize];
    let mut next = 0;
    while next < OFTEN.len() {
        numbers[OFTEN[next] as usize] = next as u16;
        next += 1;
    }
    let mut nr = 0;
    while nr < numbers.len() {
        if numbers[nr] == NONE {
            numbers[nr] = next as u16;
            next += 1;
        }
        nr += 1;
    }
    numbers
};

/// The row of a call in a block.
pub fn row_of(nr: u32) -> u64 {
    block::ROWS + u64::from(ROW_NUMBERS[nr.min(NRS - 1) as usize]) * row::BYTES
}

/// ... and which of its calls are stamped.
pub fn sample_of(nr: u32) -> u64 {
    block::SAMPLE + u64::from(nr.min(NRS - 1)) * sample::BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Also where what is left of the two stamps is less of the later one.
    #[test]
    fn stamps_that_are_cut_off_are_compared() {
        let cut = |ticks: u64| (ticks >> BEGAN_SHIFT) as u32;
        for began in [0, 1 << 20, (1 << 37) - 32, (5 << 37) + 4096] {
            for ticks in [0, 32, 3_000_000_000] {
                assert_eq!(since(cut(began), began + ticks), ticks, "{began}");
            }
        }
    }

    /// As the C compiler lays `splice/state.h` out.
    #[test]
    fn offsets_are_those_of_the_header() {
        let rows: &[(&str, u64)] = &[
            ("offsetof(struct splice_block, open.rsp)", block::OPEN),
            ("offsetof(struct splice_block, open.start)", block::START),
            ("offsetof(struct splice_block, open.nr)", block::NR),
            ("offsetof(struct splice_block, open.timed)", block::TIMED),
            ("offsetof(struct splice_block, rate)", block::RATE),
            ("offsetof(struct splice_block, calls)", block::CALLS),
            ("offsetof(struct splice_block, failed)", block::FAILED),
            ("offsetof(struct splice_block, enter)", block::ENTER),
            ("offsetof(struct splice_block, exit)", block::EXIT),
            ("offsetof(struct splice_block, before)", block::BEFORE),
            ("offsetof(struct splice_block, after)", block::AFTER),
            ("offsetof(struct splice_block, self)", block::SELF),
            ("offsetof(struct splice_block, tid)", block::TID),
            ("offsetof(struct splice_block, pid)", block::PID),
            ("offsetof(struct splice_block, called_ns)", block::CALLED_NS),
            ("offsetof(struct splice_block, state)", block::STATE),
            ("offsetof(struct splice_block, untimed)", block::UNTIMED),
            ("offsetof(struct splice_block, abandoned)", block::ABANDONED),
            ("offsetof(struct splice_block, find)", block::FIND),
            ("offsetof(struct splice_block, door)", block::DOOR),
            ("offsetof(struct splice_block, last_ns)", block::LAST_NS),
            (
                "offsetof(struct splice_block, last_result)",
                block::LAST_RESULT,
            ),
            ("offsetof(struct splice_block, special)", block::SPECIAL),
            ("offsetof(struct splice_block, doors)", block::DOORS),
            ("offsetof(struct splice_block, row)", block::ROW),
            ("offsetof(struct splice_block, rows)", block::ROWS),
            ("sizeof(struct splice_block)", block::BYTES),
            ("offsetof(struct splice_row, count)", row::COUNT),
            ("offsetof(struct splice_row, wall_ns)", row::WALL_NS),
            ("offsetof(struct splice_row, max_ns)", row::MAX_NS),
            ("offsetof(struct splice_row, errors)", row::ERRORS),
            ("offsetof(struct splice_row, hist)", row::HIST),
            ("offsetof(struct splice_row, missing)", row::MISSING),
            ("offsetof(struct splice_row, ones)", row::ONES),
            ("sizeof(struct splice_row)", row::BYTES),
            ("offsetof(struct splice_block, sample)", block::SAMPLE),
            (
                "offsetof(struct splice_block, inner_start)",
                block::INNER_START,
            ),
            (
                "offsetof(struct splice_sample, unstamped)",
                sample::UNSTAMPED,
            ),
            (
                "offsetof(struct splice_sample, estimated_ns)",
                sample::ESTIMATED_NS,
            ),
            ("offsetof(struct splice_sample, skip)", sample::SKIP),
            ("offsetof(struct splice_sample, span)", sample::SPAN),
            (
                "offsetof(struct splice_sample, estimate_ns)",
                sample::ESTIMATE_NS,
            ),
            ("sizeof(struct splice_sample)", sample::BYTES),
            ("SPLICE_UNSTAMPED", u64::from(UNSTAMPED)),
            ("SPLICE_NO_TIME", NO_TIME),
            ("offsetof(struct splice_area, reads)", area::READS),
            ("offsetof(struct splice_run, sample)", run::SAMPLE),
            ("SPLICE_BUCKETS", u64::from(BUCKETS)),
            ("SPLICE_NRS", u64::from(NRS)),
            ("SPLICE_DOOR_FIRST", u64::from(DOOR_FIRST)),
            ("SPLICE_DOOR_NONE", u64::from(DOOR_NONE)),
            ("SPLICE_VERSION", u64::from(VERSION)),
            ("SPLICE_IMAGES", FILES as u64),
            ("SPLICE_BEGAN_SHIFT", u64::from(BEGAN_SHIFT)),
            ("SPLICE_MAP", MAP),
            ("SPLICE_MAP_BYTES", MAP_BYTES),
            ("SPLICE_ATTACH", ATTACH),
            ("SPLICE_CALL", CALL),
            ("SPLICE_CALL_BYTES", CALL_BYTES),
            ("sizeof(struct splice_attach)", attach::BYTES),
            ("offsetof(struct splice_attach, step)", attach::STEP),
            ("SPLICE_STEP_BLOCKS", u64::from(attach::STEP_BLOCKS)),
            ("SPLICE_STEP_BASES", u64::from(attach::STEP_BASES)),
            ("SPLICE_STEP_REPLACED", u64::from(attach::STEP_REPLACED)),
            ("SPLICE_STEP_ALONE", u64::from(attach::STEP_ALONE)),
            (
                "sizeof(((struct splice_attach *)0)->run)",
                attach::RUN_BYTES,
            ),
            ("sizeof(struct splice_attach_thread)", attach::THREAD_BYTES),
            (
                "offsetof(struct splice_attach_thread, block)",
                attach::THREAD_BLOCK,
            ),
            ("sizeof(struct splice_attach_code)", attach::CODE_BYTES),
            (
                "offsetof(struct splice_attach_code, replaced)",
                attach::CODE_REPLACED,
            ),
            ("SPLICE_OFF_LEFT", u64::from(OFF_LEFT)),
            ("offsetof(struct splice_run, watcher)", run::WATCHER),
            ("offsetof(struct splice_run, privileged)", run::PRIVILEGED),
            ("SPLICE_ALONE", ALONE as u64),
            ("SPLICE_BEHIND_SHIFT", u64::from(BEHIND_SHIFT)),
            ("SPLICE_BEHIND_ABOVE", u64::from(BEHIND_ABOVE)),
            ("SPLICE_BEHIND_CALLERS", u64::from(BEHIND_CALLERS)),
            ("SPLICE_BEHIND_RUN", u64::from(BEHIND_RUN)),
            ("offsetof(struct splice_request, socket)", run::SOCKET),
            ("SPLICE_MOVES", MOVES as u64),
            ("offsetof(struct splice_block, area)", block::AREA),
            ("SPLICE_IMAGE_MAGIC", IMAGE_MAGIC),
            ("SPLICE_SEGMENTS", IMAGE_SEGMENTS as u64),
            ("offsetof(struct splice_image, segment)", 56),
            ("sizeof(struct splice_segment)", 24),
            ("SPLICE_IMAGE_PATH", IMAGE_PATH as u64),
            ("SPLICE_KNOWS_ITS_CALLS", u64::from(KNOWS_ITS_CALLS)),
            ("SPLICE_SETS_GS", u64::from(SETS_GS)),
            ("SPLICE_NO_IMAGE", u64::from(NO_IMAGE)),
            (
                "offsetof(struct splice_area, blocks_lost)",
                area::BLOCKS_LOST,
            ),
            ("offsetof(struct splice_area, late_code)", area::LATE_CODE),
            ("offsetof(struct splice_area, left)", area::LEFT),
            ("offsetof(struct splice_area, off)", area::OFF),
            ("offsetof(struct splice_area, unfollowed)", area::UNFOLLOWED),
            ("offsetof(struct splice_area, replaced)", area::REPLACED),
            ("sizeof(struct splice_replaced)", area::REPLACED_BYTES),
            ("SPLICE_REPLACED", area::REPLACED_MOST),
            (
                "offsetof(struct splice_area, left_device)",
                area::LEFT_DEVICE,
            ),
            ("offsetof(struct splice_area, left_inode)", area::LEFT_INODE),
            ("offsetof(struct splice_area, forks)", area::FORKS),
            ("SPLICE_BLOCKS", area::CHUNK_BLOCKS),
            ("SPLICE_CHUNKS", area::CHUNKS),
            ("SPLICE_PLACES_OFFSET", area::PLACES),
            ("SPLICE_AREA_BYTES", area::BYTES),
            ("offsetof(struct splice_places, lost)", places::LOST),
            ("offsetof(struct splice_places, file)", places::FILE),
            ("sizeof(struct splice_file)", places::FILE_BYTES),
            ("offsetof(struct splice_file, inode)", 0),
            ("offsetof(struct splice_file, device)", places::FILE_DEVICE),
            ("SPLICE_FILES", places::FILES),
            ("SPLICE_FILE_NONE", places::FILE_NONE),
            ("offsetof(struct splice_places, place)", places::PLACE),
            ("SPLICE_PLACES", places::PLACES),
            ("sizeof(struct splice_place)", places::PLACE_BYTES),
            ("SPLICE_PLACES_BYTES", places::BYTES),
            ("SPLICE_PLACE_OFFSET_BITS", u64::from(places::OFFSET_BITS)),
            ("SPLICE_PLACE_FILE_SHIFT", u64::from(places::FILE_SHIFT)),
            ("offsetof(struct splice_place, key)", 0),
            ("offsetof(struct splice_place, count)", places::COUNT),
            ("offsetof(struct splice_place, errors)", places::ERRORS),
            ("offsetof(struct splice_place, wall_ns)", places::WALL_NS),
            ("offsetof(struct splice_place, max_ns)", places::MAX_NS),
            ("SPLICE_CALLERS_MAGIC", callers::MAGIC),
            ("SPLICE_CALLERS_SEGMENTS", callers::SEGMENTS as u64),
            (
                "offsetof(struct splice_callers, segment)",
                callers::SEGMENT as u64,
            ),
            ("sizeof(struct splice_callers)", callers::BYTES as u64),
            ("sizeof(struct splice_caller)", 8),
            ("SPLICE_DOOR_UNMAPS", u64::from(DOOR_UNMAPS)),
            ("offsetof(struct splice_run, places)", run::PLACES),
            ("offsetof(struct splice_run, user)", run::USER),
            ("SPLICE_RUN_BYTES", run::BYTES),
            ("offsetof(struct splice_run, bell)", run::BELL),
            ("offsetof(struct splice_run, looked_at)", run::LOOKED_AT),
            ("offsetof(struct splice_run, only)", run::ONLY),
            ("offsetof(struct splice_run, rate)", run::RATE),
            ("offsetof(struct splice_run, images)", run::IMAGES),
            (
                "sizeof(((struct splice_run *)0)->images)",
                run::IMAGES_BYTES,
            ),
            ("offsetof(struct splice_run, request)", run::REQUEST),
            ("sizeof(struct splice_request)", run::REQUEST_BYTES),
            ("SPLICE_REQUESTS", run::REQUESTS as u64),
            ("offsetof(struct splice_run, doors)", run::DOORS),
            ("offsetof(struct splice_request, kind)", run::KIND),
            ("offsetof(struct splice_request, tid)", run::TID),
            ("offsetof(struct splice_request, fd)", run::FD),
            ("offsetof(struct splice_request, answer)", run::ANSWER),
            ("offsetof(struct splice_request, at)", run::AT),
            ("offsetof(struct splice_request, word_at)", run::WORD_AT),
            ("offsetof(struct splice_request, word)", run::WORD),
        ];
        let often = (0..OFTEN.len()).map(|i| format!("((uint16_t[]){{ SPLICE_OFTEN }})[{i}]"));
        let often: Vec<String> = often.collect();
        let rows: Vec<(&str, u64)> = (rows.iter().copied())
            .chain([(
                "sizeof((uint16_t[]){ SPLICE_OFTEN }) / sizeof(uint16_t)",
                OFTEN.len() as u64,
            )])
            .chain(often.iter().map(String::as_str).zip(OFTEN.map(u64::from)))
            .collect();
        assert!(
            OFTEN
                .iter()
                .zip(0..)
                .all(|(nr, row)| row_of(u32::from(*nr)) == block::ROWS + row * row::BYTES)
        );
        let folder = tempfile::tempdir().unwrap();
        let header = concat!(env!("CARGO_MANIFEST_DIR"), "/../../splice/state.h");
        let lines: String = (rows.iter())
            .map(|(text, _)| format!("printf(\"%llu\\n\", (unsigned long long)({text}));\n"))
            .collect();
        let (source, program) = (folder.path().join("layout.c"), folder.path().join("layout"));
        let text = format!(
            "#include <stdio.h>\n#include \"{header}\"\nint main(void) {{\n{lines}return 0;\n}}\n"
        );
        std::fs::write(&source, text).unwrap();
        let built = Command::new("cc")
            .arg("-o")
            .args([&program, &source])
            .status();
        assert!(built.is_ok_and(|built| built.success()), "cc is needed");
        let told = Command::new(&program).output().unwrap();
        let told = String::from_utf8(told.stdout).unwrap();
        for ((text, ours), theirs) in rows.iter().zip(told.lines()) {
            assert_eq!(ours.to_string(), theirs, "{text}");
        }
        assert_eq!(told.lines().count(), rows.len());
    }
}
