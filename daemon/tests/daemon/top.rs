// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway top` in a real terminal, of a real daemon with real traffic.

use std::net::TcpStream;

use giveway::commands::top::terminal::FullScreen;
use giveway::kernel::own_netns;
use nix::sys::signal::Signal;

use crate::support::lab::{FAR_V4, Lab};
use crate::support::process::{Copy, Daemon, failure, giveway};
use crate::support::tcp::{Transfer, cookie};
use crate::support::terminal::Terminal;
use crate::support::wait::until;

const COLUMNS: u16 = 80;
const LINES: u16 = 24;

fn top(words: &str, environment: &str) -> Terminal {
    Terminal::run(&format!("top {words}"), environment, COLUMNS, LINES)
}

/// A daemon, and two connections of which one sends.
struct Stage {
    lab: Lab,
    sends: TcpStream,
    idles: TcpStream,
    _far: TcpStream,
    _transfer: Transfer,
    daemon: Daemon,
}

impl Stage {
    fn set() -> Self {
        let lab = Lab::enter();
        lab.narrow(10, 100_000);
        let (sends, reads) = lab.connect(FAR_V4);
        let (idles, far) = lab.connect(FAR_V4);
        Self {
            _transfer: Transfer::start(&sends, reads),
            daemon: Daemon::start(&["--interface", "gwv"]),
            lab,
            sends,
            idles,
            _far: far,
        }
    }
}

fn remote(stream: &TcpStream) -> String {
    stream.peer_addr().unwrap().to_string()
}

/// Where it stands among the rows, of whose remote ends the column has room for the port.
fn row_of(screen: &str, remote: &str) -> Option<usize> {
    let (_, port) = remote.rsplit_once(':').unwrap();
    let is_row = |line: &str| line.contains(&format!(":{port} ")) && !line.starts_with("filter:");
    screen.lines().position(is_row)
}

fn words_of(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn who_sends_comes_first_with_its_rate_and_rows_are_sorted_as_asked() {
    let stage = Stage::set();
    let (sends, idles) = (remote(&stage.sends), remote(&stage.idles));
    let terminal = top("", "");
    let screen = terminal.until("the rates of both", |screen| {
        let rate = |to: &str| {
            screen
                .lines()
                .nth(row_of(screen, to)?)?
                .split_whitespace()
                .nth(8)
                .map(str::to_owned)
        };
        rate(&sends).is_some_and(|rate| rate.ends_with('M')) && rate(&idles).is_some()
    });
    assert!(row_of(&screen, &sends) < row_of(&screen, &idles), "{screen}");
    assert_eq!(sorted_by(&screen), "bit/s▼");
    let (mut shown, mut tried) = (screen, 0);
    while !shown.contains("by REMOTE▼") {
        let before = sorted_by(&shown).to_owned();
        tried += 1;
        assert!(tried < 20, "{shown}");
        terminal.press(&["s"]);
        shown = terminal.until("the next column", |screen| sorted_by(screen) != before);
    }
    let is_sends_first = stage.sends.peer_addr().unwrap() < stage.idles.peer_addr().unwrap();
    let in_order = |screen: &str| row_of(screen, &sends) < row_of(screen, &idles);
    assert_eq!(in_order(&shown), is_sends_first, "{shown}");
    terminal.press(&["r"]);
    terminal.until("the other way round", |screen| {
        screen.contains("REMOTE▲") && in_order(screen) != is_sends_first
    });
}

fn sorted_by(screen: &str) -> &str {
    screen
        .split_once(" by ")
        .map_or("", |(_, rest)| rest.lines().next().unwrap_or_default())
}

#[test]
fn a_filter_leaves_what_has_its_words() {
    let stage = Stage::set();
    let (sends, idles) = (remote(&stage.sends), remote(&stage.idles));
    let terminal = top("", "");
    terminal.until("both", |screen| {
        row_of(screen, &sends).and(row_of(screen, &idles)).is_some()
    });
    terminal.press(&["/"]);
    terminal.until("what is typed", |screen| screen.contains("filter: _"));
    terminal.press(&["-l", &idles]);
    terminal.press(&["Enter"]);
    let is_alone = |screen: &str| row_of(screen, &sends).is_none() && row_of(screen, &idles).is_some();
    let screen = terminal.until("one is left", is_alone);
    assert!(screen.contains(&format!("filter: {idles}")), "{screen}");
    terminal.press(&["Escape"]);
    terminal.until("both again", |screen| row_of(screen, &sends).is_some());
}

#[test]
fn nothing_moves_in_a_pause() {
    let stage = Stage::set();
    let terminal = top("", "");
    terminal.until("the first", |screen| row_of(screen, &remote(&stage.sends)).is_some());
    terminal.press(&["p"]);
    let paused = terminal.until("the pause", |screen| screen.contains("PAUSED"));
    let (new, _far) = stage.lab.connect(FAR_V4);
    let new = remote(&new);
    until("the daemon shows it", || {
        stage.daemon.status()["flows"].to_string().contains(&new)
    });
    // Whatever is drawn now, is drawn after that.
    terminal.press(&["C-l"]);
    assert_eq!(terminal.screen(), paused);
    terminal.press(&["p"]);
    terminal.until("it goes on", |screen| row_of(screen, &new).is_some());
}

#[test]
fn why_says_of_the_chosen_line_what_giveway_why_says() {
    let stage = Stage::set();
    let idles = remote(&stage.idles);
    let terminal = Terminal::run(&format!("top --filter {idles}"), "", COLUMNS, 2 * LINES);
    terminal.until("the line", |screen| row_of(screen, &idles).is_some());
    terminal.press(&["Enter"]);
    let screen = terminal.until("the reasons", |screen| screen.contains("why:"));
    let told = giveway(&["why", &cookie(&stage.idles).0.to_string()]).stdout;
    let told = words_of(&String::from_utf8(told).unwrap());
    assert!(told.contains(", rule "), "{told}");
    assert!(words_of(&screen).contains(&told), "{told}\n{screen}");
}

#[test]
fn a_daemon_that_stops_or_goes_is_said_and_the_next_one_is_found() {
    let mut stage = Stage::set();
    let terminal = top("", "");
    let sends = remote(&stage.sends);
    terminal.until("the first", |screen| row_of(screen, &sends).is_some());
    stage.daemon.signal(Signal::SIGSTOP);
    let screen = terminal.until("it does not answer", |screen| screen.contains("NO ANSWER"));
    assert!(screen.contains("did not answer within 2 s"), "{screen}");
    assert!(
        row_of(&screen, &sends).is_some(),
        "what it said last is still there: {screen}"
    );
    let _ = stage.daemon.0.wait();
    terminal.until("it is gone", |screen| screen.contains("no giveway daemon runs"));
    let _next = Daemon::start(&["--interface", "gwv"]);
    terminal.until("the next one", |screen| !screen.contains("NO ANSWER"));
}

#[test]
fn the_terminal_is_restored_however_it_ends() {
    let _stage = Stage::set();
    let running = |terminal: &Terminal| drop(terminal.until("it runs", |screen| screen.contains("[1 Sockets]")));
    for key in ["q", "C-c"] {
        let terminal = top("", "");
        running(&terminal);
        terminal.press(&[key]);
        assert!(terminal.is_restored(), "{key}");
    }
    for signal in [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT] {
        let terminal = top("", "");
        running(&terminal);
        terminal.signal(signal);
        assert!(terminal.is_restored(), "{signal}");
    }
}

/// Of the test itself, when it is run in the terminal.
const PANICS: &str = "GIVEWAY_TEST_VIEW_PANICS";

#[test]
fn the_terminal_is_restored_after_a_panic() {
    if std::env::var_os(PANICS).is_some() {
        let mut screen = FullScreen::take().unwrap();
        screen
            .0
            .draw(|frame| frame.render_widget("[1 Sockets]", frame.area()))
            .unwrap();
        panic!("as if something were wrong");
    }
    let test = std::env::current_exe().unwrap();
    let words = "--exact daemon::top::the_terminal_is_restored_after_a_panic --nocapture";
    let command = format!("env {PANICS}=1 {} {words}", test.display());
    let terminal = Terminal::run_command(&command, COLUMNS, LINES);
    assert!(terminal.is_restored());
    assert!(
        terminal.said().contains("as if something were wrong"),
        "{}",
        terminal.said()
    );
}

#[test]
fn no_colour_is_used_where_it_is_not_wanted() {
    let _stage = Stage::set();
    let colours = |environment| {
        let terminal = top("--view queue", environment);
        terminal.until("it runs", |screen| screen.contains("[3 Queue]"));
        terminal.press(&["p"]);
        terminal.until("the pause", |screen| screen.contains("PAUSED"));
        let screen = terminal.coloured_screen();
        let sequences = screen.split('\u{1b}').skip(1).filter_map(|rest| rest.split_once('m'));
        let numbers = sequences.flat_map(|(sequence, _)| sequence.trim_start_matches('[').split(';'));
        let is_colour = |number: &&str| matches!(number.parse(), Ok(30..=38 | 40..=48 | 90..=107));
        numbers.filter(is_colour).count()
    };
    assert!(colours("") > 0);
    assert_eq!(colours("NO_COLOR=1"), 0);
}

#[test]
fn one_screen_is_printed_without_a_terminal_and_only_to_who_may_read() {
    let stage = Stage::set();
    let output = giveway(&["top", "--once"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(row_of(&text, &remote(&stage.sends)).is_some(), "{text}");
    assert!(
        text.lines().count() <= LINES.into() && !text.contains('\u{1b}'),
        "{text}"
    );
    assert!(
        text.lines().all(|line| line.chars().count() <= COLUMNS.into()),
        "{text}"
    );
    let (line, code) = failure(&giveway(&["top"]));
    assert!(line.contains("giveway top --once") && code == 1, "{line}");
    let (line, code) = failure(&giveway(&["top", "--once", "--sort", "COLOUR"]));
    assert!(
        line.contains("no column `COLOUR`") && line.contains("REMOTE") && code == 2,
        "{line}"
    );
    let copy = Copy::new(&format!("top-{}", own_netns().unwrap()));
    let (line, code) = failure(&copy.as_nobody(&["top", "--once"]));
    assert!(
        line.contains("only root and the members of the group") && code == 1,
        "{line}"
    );
}
