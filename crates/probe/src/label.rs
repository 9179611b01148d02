// SPDX-License-Identifier: MIT OR Apache-2.0
//! How do the rules that give labels get into the kernel (`bpf/label.h`)?

use std::sync::atomic::{Ordering, fence};

use debox_labels::{FunctionSet, LabelTable, UNKNOWN_SET};
use libbpf_rs::{MapCore, MapFlags};

use crate::Probe;
use crate::error::Error;

/// `struct label_set` as it lies in its map.
fn set_bytes(number: usize, set: &FunctionSet) -> Vec<u8> {
    let words = [set.wait, set.site, set.any, set.not].concat();
    let unknown = number == UNKNOWN_SET as usize;
    let flags = [set.plumbing.into(), set.switch.into(), unknown.into(), 0u32];
    let flags = flags.iter().flat_map(|flag| flag.to_ne_bytes());
    let words = words.iter().flat_map(|word| word.to_ne_bytes());
    words.chain(flags).collect()
}

/// `struct label_function`.
fn function_bytes(start: u64, set: u32) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[0..8].copy_from_slice(&start.to_ne_bytes());
    bytes[8..12].copy_from_slice(&set.to_ne_bytes());
    bytes
}

fn put(map: &impl MapCore, values: &[u8], what: &'static str) -> Result<(), Error> {
    let count = (values.len() / map.value_size() as usize) as u32;
    if count > map.max_entries() {
        return Err(Error::Kernel {
            action: what,
            source: std::io::Error::from_raw_os_error(libc::E2BIG),
        });
    }
    let keys: Vec<u8> = (0..count).flat_map(u32::to_ne_bytes).collect();
    map.update_batch(&keys, values, count, MapFlags::ANY, MapFlags::ANY)
        .map_err(Error::bpf(what))
}

impl Probe {
    /// `numbers`: of each rule's label. A stack that is being walked meanwhile gets
    /// none.
    pub(crate) fn label_table_set(
        &mut self,
        table: &LabelTable,
        numbers: &[u8],
    ) -> Result<(), Error> {
        let functions: Vec<u8> = (table.functions.iter())
            .flat_map(|&(start, set)| function_bytes(start, set))
            .collect();
        let sets: Vec<u8> = (table.sets.iter().enumerate())
            .flat_map(|(number, set)| set_bytes(number, set))
            .collect();
        let maps = &mut self.skel.maps;
        let Some(bss) = maps.bss_data.as_deref_mut() else {
            return Ok(());
        };
        let rules = &mut bss.label_rules;
        let serial = rules.serial | 1;
        rules.serial = serial;
        // Pairs with the reads of `serial` in label_find().
        fence(Ordering::SeqCst);
        rules.functions = table.functions.len() as u32;
        rules.wait_free = table.wait_free;
        rules.site_free = table.site_free;
        rules.any_free = table.any_free;
        rules.label = [0; 256];
        rules.label[..numbers.len()].copy_from_slice(numbers);
        put(
            &maps.label_functions,
            &functions,
            "store the functions of label rules",
        )?;
        put(&maps.label_sets, &sets, "store the sets of label rules")?;
        fence(Ordering::SeqCst);
        rules.serial = serial + 1;
        tracing::debug!(
            functions = table.functions.len(),
            sets = table.sets.len(),
            "places get labels in the kernel"
        );
        Ok(())
    }

    /// DEBOX_LABEL_*
    pub(crate) fn label_of(&self, site: u32) -> u8 {
        let bss = self.skel.maps.bss_data.as_deref();
        bss.and_then(|bss| bss.site_label.get(site as usize).copied())
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_lie_as_in_the_header() {
        let mut set = FunctionSet {
            plumbing: true,
            ..FunctionSet::default()
        };
        set.site[0] = 0x0102;
        set.not[3] = 1 << 63;
        let bytes = set_bytes(5, &set);
        assert_eq!(bytes.len(), 4 * 32 + 16);
        assert_eq!(bytes[32..34], [0x02, 0x01]);
        assert_eq!(bytes[127], 0x80);
        assert_eq!(
            bytes[128..],
            [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        );
        assert_eq!(set_bytes(0, &set)[136], 1, "the first is what is not known");
    }
}
