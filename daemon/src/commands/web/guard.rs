// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a request must be to get an answer, and what a browser is told of each answer.
//!
//! The page is on the loopback, where every page that the user has open may send requests. So the server answers only to
//! names that nobody else can own (DNS rebinding), only to its own page (`Origin`, `Sec-Fetch-Site`) and to those that are
//! no browser, and only to requests that change nothing.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{
    ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, CONTENT_SECURITY_POLICY, HOST, ORIGIN, REFERRER_POLICY,
    TRANSFER_ENCODING, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

/// Everything comes from here, text never becomes markup, and nobody shows the page as part of theirs.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
                      trusted-types 'none'";

const MARKS: [(HeaderName, &str); 7] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (X_FRAME_OPTIONS, "DENY"),
    (REFERRER_POLICY, "no-referrer"),
    (CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
];

/// Marks every answer, refusals too.
pub async fn mark(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    for (name, value) in MARKS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

pub async fn check(State(hosts): State<Arc<[String]>>, request: Request, next: Next) -> Response {
    match refusal(&request, &hosts) {
        None => next.run(request).await,
        Some((status, reason)) => {
            // What it may still send is not read.
            let mut refusal = (status, [(CONNECTION, "close")], reason).into_response();
            if status == StatusCode::METHOD_NOT_ALLOWED {
                refusal
                    .headers_mut()
                    .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            }
            refusal
        }
    }
}

/// None where it may be answered.
fn refusal(request: &Request, hosts: &[String]) -> Option<(StatusCode, &'static str)> {
    let headers = request.headers();
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        return Some((
            StatusCode::METHOD_NOT_ALLOWED,
            "only GET and HEAD are allowed: this page is read-only\n",
        ));
    }
    if has_body(headers) {
        return Some((StatusCode::PAYLOAD_TOO_LARGE, "requests with a body are refused\n"));
    }
    let Some(host) = host(request) else {
        return Some((StatusCode::BAD_REQUEST, "one Host header is needed\n"));
    };
    if !is_ours(&host, hosts) {
        let reason = "unknown host name: use the address that `giveway web` printed, or start it with --host NAME\n";
        return Some((StatusCode::MISDIRECTED_REQUEST, reason));
    }
    // Ours has none; one that somebody else has set up while this server was down would stay in between.
    if headers.contains_key("service-worker") {
        return Some((StatusCode::FORBIDDEN, "service workers are refused\n"));
    }
    if is_of_another_page(headers, &host) {
        return Some((StatusCode::FORBIDDEN, "requests from other pages are refused\n"));
    }
    None
}

fn has_body(headers: &HeaderMap) -> bool {
    let length = headers.get(CONTENT_LENGTH);
    headers.contains_key(TRANSFER_ENCODING) || length.is_some_and(|length| length != "0")
}

/// The authority that the request is for.
fn host(request: &Request) -> Option<Authority> {
    let mut named = request.headers().get_all(HOST).iter();
    let host: Authority = named.next()?.to_str().ok()?.parse().ok()?;
    let target = request.uri().authority();
    let is_one = named.next().is_none() && target.is_none_or(|target| *target == host);
    (is_one && !host.as_str().contains('@')).then_some(host)
}

/// A name that nobody else can own: an address is not looked up. `localhost` is not one: any user may serve on `::1`, which browsers
/// try first, and would then be the same origin.
fn is_ours(authority: &Authority, hosts: &[String]) -> bool {
    let name = authority.host();
    let bare = name
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .unwrap_or(name);
    let is_known = || hosts.iter().any(|host| host.eq_ignore_ascii_case(name));
    bare.parse::<IpAddr>().is_ok() || is_known()
}

/// Browsers say so. Following a link to the page is no harm: the other page learns nothing of it.
fn is_of_another_page(headers: &HeaderMap, host: &Authority) -> bool {
    let text = |name: &HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let sec_fetch = |name| text(&HeaderName::from_static(name));
    let foreign_origin = text(&ORIGIN).is_some_and(|origin| {
        let ours = origin
            .strip_prefix("http://")
            .or_else(|| origin.strip_prefix("https://"));
        ours != Some(host.as_str())
    });
    let foreign_site = sec_fetch("sec-fetch-site").is_some_and(|site| !["same-origin", "none"].contains(&site));
    let is_link = sec_fetch("sec-fetch-mode") == Some("navigate") && sec_fetch("sec-fetch-dest") == Some("document");
    foreign_origin || (foreign_site && !is_link)
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    /// The status of the refusal; None where it is answered.
    fn refused(method: &str, target: &str, headers: &[(&str, &str)]) -> Option<u16> {
        let mut request = Request::builder().method(method).uri(target);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::empty()).unwrap();
        refusal(&request, &["robot7".to_owned()]).map(|(status, _)| status.as_u16())
    }

    #[test]
    fn only_names_that_nobody_else_can_own_are_answered() {
        let ours = ["127.0.0.1", "127.0.0.1:9871", "[::1]:9871", "192.0.2.1", "robot7:80"];
        for host in ours {
            assert_eq!(refused("GET", "/state", &[("host", host)]), None, "{host}");
        }
        let others = [
            "evil.example:9871",
            "127.0.0.1.evil.example",
            "localhost:9871",
            "localhost",
        ];
        for host in others {
            assert_eq!(refused("GET", "/state", &[("host", host)]), Some(421), "{host}");
        }
        for host in ["", "a b", "user@127.0.0.1"] {
            assert_eq!(refused("GET", "/state", &[("host", host)]), Some(400), "{host}");
        }
        assert_eq!(refused("GET", "/state", &[]), Some(400));
        assert_eq!(
            refused("GET", "/", &[("host", "127.0.0.1"), ("host", "evil.example")]),
            Some(400)
        );
        assert_eq!(
            refused("GET", "http://evil.example/", &[("host", "127.0.0.1")]),
            Some(400)
        );
    }

    #[test]
    fn other_pages_get_nothing_but_may_link_here() {
        let host = ("host", "127.0.0.1:9871");
        let asked = |headers: &[(&str, &str)]| refused("GET", "/state", &[&[host], headers].concat());
        assert_eq!(asked(&[("origin", "http://127.0.0.1:9871")]), None);
        for origin in [
            "http://evil.example",
            "http://127.0.0.1:80",
            "null",
            "http://127.0.0.1:9871.evil.example",
        ] {
            assert_eq!(asked(&[("origin", origin)]), Some(403), "{origin}");
        }
        assert_eq!(asked(&[("sec-fetch-site", "same-origin")]), None);
        assert_eq!(
            asked(&[("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "no-cors")]),
            Some(403)
        );
        assert_eq!(
            asked(&[("sec-fetch-site", "same-site"), ("sec-fetch-mode", "cors")]),
            Some(403)
        );
        assert_eq!(asked(&[("service-worker", "script")]), Some(403));
        let link = [("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document")];
        assert_eq!(asked(&[&[("sec-fetch-site", "cross-site")], &link[..]].concat()), None);
        let frame = [("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "iframe")];
        assert_eq!(
            asked(&[&[("sec-fetch-site", "cross-site")], &frame[..]].concat()),
            Some(403)
        );
    }

    #[test]
    fn nothing_but_get_and_head_and_nothing_with_a_body() {
        let host = ("host", "127.0.0.1");
        for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "BREW"] {
            assert_eq!(refused(method, "/", &[host]), Some(405), "{method}");
        }
        assert_eq!(refused("HEAD", "/", &[host, ("content-length", "0")]), None);
        assert_eq!(refused("GET", "/", &[host, ("content-length", "5")]), Some(413));
        assert_eq!(
            refused("GET", "/", &[host, ("transfer-encoding", "chunked")]),
            Some(413)
        );
    }
}
