// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which interrupts landed on the CPUs of the watched threads, and what are they
//! called?

use crate::model::{InterruptKind, InterruptRow};
use debox_abi::*;

/// Of soft interrupts, as /proc/softirqs has them.
const SOFT: [&str; 10] = [
    "HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU",
];

/// What the processor's vectors are for (asm/irq_vectors.h).
fn vector_name(vector: u32) -> Option<&'static str> {
    Some(match vector {
        0xec => "local timer",
        0xf4 => "deferred error",
        0xf6 => "irq work",
        0xf7 => "platform",
        0xf9 => "threshold",
        0xfa => "thermal",
        0xfb => "function call, one CPU",
        0xfc => "function call",
        0xfd => "reschedule",
        0xfe => "error",
        0xff => "spurious",
        _ => return None,
    })
}

fn row_of(row: &debox_irq_row) -> Option<InterruptRow> {
    if row.key & DEBOX_KEY_USED == 0 || row.count == 0 && row.outside_count == 0 {
        return None;
    }
    let number = (row.key >> DEBOX_IRQ_NUMBER_SHIFT) as u32;
    let (kind, name) = match (row.key >> DEBOX_IRQ_KIND_SHIFT) as u32 & 0x7f {
        DEBOX_IRQ_DEVICE => (InterruptKind::Device, Some(text_get(&row.name))),
        DEBOX_IRQ_VECTOR => (InterruptKind::Vector, vector_name(number)),
        DEBOX_IRQ_SOFT => (InterruptKind::Soft, SOFT.get(number as usize).copied()),
        _ => (InterruptKind::Other, None),
    };
    Some(InterruptRow {
        kind,
        number,
        name: name.map_or_else(|| number.to_string(), str::to_owned),
        count: row.count,
        total_ns: row.total_ns,
        max_ns: row.max_ns,
        outside_count: row.outside_count,
        outside_ns: row.outside_ns,
        outside_max_ns: row.outside_max_ns,
    })
}

/// Largest total in calls first.
pub(super) fn rows(account: &debox_account) -> Vec<InterruptRow> {
    let mut rows: Vec<InterruptRow> = account.irqs.iter().filter_map(row_of).collect();
    rows.sort_by(|a, b| {
        let time = |row: &InterruptRow| (row.total_ns, row.outside_ns);
        time(b).cmp(&time(a)).then_with(|| a.name.cmp(&b.name))
    });
    rows
}

/// Of all that landed between calls.
pub(super) fn outside_ns(rows: &[InterruptRow]) -> u64 {
    rows.iter()
        .fold(0, |sum: u64, row| sum.saturating_add(row.outside_ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_and_names() {
        let mut account = <debox_account as Pod>::zeroed_box();
        let key = |kind: u32, number: u64| {
            DEBOX_KEY_USED
                | u64::from(kind) << DEBOX_IRQ_KIND_SHIFT
                | number << DEBOX_IRQ_NUMBER_SHIFT
        };
        let rows_in = [
            (key(DEBOX_IRQ_SOFT, 3), 5, 500),
            (key(DEBOX_IRQ_VECTOR, 0xec), 1, 900),
            (key(DEBOX_IRQ_DEVICE, 36) | 0xabcdef, 2, 70),
            // Taken, and nothing of it has ended.
            (key(DEBOX_IRQ_SOFT, 9), 0, 0),
        ];
        for (row, (key, count, total_ns)) in account.irqs.iter_mut().zip(rows_in) {
            (row.key, row.count, row.total_ns) = (key, count, total_ns);
        }
        account.irqs[2].outside_count = 1;
        account.irqs[2].outside_ns = 30;
        text_put(&mut account.irqs[2].name, "virtio1-req.0");
        let found = rows(&account);
        let told: Vec<_> = found
            .iter()
            .map(|r| (r.kind, r.number, r.name.as_str(), r.count, r.total_ns))
            .collect();
        assert_eq!(
            told,
            [
                (InterruptKind::Vector, 0xec, "local timer", 1, 900),
                (InterruptKind::Soft, 3, "NET_RX", 5, 500),
                (InterruptKind::Device, 36, "virtio1-req.0", 2, 70),
            ]
        );
        assert_eq!(outside_ns(&found), 30);
    }
}
