// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway lbe`: asks the daemon to treat flows as background, by their remote address, remote port and local port.

use std::net::SocketAddr;

use anyhow::Result;
use giveway_engine::network::queue::BackgroundFlow;

use crate::cli::{LbeCommand, LbeFlow};
use crate::commands::{print, print_json};
use crate::control::{Background, Request, client};
use crate::place::Place;
use crate::say::{note, print_line};

pub fn run(command: &LbeCommand) -> Result<()> {
    let request = match command {
        LbeCommand::Add(flow) => Request::LbeAdd { flow: flow.into() },
        LbeCommand::Remove(flow) => Request::LbeRemove { flow: flow.into() },
        LbeCommand::List(_) => Request::LbeList,
    };
    let known: Background = client::ask(&Place::here()?, request)?.first()?;
    match command {
        LbeCommand::List(output) if output.json => print_json(&known)?,
        LbeCommand::List(_) if known.flows.is_empty() => print("no flow is background; `giveway lbe add` names one\n")?,
        LbeCommand::List(_) => print(&known.flows.iter().map(|flow| shown(flow) + "\n").collect::<String>())?,
        LbeCommand::Add(flow) => print_line(format_args!("{} is background from now on", shown(&flow.into())))?,
        LbeCommand::Remove(flow) if known.changed => {
            print_line(format_args!("{} is background no longer", shown(&flow.into())))?;
        }
        LbeCommand::Remove(flow) => print_line(format_args!("{} was not background", shown(&flow.into())))?,
    }
    if !known.in_force && !known.flows.is_empty() {
        note("no queue is in force now, so background flows have no effect; `giveway status` says why");
    }
    Ok(())
}

impl From<&LbeFlow> for BackgroundFlow {
    fn from(typed: &LbeFlow) -> Self {
        Self {
            address: typed.address,
            port: typed.port,
            local_port: typed.local_port,
        }
    }
}

fn shown(flow: &BackgroundFlow) -> String {
    let remote = SocketAddr::new(flow.address, flow.port);
    match flow.local_port {
        Some(port) => format!("{remote} from port {port}"),
        None => remote.to_string(),
    }
}
