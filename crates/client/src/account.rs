// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does an account say, while the kernel side goes on writing it?

use crate::control::DetailControl;
use crate::mapping::Mapping;
use crate::ring::EventRing;
use debox_abi::*;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{Ordering, fence};

/// Tries to find a row at rest.
const ROW_COPIES: usize = 20;

/// An account as the broker shares it.
pub struct AccountView {
    pub(crate) account: Mapping,
    pub(crate) cpus: Mapping,
    shared: Mapping,
    pub(crate) cpu_count: usize,
    pub(crate) stride: usize,
    pub features: u64,
    pub details: Option<DetailsView>,
}

/// What the account tells beyond its sums, if that was asked for.
pub struct DetailsView {
    details: Mapping,
    chains: Mapping,
    objects: Mapping,
    on_cpu: Option<Mapping>,
    lives: Mapping,
    pub control: DetailControl,
    pub events: EventRing,
}

impl DetailsView {
    /// A copy. Rows may be written meanwhile: each number is whole, those of a
    /// row need not be of one moment.
    pub fn copy(&self) -> Box<debox_details> {
        self.details.copy()
    }

    /// Blocked time by chain: the numbers of the chains, and of those that found
    /// no room under 0.
    pub fn chain_sums(&self) -> Vec<(u32, debox_chain_sum)> {
        let sums: Box<debox_chain_sums> = self.chains.copy();
        (0..)
            .zip(&sums.sum)
            .filter(|(_, sum)| sum.count > 0)
            .map(|(chain, sum)| (chain, *sum))
            .collect()
    }

    /// What sleeps were on, and how long; a copy like that of the details.
    pub fn objects(&self) -> Box<debox_objects> {
        self.objects.copy()
    }

    /// What the clock of CPU time found, if there is one; a copy like that of the details.
    pub fn on_cpu(&self) -> Option<Box<debox_on_cpu>> {
        self.on_cpu.as_ref().map(Mapping::copy)
    }

    /// Where threads' time went, of those that have ended; a copy like that of the
    /// details.
    pub fn lives(&self) -> Box<debox_lives> {
        self.lives.copy()
    }

    /// One user stack; None for an index that was never handed out.
    pub fn user_stack(&self, index: u32) -> Option<debox_user_stack> {
        let mut stack = debox_user_stack::zeroed();
        let offset = std::mem::offset_of!(debox_details, stacks);
        self.element(offset, index, DEBOX_USER_STACKS_MAX, &mut stack)?;
        (stack.hash != 0).then_some(stack)
    }

    /// One file of user stacks; None for one whose path is not there (yet).
    pub fn user_file(&self, index: u32) -> Option<debox_user_file> {
        let mut file = debox_user_file::zeroed();
        let offset = std::mem::offset_of!(debox_details, files);
        self.element(offset, index, DEBOX_USER_FILES_MAX, &mut file)?;
        (file.state == 1).then_some(file)
    }

    fn element<T: Pod>(&self, offset: usize, index: u32, count: usize, to: &mut T) -> Option<()> {
        let index = Some(index as usize).filter(|index| *index < count)?;
        let at = offset + index * size_of::<T>();
        self.details.copy_words(at, to.as_bytes_mut());
        Some(())
    }
}

/// A copy of everything, to be reported from.
pub struct Snapshot {
    pub account: Box<debox_account>,
    pub cpus: Box<[debox_account_cpu]>,
    pub sites: Box<[debox_site]>,
    pub features: u64,
    pub stale: bool,
    pub details: Option<Box<debox_details>>,
    pub objects: Option<Box<debox_objects>>,
    pub on_cpu: Option<Box<debox_on_cpu>>,
    /// Functions of the kernel in `on_cpu`, by number; empty until asked for.
    pub kernel_functions: HashMap<u32, String>,
    pub lives: Option<Box<debox_lives>>,
    /// Kernel functions of sites, outermost first; empty until asked for.
    pub site_stacks: Vec<(u32, Vec<String>)>,
    /// Blocked time by chain, and all links, the first of number 1; empty until
    /// asked for.
    pub chain_sums: Vec<(u32, debox_chain_sum)>,
    pub chains: Vec<debox_chain>,
}

impl Snapshot {
    /// Of an account that nothing was asked of.
    pub fn empty() -> Self {
        Self {
            account: debox_account::zeroed_box(),
            cpus: Box::default(),
            sites: Box::default(),
            features: 0,
            stale: false,
            details: None,
            objects: None,
            on_cpu: None,
            kernel_functions: HashMap::new(),
            lives: None,
            site_stacks: Vec::new(),
            chain_sums: Vec::new(),
            chains: Vec::new(),
        }
    }

    /// The text of this site, and of the one that it stands under.
    pub(crate) fn site_add(&mut self, account: &AccountView, index: usize) {
        if let Some(site) = account.site(index) {
            // Its text may stand under the number of an equal one.
            if let Some(first) = account.site(site.merged as usize) {
                self.sites[site.merged as usize] = first;
            }
            self.sites[index] = site;
        }
    }

    /// `links`: as the broker told them, and their sites' texts.
    pub fn chains_set(
        &mut self,
        account: &AccountView,
        sums: Vec<(u32, debox_chain_sum)>,
        links: Vec<debox_chain>,
    ) {
        let mut seen = vec![false; links.len() + 1];
        for (number, _) in &sums {
            let mut next = *number;
            while let Some(link) = (next as usize).checked_sub(1).and_then(|at| links.get(at)) {
                if std::mem::replace(&mut seen[next as usize], true) {
                    break;
                }
                self.site_add(account, link.site as usize);
                next = link.parent;
            }
        }
        self.chain_sums = sums;
        self.chains = links;
    }
}

impl AccountView {
    pub(crate) fn map(reply: &debox_reply, fds: Vec<OwnedFd>) -> Result<Self, String> {
        let count = fds.len();
        let mut fds = fds.into_iter();
        let mut next = || fds.next().ok_or("too few descriptors".to_owned());
        let (account, cpus) = (next()?, next()?);
        let detail_fds = match count {
            3 => None,
            9 | 10 => Some((next()?, next()?, next()?, next()?, next()?, next()?)),
            n => {
                return Err(format!(
                    "an account comes with 3, 9 or 10 descriptors, not {n}"
                ));
            }
        };
        let on_cpu = if count == 10 { Some(next()?) } else { None };
        let shared = next()?;
        let (account, cpus, shared) = (&account, &cpus, &shared);
        let cpu_count = reply.cpus as usize;
        let stride = reply.cpu_stride as usize;
        if cpu_count == 0
            || cpu_count > 8192
            || !stride.is_multiple_of(8)
            || stride < size_of::<debox_account_cpu>()
            || stride > 1 << 24
        {
            return Err(format!(
                "an account of {cpu_count} CPUs, {stride} bytes each"
            ));
        }
        let map =
            |fd, length, what| Mapping::new(fd, length).map_err(|e| format!("mapping {what}: {e}"));
        let view = Self {
            account: map(account, size_of::<debox_account>(), "the account")?,
            cpus: map(cpus, cpu_count * stride, "the counters of the CPUs")?,
            shared: map(shared, DEBOX_SHARED_SIZE, "the site table")?,
            cpu_count,
            stride,
            features: reply.features,
            details: None,
        };
        let view = match detail_fds {
            None => view,
            Some((details, events, control, chains, objects, lives)) => Self {
                details: Some(DetailsView {
                    chains: map(&chains, size_of::<debox_chain_sums>(), "the chains")?,
                    objects: map(&objects, size_of::<debox_objects>(), "the objects")?,
                    on_cpu: on_cpu
                        .as_ref()
                        .map(|fd| map(fd, size_of::<debox_on_cpu>(), "the samples"))
                        .transpose()?,
                    lives: map(&lives, size_of::<debox_lives>(), "the lives")?,
                    details: map(&details, size_of::<debox_details>(), "the details")?,
                    control: DetailControl::map(&control)
                        .map_err(|e| format!("mapping the control of details: {e}"))?,
                    events: EventRing::map(events)
                        .map_err(|e| format!("mapping the ring of events: {e}"))?,
                }),
                ..view
            },
        };
        let header = view.header();
        if header.magic != DEBOX_SHARED_MAGIC
            || header.abi_version != DEBOX_ABI_VERSION
            || header.site_entry_size as usize != size_of::<debox_site>()
            || header.alive_offset as usize > DEBOX_PAGE_SIZE - 4
            || header.alive_offset % 4 != 0
        {
            return Err(format!(
                "its shared memory is of layout version {}, this debox reads version {DEBOX_ABI_VERSION}: \
                 install the same release of both",
                header.abi_version
            ));
        }
        Ok(view)
    }

    fn header(&self) -> debox_shared {
        let mut header = debox_shared::zeroed();
        self.shared.copy_words(0, header.as_bytes_mut());
        header
    }

    /// Whether the broker is gone.
    pub fn stale(&self) -> bool {
        let offset = self.header().alive_offset as usize;
        if offset > DEBOX_PAGE_SIZE - 4 || !offset.is_multiple_of(4) {
            return true;
        }
        let word = self.shared.load_acquire(offset);
        // FUTEX_OWNER_DIED, or no owner: the broker's main thread is gone.
        word & 0x4000_0000 != 0 || word == 0
    }

    /// Sites with a text have numbers below this one.
    pub fn site_count(&self) -> usize {
        (self.header().site_count as usize).min(DEBOX_SITES_MAX)
    }

    /// The text of one site, if there is one yet.
    pub fn site(&self, index: usize) -> Option<debox_site> {
        if index >= DEBOX_SITES_MAX {
            return None;
        }
        let offset = DEBOX_PAGE_SIZE + index * size_of::<debox_site>();
        // SAFETY: the mapping holds DEBOX_SHARED_SIZE bytes, and the broker
        // writes entries only through the publish protocol.
        unsafe { debox_site::load(self.shared.pointer().add(offset).cast()) }
    }

    /// Whether every site that the account names has its text.
    pub fn sites_resolved(&self) -> bool {
        let account: Box<debox_account> = self.account.copy();
        account
            .sites
            .iter()
            .filter(|row| row.count() > 0)
            .filter_map(|row| row.key_parts())
            .all(|(_, site)| site == DEBOX_SITE_NONE || self.site(site as usize).is_some())
    }

    /// Copies a row that may be written meanwhile. Two equal copies are one
    /// state of it, not the halves of two; a row that never rests is copied as
    /// it is, and its sums may then differ by the call in between.
    pub(crate) fn row_copy(&self, offset: usize, to: &mut debox_row, copies: usize) {
        self.cpus.copy_words(offset, to.as_bytes_mut());
        for _ in 0..copies {
            // Acquire: pairs with nothing in particular, but keeps this copy
            // behind the one before.
            fence(Ordering::Acquire);
            let before = *to;
            self.cpus.copy_words(offset, to.as_bytes_mut());
            if before.as_bytes() == to.as_bytes() {
                return;
            }
        }
    }

    pub fn snapshot(&self) -> Snapshot {
        // Rows handed out while we copy are simply not in this snapshot: the
        // account is read first, and it names the rows.
        let account: Box<debox_account> = self.account.copy();
        let mut cpus = debox_account_cpu::zeroed_slice(self.cpu_count);
        let used: Vec<usize> = account
            .row_of
            .iter()
            .map(|index| *index as usize)
            .filter(|index| (1..DEBOX_ROWS_MAX).contains(index))
            .collect();
        for (cpu, counters) in cpus.iter_mut().enumerate() {
            for &row in &used {
                let offset = cpu * self.stride + row * size_of::<debox_row>();
                self.row_copy(offset, &mut counters.rows[row], ROW_COPIES);
            }
        }
        let named: Vec<usize> = account
            .sites
            .iter()
            .filter_map(|row| row.key_parts())
            .map(|(_, site)| site as usize)
            .collect();
        // What was attached at any time while we watched.
        let features = self.features | self.header().features;
        let mut snapshot = Snapshot {
            account,
            cpus,
            sites: debox_site::zeroed_slice(DEBOX_SITES_MAX),
            features,
            stale: self.stale(),
            details: self.details.as_ref().map(DetailsView::copy),
            objects: self.details.as_ref().map(DetailsView::objects),
            on_cpu: self.details.as_ref().and_then(DetailsView::on_cpu),
            kernel_functions: HashMap::new(),
            lives: self.details.as_ref().map(DetailsView::lives),
            site_stacks: Vec::new(),
            chain_sums: Vec::new(),
            chains: Vec::new(),
        };
        for index in named {
            snapshot.site_add(self, index);
        }
        snapshot
    }
}
