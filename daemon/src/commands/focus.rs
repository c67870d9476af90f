// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway focus`: sets, clears or shows what is in use now. The cgroup is found here and named by its id, so that the
//! daemon has no path to look up: what the kernel knows of the id decides.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::{Args, Subcommand};
use nix::unistd::getuid;

use crate::commands::args::{ASKS, Json, REMOVES, after, duration};
use crate::commands::print_output;
use crate::control::{FocusNow, FocusView, Request, client};
use crate::kernel::cgroup::CgroupRoot;
use crate::place::Place;

const LEAST: Duration = Duration::from_secs(1);
const MOST: Duration = Duration::from_secs(30 * 86_400);

#[derive(Subcommand)]
pub enum FocusCommand {
    /// Name what you use now, in place of what you named before
    #[command(after_help = after(ASKS, &["giveway focus set teleop.service", "giveway focus set teleop.service --for 1h"]))]
    Set(FocusArgs),
    /// Clear the focus that you have set
    #[command(after_help = after(REMOVES, &["giveway focus clear"]))]
    Clear(Json),
    /// Show what is in focus, and by whose word
    #[command(after_help = after(ASKS, &["giveway focus show"]))]
    Show(Json),
}

#[derive(Args)]
pub struct FocusArgs {
    /// A path in cgroup v2, as /user.slice/user-1000.slice/session-2.scope, or a systemd unit that runs; users name their own
    #[arg(value_name = "CGROUP|UNIT")]
    pub subject: String,
    /// For so long (30s, 1h), and no longer than the cgroup and the daemon last
    #[arg(long = "for", value_name = "TIME", value_parser = duration("s", LEAST..=MOST))]
    pub time: Option<Duration>,
    #[command(flatten)]
    pub output: Json,
}

pub fn run(command: &FocusCommand) -> Result<()> {
    let (request, output) = match command {
        FocusCommand::Set(args) => {
            let request = Request::Focus {
                cgroup: id_of(&args.subject)?,
                for_s: args.time.map(|time| time.as_secs_f64().ceil() as u32),
            };
            (request, &args.output)
        }
        FocusCommand::Clear(output) => (Request::FocusClear, output),
        FocusCommand::Show(output) => (Request::FocusShow, output),
    };
    let now: FocusNow = client::ask(&Place::here()?, request)?.first()?;
    print_output(output.json, &now, || shown(&now))?;
    let is_clear = matches!(command, FocusCommand::Clear(_));
    ensure!(!is_clear || now.changed, "you have set no focus");
    Ok(())
}

fn shown(now: &FocusNow) -> String {
    if now.focus.is_empty() {
        return "no focus is set, so bulk traffic is not demoted; `giveway focus set CGROUP|UNIT` sets it\n".to_owned();
    }
    now.focus.iter().map(line).collect()
}

fn line(FocusView { activity, left_s }: &FocusView) -> String {
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
