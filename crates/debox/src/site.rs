// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is known about a place in the kernel where calls block?

use crate::sys;
use debox_abi::{DEBOX_SITE_FLAG_UNLABELLED, Pod, debox_site, text_get};
use thiserror::Error;

/// The text of a site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// The short resource name: `inode-lock`, `page-io`, `pipe-read` ...
    pub label: String,
    /// The kernel function.
    pub function: String,
    /// Bytes into the function.
    pub offset: u32,
    /// The kernel's source file and line; `None` without debug information.
    pub source: Option<(String, u32)>,
    /// No rule matched: the label is the function.
    pub unlabelled: bool,
}

/// Why is there no text?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SiteError {
    /// The broker takes some milliseconds the first time a site is seen.
    #[error("the broker has not resolved this site yet; ask again in some milliseconds")]
    Pending,
    #[error("there is no site of this number")]
    Unknown,
    #[error("there is no broker that could tell; see Session::why")]
    NoBroker,
}

const EAGAIN: i32 = -11;
const ENOENT: i32 = -2;

impl Site {
    /// The text of site number `site`.
    pub fn read(site: u32) -> Result<Self, SiteError> {
        let mut raw = debox_site::zeroed();
        // SAFETY: `raw` is a whole debox_site to write to.
        match unsafe { sys::debox_site_read(site, &mut raw) } {
            0 => {}
            EAGAIN => return Err(SiteError::Pending),
            ENOENT => return Err(SiteError::Unknown),
            _ => return Err(SiteError::NoBroker),
        }
        let file = text_get(&raw.file).to_string();
        Ok(Self {
            label: text_get(&raw.label).to_string(),
            function: text_get(&raw.function).to_string(),
            offset: raw.offset,
            source: (!file.is_empty()).then_some((file, raw.line)),
            unlabelled: raw.flags & DEBOX_SITE_FLAG_UNLABELLED != 0,
        })
    }
}
