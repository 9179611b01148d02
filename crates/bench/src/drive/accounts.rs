// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which account does DeBox give of each case?

use super::plan::account_ms;
use super::{All, Runner};
use crate::args::OsArgs;
use crate::os::Suite;
use crate::output::progress;
use crate::worker::Order;
use crate::{Error, tidy};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A broker for the accounts: the one that is named, else a private one.
enum Broker {
    Named(PathBuf),
    Private(debox_broker::Private),
}

impl Broker {
    fn open(named: Option<PathBuf>) -> Result<Self, Error> {
        let named = named.or_else(|| {
            std::env::var_os("DEBOX_SOCKET")
                .filter(|v| !v.is_empty())
                .map(PathBuf::from)
        });
        if let Some(path) = named {
            return Ok(Self::Named(path));
        }
        match debox_broker::Private::start(debox_broker::PrivateOptions::default()) {
            Ok(private) => Ok(Self::Private(private)),
            Err(error) => {
                let usual = Path::new(debox::abi::DEBOX_SOCKET_PATH);
                if usual.exists() {
                    Ok(Self::Named(usual.to_owned()))
                } else {
                    Err(Error::Unavailable(format!(
                        "{error}; and no deboxd listens at {}",
                        usual.display()
                    )))
                }
            }
        }
    }

    fn socket(&self) -> &Path {
        match self {
            Self::Named(path) => path,
            Self::Private(private) => private.socket_path(),
        }
    }
}

pub(super) fn accounts(
    args: &OsArgs,
    runner: &Runner,
    suites: &[Suite],
    gathered: &mut All,
    notes: &mut Vec<String>,
) -> Result<(), Error> {
    progress(args.output.quiet, "loading DeBox for the accounts");
    let broker = match Broker::open(args.socket.clone()) {
        Ok(broker) => broker,
        Err(error) => {
            notes.push(format!("no accounts by DeBox: {error}"));
            return Ok(());
        }
    };
    let mut refused = BTreeSet::new();
    let mut missing: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for &suite in suites {
        progress(args.output.quiet, &format!("accounts by DeBox: {suite:?}"));
        let order = Order {
            suite,
            account: Some(broker.socket().to_owned()),
            account_ms: account_ms(suite, args.output.quick),
            ..runner.order.clone()
        };
        match runner.ask(&order) {
            Ok(mut answer) => {
                // Its passes were watched: they prove nothing about the others.
                answer.cold = None;
                if let Some(g) = gathered.get_mut(&suite) {
                    for row in answer.rows {
                        if let Some(account) = row.account {
                            g.accounts.insert(row.id, account);
                        } else if let Some(why) = row.missing
                            // What could not be measured is told elsewhere.
                            && g.invocations.contains_key(&row.id)
                        {
                            missing.entry(why).or_default().push(row.id);
                        }
                    }
                }
            }
            Err(Error::Unavailable(text)) => {
                refused.insert(text);
            }
            Err(other) => return Err(other),
        }
        tidy::go_on()?;
    }
    for text in refused {
        notes.push(format!("no accounts by DeBox: {text}"));
    }
    for (why, ids) in missing {
        notes.push(format!(
            "no account by DeBox of {}{}: {why}",
            ids[..ids.len().min(4)].join(", "),
            match ids.len() {
                0..=4 => String::new(),
                n => format!(" and {} more", n - 4),
            }
        ));
    }
    Ok(())
}
