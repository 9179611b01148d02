// SPDX-License-Identifier: MIT OR Apache-2.0
//! What do the names of `debox kern --list` stand for, and how would it be attached?

use std::io;

use serde::Serialize;

use crate::args::Metric;
use crate::code::Code;
use crate::document::kernel_release;
use crate::engine::Resource;
use crate::error::Error;
use crate::functions::Function;
use crate::resource::Written;
use crate::session::Session;
use crate::text::table_words;

const SCHEMA: &str = "debox.kern.list";
/// Grows when a field changes its meaning; new fields may appear anyhow.
const SCHEMA_VERSION: u32 = 1;

#[derive(Serialize)]
pub struct Document {
    schema: &'static str,
    schema_version: u32,
    debox_version: &'static str,
    kernel: String,
    resources: Vec<Named>,
}

/// What one argument names.
#[derive(Serialize)]
struct Named {
    written: String,
    resources: Vec<Listed>,
    /// What attaching to them takes; None: nothing can be.
    cost: Option<String>,
    /// Of a single function.
    callees: Option<Callees>,
}

#[derive(Serialize)]
struct Listed {
    name: String,
    kind: &'static str,
    module: Option<String>,
    address: Option<String>,
    way: Option<&'static str>,
    /// Why there is no way.
    refused: Option<String>,
}

#[derive(Serialize)]
struct Callees {
    function: String,
    /// None: they are not known.
    calls: Option<Vec<Call>>,
    missing: Option<String>,
}

#[derive(Serialize)]
struct Call {
    instruction: String,
    callee: String,
}

/// With whether anything of it could be attached to.
pub fn document(
    session: &Session,
    written: &[String],
    metric: Metric,
) -> Result<(Document, bool), Error> {
    let code = Code::open();
    let mut usable = false;
    let mut resources = Vec::new();
    for written in written {
        let found = Written::parse(written)
            .and_then(|w| w.resolve(&session.functions))
            .map_err(Error::Usage)?;
        let cost = session.cost(&found, metric != Metric::Calls);
        usable |= cost.functions > 0;
        let callees = match found.as_slice() {
            [Resource::Function(function) | Resource::Instruction { function, .. }] => {
                Some(callees(session, function, &code))
            }
            _ => None,
        };
        resources.push(Named {
            written: written.clone(),
            resources: listed(session, &found),
            cost: (cost.functions > 0).then(|| cost.text()),
            callees,
        });
    }
    let document = Document {
        schema: SCHEMA,
        schema_version: SCHEMA_VERSION,
        debox_version: env!("CARGO_PKG_VERSION"),
        kernel: kernel_release(),
        resources,
    };
    Ok((document, usable))
}

fn listed(session: &Session, found: &[Resource]) -> Vec<Listed> {
    let functions: Vec<&Function> = found
        .iter()
        .filter_map(|resource| match resource {
            Resource::Function(function) => Some(function),
            _ => None,
        })
        .collect();
    let mut plan = session.engine.plan(&functions).into_iter();
    found
        .iter()
        .map(|resource| {
            let (way, address) = match resource {
                Resource::Function(function) => (
                    plan.next().unwrap_or(Err(String::new())).map(|w| w.name()),
                    Some(function.address),
                ),
                Resource::Instruction { function, offset } => {
                    (Ok("kprobe"), Some(function.address + offset))
                }
                Resource::Call { .. } => (Ok("call tracepoint"), None),
            };
            Listed {
                name: resource.name(),
                kind: resource.kind(),
                module: resource.module().map(str::to_owned),
                address: address.map(|address| format!("{address:#x}")),
                way: way.as_ref().ok().copied(),
                refused: way.err(),
            }
        })
        .collect()
}

fn callees(session: &Session, function: &Function, code: &io::Result<Code>) -> Callees {
    let place = |offset: u64| match function.address.wrapping_add(offset) {
        _ if offset < function.len => format!("{}+{offset:#x}", function.name),
        // The cold part lies before or behind the function.
        address => session
            .functions
            .around(address)
            .map_or("?".into(), |(f, offset)| format!("{}+{offset:#x}", f.name)),
    };
    let calls = match code {
        Ok(code) => code
            .callees(&session.functions, function)
            .map_err(|error| format!("its code cannot be read: {error}")),
        Err(error) => Err(format!(
            "whom it calls is not known: /proc/kcore cannot be read: {error}"
        )),
    };
    let missing = calls.as_ref().err().cloned();
    let calls = calls.ok().map(|found| {
        let calls = found.calls.into_iter();
        calls
            .map(|(offset, callee)| Call {
                instruction: place(offset),
                callee,
            })
            .collect()
    });
    Callees {
        function: function.name.clone(),
        calls,
        missing,
    }
}

pub fn text(document: &Document) -> String {
    let mut text = String::new();
    for named in &document.resources {
        let rows = named.resources.iter().map(|listed| {
            let way = listed.way.or(listed.refused.as_deref());
            vec![
                listed.name.clone(),
                listed.address.clone().unwrap_or_else(|| "-".into()),
                way.unwrap_or_default().to_owned(),
            ]
        });
        text += &table_words(&["RESOURCE", "ADDRESS", "ATTACHED BY"], rows.collect());
        if let Some(cost) = &named.cost {
            text += &format!("{}: {cost}\n", named.written);
        }
        let Some(callees) = &named.callees else {
            continue;
        };
        if let Some(missing) = &callees.missing {
            text += &format!("{missing}\n");
        }
        match callees.calls.as_deref() {
            None => {}
            Some([]) => text += &format!("{} calls nobody\n", callees.function),
            Some(calls) => {
                let rows = calls
                    .iter()
                    .map(|call| vec![call.instruction.clone(), call.callee.clone()]);
                text += &table_words(&["INSTRUCTION", "CALLS"], rows.collect());
            }
        }
    }
    text
}
