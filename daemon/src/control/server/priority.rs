// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests that change which processes get real-time priority: takes the rule that a user asks for, checks it as the
//! configuration is checked, and returns the real-time thread's answer. Whether the user may have it, the engine decides.

use giveway_engine::config::{Conditions, Config, PrioritySection};
use giveway_engine::priority::PriorityRule;
use tokio::net::unix::UCred;

use super::super::{LaunchTerms, PriorityChange};
use super::Handlers;
use crate::kernel::uid_of;

pub(super) async fn add(
    handlers: &Handlers,
    rule: PrioritySection,
    uid: u32,
    gids: Vec<u32>,
) -> Result<PriorityChange, String> {
    handlers.realtime.may_ask(uid, &gids)?;
    let rule = checked(handlers, rule, uid).await?;
    let name = rule.name.clone();
    handlers.realtime.add(rule, uid, gids).await?;
    Ok(PriorityChange { name })
}

pub(super) async fn remove(
    handlers: &Handlers,
    name: String,
    uid: u32,
    gids: &[u32],
) -> Result<PriorityChange, String> {
    handlers.realtime.may_ask(uid, gids)?;
    handlers.realtime.remove(name.clone(), uid).await?;
    Ok(PriorityChange { name })
}

/// For the asking process itself.
pub(super) async fn launch(
    handlers: &Handlers,
    schedule: PrioritySection,
    peer: &UCred,
    gids: Vec<u32>,
) -> Result<LaunchTerms, String> {
    let uid = peer.uid();
    handlers.realtime.may_ask(uid, &gids)?;
    let rule = PrioritySection {
        conditions: Conditions {
            user: Some(uid.to_string()),
            ..Conditions::default()
        },
        ..schedule
    };
    let rule = checked(handlers, rule, uid).await?;
    let pid = peer.pid().and_then(|pid| u32::try_from(pid).ok());
    let pid = pid.ok_or("the asking process is not visible in this pid namespace")?;
    handlers.realtime.launch(pid, rule.schedule, uid, gids).await?;
    Ok(LaunchTerms {
        rttime_ms: handlers.limits.rttime_ms,
    })
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
