// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway web`: one page and /metrics over HTTP, on the loopback. A client of the control socket like any other: it needs
//! to be a reader, and nothing else. It asks the daemon only while somebody looks, once for all who do.
//!
//! Whoever connects is hostile: who they are is asked of the kernel (`connections`), what they ask is checked before it is
//! answered (`guard`), and nothing that they ask changes anything.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use axum::Router;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::IntoResponse;
use axum::routing::get;
use clap::Args;
use nix::unistd::{Uid, User};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::exit::Usage;
use crate::place::Place;

mod connections;
mod feed;
mod guard;
mod history;
mod metrics;
mod queue;
mod snapshot;
mod traffic;

#[cfg(test)]
pub use metrics::tests::page as metrics_page;

use connections::AccessPolicy;
use feed::Feed;

/// The files of the page, each with its type. The first is the page itself.
const FILES: [(&str, &str, &str); 4] = [
    ("/", "text/html; charset=utf-8", include_str!("web/page.html")),
    ("/page.css", "text/css; charset=utf-8", include_str!("web/page.css")),
    (
        "/page.js",
        "text/javascript; charset=utf-8",
        include_str!("web/page.js"),
    ),
    ("/icon.svg", "image/svg+xml", include_str!("web/icon.svg")),
];
const JSON: &str = "application/json";

#[derive(Args)]
pub struct WebArgs {
    /// Where to serve
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9871")]
    pub listen: SocketAddr,
    /// Serve this user too, as `prometheus`; else only you and root are
    #[arg(long = "allow", value_name = "USER")]
    pub allowed: Vec<String>,
    /// Serve whoever connects, other machines included if --listen lets them: they see every user's connections
    #[arg(long, conflicts_with = "allowed")]
    pub anyone: bool,
    /// Be known by this name too; else only by addresses
    #[arg(long = "host", value_name = "NAME")]
    pub hosts: Vec<String>,
}

pub fn run(args: &WebArgs) -> Result<()> {
    let admission = admission(args)?;
    check_hosts(args)?;
    let feed = Feed::start(Place::here()?)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("cannot start the server")?;
    runtime.block_on(serve(args, feed, admission))
}

/// Who is served.
fn admission(args: &WebArgs) -> Result<AccessPolicy> {
    if args.anyone {
        return Ok(AccessPolicy::Anyone);
    }
    if !args.listen.ip().to_canonical().is_loopback() {
        let usage = format!(
            "{} is reachable from other machines, which would see every user's connections: add --anyone to \
             allow that, or use `ssh -L` to the loopback",
            args.listen
        );
        return Err(Usage(usage).into());
    }
    let mut users = vec![Uid::effective().as_raw(), 0];
    for name in &args.allowed {
        users.push(uid_of(name).ok_or_else(|| Usage(format!("--allow {name}: no such user")))?);
    }
    Ok(AccessPolicy::Users(users))
}

fn uid_of(name: &str) -> Option<u32> {
    let by_name = || User::from_name(name).ok()?.map(|user| user.uid.as_raw());
    name.parse().ok().or_else(by_name)
}

/// Any user may serve on `::1`, which browsers try first for it, and would be the same origin.
fn check_hosts(args: &WebArgs) -> Result<(), Usage> {
    let is_local = |name: &String| name.eq_ignore_ascii_case("localhost");
    if !args.hosts.iter().any(is_local) {
        return Ok(());
    }
    Err(Usage(format!(
        "--host localhost is refused: another user may serve that name on ::1; open http://{}/ instead",
        args.listen
    )))
}

async fn serve(args: &WebArgs, feed: Feed, admission: AccessPolicy) -> Result<()> {
    let listener = TcpListener::bind(args.listen).await.with_context(|| {
        format!(
            "cannot serve on {}: choose another address or port with --listen",
            args.listen
        )
    })?;
    let at = listener.local_addr()?;
    announce(at, &admission);
    if let Some(problem) = &feed.latest().await.problem {
        tracing::warn!("nothing to show yet: {problem}");
    }
    let mut ends = [signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?];
    let [interrupt, terminate] = &mut ends;
    tokio::select! {
        done = connections::serve(listener, router(feed, &args.hosts), admission) => done,
        _ = interrupt.recv() => Ok(()),
        _ = terminate.recv() => Ok(()),
    }
}

fn announce(at: SocketAddr, admission: &AccessPolicy) {
    tracing::info!("page: http://{at}/  Prometheus: http://{at}/metrics");
    if let AccessPolicy::Anyone = admission {
        let who = match at.ip().is_loopback() {
            true => "every user of this machine",
            false => "every machine that reaches this address",
        };
        tracing::warn!("warning: {who} can see every user's connections there, unencrypted (--anyone)");
    }
}

fn router(feed: Feed, hosts: &[String]) -> Router {
    let mut router = Router::new();
    for (path, kind, text) in FILES {
        router = router.route(path, get(async move || ([(CONTENT_TYPE, kind)], text)));
    }
    let hosts: Arc<[String]> = hosts.iter().map(|name| name.to_ascii_lowercase()).collect();
    router
        .route("/state", get(state))
        .route("/history", get(history))
        .route("/metrics", get(figures))
        .with_state(feed)
        .fallback(async || (StatusCode::NOT_FOUND, "nothing is here\n"))
        .method_not_allowed_fallback(async || StatusCode::METHOD_NOT_ALLOWED)
        .layer(from_fn_with_state(hosts, guard::check))
        .layer(from_fn(guard::mark))
}

/// What the page shows now.
async fn state(State(feed): State<Feed>) -> impl IntoResponse {
    ([(CONTENT_TYPE, JSON)], feed.latest().await.state.clone())
}

/// What it shows over time.
async fn history(State(feed): State<Feed>) -> impl IntoResponse {
    ([(CONTENT_TYPE, JSON)], feed.history())
}

async fn figures(State(feed): State<Feed>, headers: HeaderMap) -> impl IntoResponse {
    let (kind, text) = metrics::exposition(&feed.latest().await.points, &headers);
    ([(CONTENT_TYPE, kind)], text)
}
