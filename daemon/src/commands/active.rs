// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway active`: says what is active, or shows it. The cgroup is found here and named by its id, so that the daemon has
//! no path to look up: what the kernel knows of the id decides.

use anyhow::{Context as _, Result};
use clap::Args;
use nix::unistd::getuid;

use crate::commands::args::Json;
use crate::commands::{print, print_json};
use crate::control::{ActiveFor, ActiveNow, Request, client};
use crate::kernel::cgroup::CgroupRoot;
use crate::place::Place;

#[derive(Args)]
pub struct ActiveArgs {
    /// A path in cgroup v2, as /user.slice/user-1000.slice/session-2.scope, or a systemd unit that runs; users name their own.
    /// It takes the place of what you named before
    #[arg(value_name = "CGROUP|UNIT")]
    pub subject: Option<String>,
    /// Take back what you named
    #[arg(long, conflicts_with = "subject")]
    pub none: bool,
    /// For so long, and no longer than the cgroup and the daemon last
    #[arg(long = "for", value_name = "SECONDS", requires = "subject", value_parser = clap::value_parser!(u32).range(1..))]
    pub for_s: Option<u32>,
    #[command(flatten)]
    pub output: Json,
}

pub fn run(args: &ActiveArgs) -> Result<()> {
    let request = match &args.subject {
        Some(subject) => Request::Active {
            cgroup: id_of(subject)?,
            for_s: args.for_s,
        },
        None if args.none => Request::ActiveNone,
        None => Request::ActiveList,
    };
    let now: ActiveNow = client::ask(&Place::here()?, request)?.first()?;
    if args.output.json {
        return print_json(&now);
    }
    if now.active.is_empty() {
        return print(
            "nothing is active, so that bulk is bulk everywhere; `giveway active CGROUP|UNIT` says what is\n",
        );
    }
    print(&now.active.iter().map(line).collect::<String>())
}

fn line(ActiveFor { activity, left_s }: &ActiveFor) -> String {
    let left = left_s.map(|left_s| format!(", for {left_s} s more"));
    format!("{}{}\n", activity.shown(), left.unwrap_or_default())
}

/// Of a cgroup by its path, or of a unit that runs.
pub fn id_of(subject: &str) -> Result<u64> {
    let root = CgroupRoot::open()?;
    let path = match subject.strip_prefix('/') {
        Some(path) => path.to_owned(),
        None => unit(&root, subject)
            .with_context(|| format!("there is no running unit `{subject}`; a path of a cgroup begins with /"))?,
    };
    let id = root.id_of(&path);
    id.with_context(|| format!("cannot find the cgroup `/{path}`"))
}

/// The path of the system's own unit of this name, or else of the user's.
fn unit(root: &CgroupRoot, name: &str) -> Option<String> {
    let uid = getuid();
    let own = format!("user.slice/user-{uid}.slice/user@{uid}.service");
    root.find_in_slices("", name)
        .or_else(|| root.find_in_slices(&own, name))
}
