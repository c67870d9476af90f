// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway web`: what it shows, to whom, and that whoever connects takes no more of it, and of the daemon, than their part.
//! Each test has a loopback of its own.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use giveway::kernel::own_netns;
use nix::fcntl::{Flock, FlockArg};
use serde_json::Value;
use socket2::{Domain, Protocol, Socket, Type};

use super::limits::as_user;
use crate::support::lab::{FAR_V4, Lab, NEAR_V6, run, visit};
use crate::support::process::{Daemon, KillOnDrop, program};
use crate::support::scratch::{NOBODY, Scratch};
use crate::support::wait::{PATIENCE, await_some, until};

const AT: &str = "127.0.0.1:9871";

/// A running `giveway web`.
pub(super) struct Web {
    _process: KillOnDrop,
}

impl Web {
    pub(super) fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(program());
        command.arg("web").args(arguments).stderr(Stdio::null());
        let web = Self {
            _process: KillOnDrop::spawn(&mut command),
        };
        until("it serves", || TcpStream::connect(AT).is_ok());
        web
    }
}

pub(super) struct Answer {
    status: u16,
    head: String,
    pub(super) body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

fn connect() -> TcpStream {
    let stream = TcpStream::connect(AT).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// Sends this, and reads to the end. None where there was no answer.
fn talk(request: &str) -> Option<Answer> {
    let mut stream = connect();
    // It may be refused before it is read.
    let _ = stream.write_all(request.as_bytes());
    let mut all = Vec::new();
    let _ = stream.read_to_end(&mut all);
    let all = String::from_utf8_lossy(&all).into_owned();
    let (head, body) = all.split_once("\r\n\r\n")?;
    Some(Answer {
        status: head.split(' ').nth(1)?.parse().ok()?,
        head: head.to_ascii_lowercase(),
        body: body.to_owned(),
    })
}

fn request(method: &str, path: &str, headers: &str) -> Answer {
    talk(&format!(
        "{method} {path} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n"
    ))
    .unwrap()
}

pub(super) fn get(path: &str) -> Answer {
    request("GET", path, &format!("Host: {AT}\r\n"))
}

#[test]
fn it_shows_who_sends_and_why_and_no_name_becomes_markup() {
    let lab = Lab::enter();
    let _daemon = Daemon::start(&["--interface", "gwv"]);
    let _web = Web::start(&[]);
    let bash = Scratch::copy_of("/bin/bash", "<h1>pwned");
    let script = format!(
        "exec 3<>/dev/tcp/{FAR_V4}/{}; while echo x >&3; do sleep 0.1 3>&-; done",
        lab.reader()
    );
    let mut command = Command::new(&bash.0);
    let _talker = KillOnDrop::spawn(command.args(["-c", &script]).stderr(Stdio::null()));
    let answer = await_some("the talker is shown", || {
        let answer = get("/state");
        let shown = answer.json()["flows"].to_string().contains("<h1>pwned");
        shown.then_some(answer)
    });
    assert!(
        answer.head.contains("content-type: application/json"),
        "{}",
        answer.head
    );
    assert!(
        answer.head.contains("x-content-type-options: nosniff"),
        "{}",
        answer.head
    );
    let state = answer.json();
    assert_eq!(state["flows"][0]["class"], "standard");
    assert!(
        state["flows"][0]["reason"]
            .as_str()
            .unwrap()
            .contains("no rule matches"),
        "{state}"
    );

    let page = get("/");
    let policy = "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self'";
    assert!(page.head.contains(policy), "{}", page.head);
    assert!(
        page.head.contains("require-trusted-types-for 'script'"),
        "{}",
        page.head
    );
    assert!(!page.head.contains("access-control"), "{}", page.head);
    for inline in ["<style", "style=", "onclick", "javascript:", "http://", "https://"] {
        assert!(!page.body.contains(inline), "{inline}");
    }
    for (path, kind) in [
        ("/page.js", "text/javascript"),
        ("/page.css", "text/css"),
        ("/icon.svg", "image/svg+xml"),
    ] {
        let file = get(path);
        assert!(file.status == 200 && file.head.contains(kind), "{path}: {}", file.head);
    }
    let code = get("/page.js").body;
    for markup in [
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
    ] {
        assert!(!code.contains(markup), "{markup}");
    }
}

#[test]
fn what_is_delivered_is_counted_to_the_byte() {
    const MESSAGE: &[u8] = &[0; 36];
    let lab = Lab::enter();
    let _daemon = Daemon::start(&["--interface", "gwv"]);
    let _web = Web::start(&[]);
    let counted = || {
        let figures = get("/metrics").body;
        let value = figures
            .lines()
            .find_map(|line| line.strip_prefix("giveway_delivered_bytes_total{class=\"standard\"} "));
        value?.parse::<f64>().ok()
    };
    await_some("the daemon is looked at", counted);
    let mut socket = TcpStream::connect((FAR_V4, lab.reader())).unwrap();
    socket.set_nodelay(true).unwrap();
    (0..100).for_each(|_| socket.write_all(MESSAGE).unwrap());
    // The kernel counts the SYN as well.
    let wanted = (100 * MESSAGE.len()) as f64..=(100 * MESSAGE.len() + 1) as f64;
    until("all of it is counted", || {
        counted().is_some_and(|bytes| wanted.contains(&bytes))
    });
}

#[test]
fn other_origins_rebound_names_and_other_methods_get_nothing() {
    let _lab = Lab::enter();
    let _web = Web::start(&["--host", "robot7"]);
    let ours = format!("Host: {AT}\r\n");
    for host in [AT, "[::1]:9871", "robot7"] {
        assert_eq!(
            request("GET", "/state", &format!("Host: {host}\r\n")).status,
            200,
            "{host}"
        );
    }
    let refused = |method, headers: &str| {
        let answer = request(method, "/state", headers);
        assert!(
            !answer.body.contains("version") && !answer.body.contains("problem"),
            "{}",
            answer.body
        );
        assert!(answer.head.contains("content-security-policy"), "{}", answer.head);
        answer.status
    };
    assert_eq!(refused("GET", "Host: evil.example:9871\r\n"), 421);
    assert_eq!(refused("GET", &format!("{ours}Origin: http://evil.example\r\n")), 403);
    assert_eq!(refused("GET", &format!("{ours}Sec-Fetch-Site: cross-site\r\n")), 403);
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"] {
        assert_eq!(
            refused(method, &format!("{ours}Content-Length: 0\r\n")),
            405,
            "{method}"
        );
    }
    assert_eq!(refused("GET", &format!("{ours}Content-Length: 1000000000\r\n")), 413);
    assert_eq!(request("GET", "/../etc/passwd", &ours).status, 404);
    let head = request("HEAD", "/metrics", &ours);
    assert!(head.status == 200 && head.body.is_empty());
}

#[test]
fn slow_and_oversized_requests_have_an_end() {
    let _lab = Lab::enter();
    let _web = Web::start(&[]);
    let long = "x".repeat(100_000);
    for request in [
        format!("GET /{long} HTTP/1.1\r\nHost: {AT}\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nHost: {AT}\r\nX: {long}\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nHost: {AT}\r\n{}\r\n", "X: y\r\n".repeat(1000)),
    ] {
        let status = talk(&request).map(|answer| answer.status);
        assert!(matches!(status, Some(414 | 431) | None), "{status:?}");
    }
    // A byte at a time, and nothing at all.
    let mut slow = connect();
    let mut silent = connect();
    let begun = Instant::now();
    until("who sends slowly is disconnected", || {
        slow.write_all(b"G").is_err() || is_closed(&mut slow)
    });
    until("who sends nothing is, too", || is_closed(&mut silent));
    assert!(begun.elapsed() < Duration::from_secs(12), "{:?}", begun.elapsed());
    assert_eq!(get("/state").status, 200);
}

fn is_closed(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    let mut byte = [0];
    match stream.read(&mut byte) {
        Ok(0) => true,
        Ok(_) => false,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

#[test]
fn who_may_not_look_is_turned_away_and_told_how_they_may() {
    let _lab = Lab::enter();
    let web = Web::start(&[]);
    let answer = as_user(NOBODY, || get("/state"));
    assert_eq!(answer.status, 403);
    assert!(answer.body.contains("giveway web --allow 65534"), "{}", answer.body);
    drop(web);
    let web = Web::start(&["--allow", "65534"]);
    assert_eq!(as_user(NOBODY, || get("/state")).status, 200);
    drop(web);
    let _web = Web::start(&["--anyone"]);
    assert_eq!(as_user(NOBODY, || get("/state")).status, 200);
}

#[test]
fn beyond_the_loopback_it_serves_only_if_told_to() {
    let lab = Lab::enter();
    let open = ["--listen", "0.0.0.0:9871"];
    let refused = Command::new(program()).arg("web").args(open).output().unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        said.contains("is reachable from other machines") && said.contains("ssh -L"),
        "{said}"
    );
    let mut command = Command::new(program());
    command.arg("web").args(open).arg("--anyone").stderr(Stdio::piped());
    let mut web = KillOnDrop::spawn(&mut command);
    let mut lines = BufReader::new(web.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("WARN") && line.contains("can see every user's connections")));
    let from_far = lab.far(|| TcpStream::connect((crate::support::lab::NEAR_V4, 9871)));
    let mut from_far = from_far.unwrap();
    write!(
        from_far,
        "GET /metrics HTTP/1.1\r\nHost: 10.99.0.1\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    from_far.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[test]
fn a_thousand_connections_of_one_user_leave_others_their_places() {
    let _lab = Lab::enter();
    let _daemon = Daemon::start(&["--interface", "gwv"]);
    let _web = Web::start(&["--allow", "65534"]);
    let crowd: Vec<TcpStream> = as_user(NOBODY, || {
        (0..1000).filter_map(|_| TcpStream::connect(AT).ok()).collect()
    });
    assert_eq!(crowd.len(), 1000);
    let begun = Instant::now();
    assert_eq!(get("/state").status, 200);
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    // Their places again, should the machine have been so slow that the first have ended.
    let (again, refused) = as_user(NOBODY, || {
        let again: Vec<TcpStream> = (0..16).filter_map(|_| TcpStream::connect(AT).ok()).collect();
        (again, get("/state"))
    });
    assert_eq!(refused.status, 503);
    drop(again);
    assert!(
        refused.body.contains("at most 16 of a user or network"),
        "{}",
        refused.body
    );
    // Those who ask nothing lose their places.
    until("there is room again", || {
        as_user(NOBODY, || {
            talk(&format!("GET / HTTP/1.1\r\nHost: {AT}\r\nConnection: close\r\n\r\n"))
                .is_some_and(|answer| answer.status == 200)
        })
    });
    drop(crowd);
}

#[test]
fn one_host_with_many_addresses_leaves_others_their_places() {
    let lab = Lab::enter();
    let _daemon = Daemon::start(&["--interface", "gwv"]);
    // Four addresses of its /64, and then one of each of many /64s.
    let of_one_subnet: Vec<String> = (3..7).map(|host| format!("fd99::{host}")).collect();
    let of_many: Vec<String> = (1..=80).map(|subnet| format!("fd99:0:0:{subnet:x}::2")).collect();
    lab.far(|| {
        for address in of_one_subnet.iter().chain(&of_many) {
            run(&format!("ip address add {address}/128 dev gwv nodad"));
        }
    });
    run("ip route add fd99::/48 dev gwv");
    for addresses in [of_one_subnet, of_many] {
        let _web = Web::start(&["--listen", "[::]:9871", "--anyone"]);
        let crowd: Vec<TcpStream> = lab.far(|| {
            let connections = (0..80).map(|number| connect_from(&addresses[number % addresses.len()]));
            connections.collect()
        });
        assert_eq!(
            get("/state").status,
            200,
            "beside {} connections of {} addresses",
            crowd.len(),
            addresses.len()
        );
        let from_another_machine = lab.far(|| {
            let mut stream = TcpStream::connect((crate::support::lab::NEAR_V4, 9871)).unwrap();
            let _ = write!(
                stream,
                "GET /metrics HTTP/1.1\r\nHost: 10.99.0.1\r\nConnection: close\r\n\r\n"
            );
            let mut answer = String::new();
            let _ = stream.read_to_string(&mut answer);
            answer
        });
        assert!(
            from_another_machine.starts_with("HTTP/1.1 200"),
            "{from_another_machine}"
        );
    }
}

/// To the near side's page, from this address of the calling thread's namespace.
fn connect_from(address: &str) -> TcpStream {
    let socket = Socket::new(Domain::IPV6, Type::STREAM, Some(Protocol::TCP)).unwrap();
    let from: SocketAddr = (address.parse::<IpAddr>().unwrap(), 0).into();
    let to: SocketAddr = (NEAR_V6.parse::<IpAddr>().unwrap(), 9871).into();
    socket.bind(&from.into()).unwrap();
    socket.connect(&to.into()).unwrap();
    socket.into()
}

/// Stands where the daemon's sockets are, and counts what it is asked.
struct Counting {
    asked: Arc<AtomicUsize>,
    folder: PathBuf,
    /// As a daemon has it. The folder may be one of a namespace that is gone and had this one's number: where nobody holds its
    /// lock, whatever starts elsewhere removes it.
    _lock: Flock<File>,
}

impl Counting {
    fn start() -> Self {
        let folder = PathBuf::from(format!("/run/giveway/netns-{}", own_netns().unwrap()));
        fs::create_dir_all(&folder).unwrap();
        let lock = File::create(folder.join("lock")).unwrap();
        let lock = Flock::lock(lock, FlockArg::LockExclusive).unwrap();
        let listener = UnixListener::bind(folder.join("control-root")).unwrap();
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        thread::spawn(move || {
            for mut client in listener.incoming().map_while(Result::ok) {
                count.fetch_add(1, Ordering::Relaxed);
                let _ = client.write_all(b"{\"error\":\"counted\"}\n");
            }
        });
        Self {
            asked,
            folder,
            _lock: lock,
        }
    }

    fn count(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn however_many_look_the_daemon_is_asked_once_a_second_and_while_nobody_does_never() {
    let lab = Lab::enter();
    let daemon = Counting::start();
    let _web = Web::start(&[]);
    assert_eq!(get("/state").json()["problem"], "counted");
    let (before, begun) = (daemon.count(), Instant::now());
    let looks: usize = thread::scope(|scope| {
        let looker = || {
            visit(&lab.near);
            let mut looks = 0;
            // Twenty each at least. Where an answer takes long, the next question comes later.
            while daemon.count() < before + 3 || looks < 20 {
                assert!(begun.elapsed() < PATIENCE, "asked {} times", daemon.count() - before);
                looks += usize::from(get("/metrics").status == 200);
            }
            looks
        };
        let lookers: Vec<_> = (0..8).map(|_| scope.spawn(looker)).collect();
        lookers.into_iter().map(|looker| looker.join().unwrap()).sum()
    });
    let asked = daemon.count() - before;
    let seconds = begun.elapsed().as_secs() as usize;
    assert!(looks > 100, "{looks} looks");
    assert!(
        asked <= seconds + 1,
        "asked {asked} times in {seconds} s for {looks} looks"
    );
    // The latest look has become old, so that it would be time to ask again.
    let (quiet, since) = (daemon.count(), Instant::now());
    until("time has passed", || since.elapsed() > Duration::from_secs(3));
    assert_eq!(daemon.count(), quiet);
}

#[test]
fn without_a_daemon_the_page_says_so_and_comes_back_with_it() {
    let _lab = Lab::enter();
    let _web = Web::start(&[]);
    let value = |text: &str| get("/metrics").body.lines().any(|line| line == text);
    for _ in 0..2 {
        until("up is 0", || value("giveway_up 0.0"));
        let problem = get("/state").json()["problem"].to_string();
        assert!(
            problem.contains("no giveway daemon runs in this network namespace"),
            "{problem}"
        );
        let daemon = Daemon::start(&["--interface", "gwv"]);
        until("up is 1", || value("giveway_up 1.0"));
        until("it is in the history", || {
            !get("/history").json()["recent"].as_array().unwrap().is_empty()
        });
        drop(daemon);
    }
}
