// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does one invocation of a suite do?
//!
//! A process of its own, with one thread pinned to one CPU: nothing of what
//! the command itself does (broker, reports) is in its memory or on its
//! descriptors. It is told what to do by one JSON argument and answers with
//! one JSON line.

use crate::Error;
use crate::account::{Account, Accountant};
use crate::clock::{Choice, Clock};
use crate::os::reads::{Cold, cold_proof};
use crate::os::{Ctx, Suite, clocks, groups};
use crate::sampling::{Plan, batch_size, measure, pin};
use crate::stat::Invocation;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::{Duration, Instant};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    pub suite: Suite,
    pub cpu: usize,
    pub other_cpu: Option<usize>,
    pub quick: bool,
    pub budget_ms: u64,
    pub target: f64,
    /// Number of this invocation: where the rotation begins.
    pub first: usize,
    /// Not known yet for the clocks themselves.
    pub clock: Option<Choice>,
    pub file: Option<i32>,
    pub file_bytes: u64,
    /// Instead of measuring: DeBox's account, through this broker.
    pub account: Option<PathBuf>,
    /// No account is begun after that.
    pub account_ms: u64,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Answer {
    pub survey: Option<clocks::Survey>,
    pub rows: Vec<AnswerRow>,
    pub cold: Option<Cold>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AnswerRow {
    pub id: String,
    pub invocation: Option<Invocation>,
    pub account: Option<Account>,
    /// Why there is no invocation, or no account where that was asked for.
    pub missing: Option<String>,
}

/// Does what it is told in this process.
///
/// # Errors
/// What concerns the whole suite; a case's own failure is in its row.
pub fn work(order: &Order) -> Result<Answer, Error> {
    if order.suite == Suite::Clocks {
        let survey = clocks::survey(order.cpu, order.other_cpu, order.quick)?;
        return Ok(Answer {
            survey: Some(survey),
            ..Answer::default()
        });
    }
    let choice = order
        .clock
        .as_ref()
        .ok_or_else(|| Error::Usage("a suite other than clocks needs the clock's choice".into()))?;
    let ctx = Ctx {
        clock: Clock::new(choice),
        cpu: order.cpu,
        other_cpu: order.other_cpu,
        quick: order.quick,
        file: order.file,
        file_bytes: order.file_bytes,
    };
    pin(order.cpu)?;
    let accountant = order
        .account
        .as_deref()
        .map(|socket| Accountant::open(socket, &ctx.clock))
        .transpose()?;
    let accounts_end = Instant::now() + Duration::from_millis(order.account_ms);
    let mut answer = Answer::default();
    for make in groups(order.suite, &ctx) {
        let mut group = make(&ctx)?;
        let plan = Plan {
            budget: Duration::from_micros((order.budget_ms as f64 * 1e3 * group.share) as u64),
            target: order.target,
            batch: Duration::from_micros(if order.quick { 100 } else { 250 }),
            first: order.first,
            turn: if order.quick { 3 } else { 5 },
            turns_min: if order.quick { 1 } else { 2 },
        };
        match &accountant {
            None => {
                let found = measure(&mut group.cases, &plan);
                for (case, result) in group.cases.iter().zip(found) {
                    let (invocation, missing) = match result {
                        Ok(i) => (Some(i), None),
                        Err(e) => (None, Some(e.to_string())),
                    };
                    answer.rows.push(AnswerRow {
                        id: case.id.clone(),
                        invocation,
                        account: None,
                        missing,
                    });
                }
            }
            Some(accountant) => {
                for case in &mut group.cases {
                    let account = if Instant::now() < accounts_end {
                        let prepared = case.before.as_mut().map_or(Ok(()), |before| before());
                        prepared
                            .and_then(|()| batch_size(case, &plan))
                            .and_then(|batch| {
                                let mean = (case.batch)(batch)? / batch as f64;
                                accountant.account(case, batch, mean)
                            })
                    } else {
                        Err(Error::Unavailable(format!(
                            "the time for accounts was over ({} ms)",
                            order.account_ms
                        )))
                    };
                    let (account, missing) = match account {
                        Ok(account) => (Some(account), None),
                        Err(e) => (None, Some(e.to_string())),
                    };
                    answer.rows.push(AnswerRow {
                        id: case.id.clone(),
                        invocation: None,
                        account,
                        missing,
                    });
                }
            }
        }
    }
    answer.cold = cold_proof();
    if let Some(accountant) = accountant {
        accountant.close();
    }
    Ok(answer)
}
