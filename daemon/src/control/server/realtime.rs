// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests that change who gets real time: a wish and who has it come in, what the thread that grants it says goes
//! out. Whether the user may have it, the engine decides.

use giveway_engine::config::{Config, RealtimeRule};
use giveway_engine::realtime::Rule;
use nix::unistd::{Uid, User};
use tokio::net::unix::UCred;

use super::super::{Launched, Request};
use super::Desks;

pub(super) async fn change(
    desks: &Desks,
    request: Request,
    peer: &UCred,
    gids: Vec<u32>,
) -> Result<Option<Launched>, String> {
    let uid = peer.uid();
    match request {
        Request::RealtimeAdd { rule } => {
            let rule = checked(desks, *rule, uid)?;
            desks.realtime.add(rule, uid, gids).await.map(|()| None)
        }
        Request::RealtimeRemove { name } => desks.realtime.remove(name, uid).await.map(|()| None),
        Request::Launch { policy, priority, cpus } => {
            let wish = RealtimeRule {
                user: Some(uid.to_string()),
                policy,
                priority,
                cpus,
                ..RealtimeRule::default()
            };
            let rule = checked(desks, wish, uid)?;
            let pid = peer.pid().and_then(|pid| u32::try_from(pid).ok());
            let pid = pid.ok_or("who asks is not visible in this pid namespace")?;
            desks.realtime.launch(pid, rule.schedule, uid, gids).await?;
            Ok(Some(Launched {
                rttime_ms: desks.limits.rttime_ms,
            }))
        }
        _ => Err("not about real time".to_owned()),
    }
}

/// As strict as with a rule of the configuration, and nothing that would write elsewhere on a terminal.
fn checked(desks: &Desks, wish: RealtimeRule, uid: u32) -> Result<Rule, String> {
    let texts = [
        &wish.name,
        &wish.exe,
        &wish.cmdline,
        &wish.user,
        &wish.unit,
        &wish.cgroup,
    ];
    if texts
        .iter()
        .filter_map(|text| text.as_ref())
        .any(|text| text.chars().any(char::is_control))
    {
        return Err("a rule has no control characters".to_owned());
    }
    let name = wish.name.clone().or_else(|| wish.exe.clone());
    let name = name.unwrap_or_else(|| {
        format!(
            "processes of uid {}",
            wish.user.clone().unwrap_or_else(|| uid.to_string())
        )
    });
    let user = match &wish.user {
        Some(user) => Some(uid_of(user).ok_or_else(|| format!("there is no user `{user}` on this machine"))?),
        None => None,
    };
    let config = Config {
        realtime: vec![wish],
        realtime_limits: (*desks.limits).clone(),
        ..Config::default()
    };
    let checked = config
        .check_ranges()
        .and_then(|()| Rule::from_config(name, &config.realtime[0], user));
    checked.map_err(|error| error.to_string())
}

/// The number of a user's name, or the number itself.
pub fn uid_of(name: &str) -> Option<u32> {
    let named = || User::from_name(name).ok().flatten().map(|user| user.uid);
    name.parse().ok().map(Uid::from_raw).or_else(named).map(Uid::as_raw)
}
