// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests that change which processes get real-time priority: takes the rule that a user asks for, checks it as the
//! configuration is checked, and returns the real-time thread's answer. Whether the user may have it, the engine decides.

use giveway_engine::config::{Conditions, Config, PrioritySection};
use giveway_engine::priority::PriorityRule;
use tokio::net::unix::UCred;

use super::super::{LaunchTerms, Request};
use super::Handlers;
use crate::kernel::uid_of;

pub(super) async fn change(
    handlers: &Handlers,
    request: Request,
    peer: &UCred,
    gids: Vec<u32>,
) -> Result<Option<LaunchTerms>, String> {
    let uid = peer.uid();
    handlers.realtime.may_ask(uid, &gids)?;
    match request {
        Request::RealtimeAdd { rule } => {
            let rule = checked(handlers, *rule, uid).await?;
            handlers.realtime.add(rule, uid, gids).await.map(|()| None)
        }
        Request::RealtimeRemove { name } => handlers.realtime.remove(name, uid).await.map(|()| None),
        Request::Launch { policy, priority, cpus } => {
            let rule = PrioritySection {
                conditions: Conditions {
                    user: Some(uid.to_string()),
                    ..Conditions::default()
                },
                policy,
                priority,
                cpus,
                ..PrioritySection::default()
            };
            let rule = checked(handlers, rule, uid).await?;
            let pid = peer.pid().and_then(|pid| u32::try_from(pid).ok());
            let pid = pid.ok_or("the asking process is not visible in this pid namespace")?;
            handlers.realtime.launch(pid, rule.schedule, uid, gids).await?;
            Ok(Some(LaunchTerms {
                rttime_ms: handlers.limits.rttime_ms,
            }))
        }
        _ => Err("not about real time".to_owned()),
    }
}

/// The rule that a user asks for, checked as strictly as one of the configuration.
async fn checked(handlers: &Handlers, rule: PrioritySection, uid: u32) -> Result<PriorityRule, String> {
    let config = Config {
        priority: vec![rule],
        priority_limits: (*handlers.limits).clone(),
        ..Config::default()
    };
    config.check().map_err(|error| error.to_string())?;
    let rule = &config.priority[0];
    let (exe, user) = (&rule.conditions.exe, &rule.conditions.user);
    let name = rule.name.clone().or_else(|| exe.clone()).unwrap_or_else(|| {
        let user = user.clone().unwrap_or_else(|| uid.to_string());
        format!("processes of uid {user}")
    });
    let user = match user.clone() {
        Some(user) => Some(number_of(user).await?),
        None => None,
    };
    PriorityRule::from_config(name, rule, user).map_err(|error| error.to_string())
}

/// It may have to be asked of a server, which nobody else must wait for.
async fn number_of(user: String) -> Result<u32, String> {
    let unknown = format!("there is no user `{user}` on this machine");
    let found = tokio::task::spawn_blocking(move || uid_of(&user)).await;
    found.ok().flatten().ok_or(unknown)
}
