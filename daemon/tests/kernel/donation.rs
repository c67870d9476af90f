// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The account of donated priority: what is computed at one is charged to the thread whose priority it is, and nothing else.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use giveway::kernel::donation::{DonatedTime, DonationPrograms};

use crate::support::caller;
use crate::support::process::{KillOnDrop, effective_priority};
use crate::support::scratch::Scratch;
use crate::support::wait::{await_some, until};

/// Does one thing after the other, when it is told.
struct Locks {
    process: KillOnDrop,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Locks {
    fn start(file: &Scratch, does: &[&str]) -> Self {
        caller::forget();
        let test = std::env::current_exe().unwrap();
        let example = test.ancestors().nth(2).unwrap().join("examples/locks");
        let mut command = Command::new(&example);
        command
            .arg(file.path())
            .args(does)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut process = KillOnDrop::spawn(&mut command);
        let (input, output) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        let mut this = Self {
            process,
            input,
            output: BufReader::new(output),
        };
        this.says("ready");
        this
    }

    fn pid(&self) -> u32 {
        self.process.id()
    }

    fn says(&mut self, word: &str) {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert_eq!(line.trim_end(), word);
    }

    fn go_on(&mut self) {
        writeln!(self.input).unwrap();
    }

    fn is_made_fifo(&self) {
        let pid = self.pid().to_string();
        assert!(
            Command::new("chrt")
                .args(["-f", "-p", "5", &pid])
                .status()
                .unwrap()
                .success()
        );
    }
}

fn owner(file: &Scratch) -> Locks {
    Locks::start(
        file,
        &[
            "lock:0",
            "say:ready",
            "read",
            "compute:150",
            "unlock:0",
            "compute:150",
            "say:done",
            "read",
        ],
    )
}

fn waiting(file: &Scratch) -> Locks {
    Locks::start(file, &["say:ready", "read", "lock:0", "unlock:0", "say:has", "read"])
}

fn all(donation: &mut DonationPrograms, of: &Locks) -> Vec<DonatedTime> {
    let mut all = donation.take().unwrap();
    all.retain(|donated| donated.tid == of.pid());
    all
}

#[test]
fn what_the_owner_of_a_lock_computes_is_charged_to_who_waits_for_it() {
    let file = Scratch::new("locks", "");
    let mut donation = DonationPrograms::open().unwrap();
    for process in [true, false] {
        let (mut owner, mut donor) = (owner(&file), waiting(&file));
        let _donates = donation
            .donors()
            .add(donor.pid(), process.then_some(donor.pid()))
            .unwrap();
        donor.is_made_fifo();
        donor.go_on();
        let before = await_some("it is known who has the priority", || all(&mut donation, &donor).pop());
        assert_eq!((before.used, before.recipients), (Duration::ZERO, 1));
        owner.go_on();
        donor.says("has");
        owner.says("done");
        let [donated] = &all(&mut donation, &donor)[..] else {
            panic!("it is charged once")
        };
        assert_eq!((donated.pid, donated.recipients), (process.then_some(donor.pid()), 0));
        assert_eq!((donated.to.pid, donated.to.name.as_str()), (owner.pid(), "locks"));
        let ms = donated.used.as_millis();
        assert!(
            // On a busy machine its clock counts what a hypervisor takes.
            (150..225).contains(&ms),
            "{donated:?}, and nothing of what it computed afterwards"
        );
        assert!(all(&mut donation, &donor).is_empty(), "and no more");
    }
    assert_eq!(donation.not_recorded().unwrap(), 0);
}

/// A rule's process may handle requests, too: what the one or the other of giveway's threads no longer names, the other
/// still does.
#[test]
fn who_donates_twice_is_charged_as_long_as_it_does_once() {
    let file = Scratch::new("locks", "");
    let mut donation = DonationPrograms::open().unwrap();
    for stays in [true, false] {
        let (mut owner, mut donor) = (owner(&file), waiting(&file));
        let process = |is: bool| is.then_some(donor.pid());
        let both = [true, false].map(|is| donation.donors().add(donor.pid(), process(is)).unwrap());
        let [of_rule, of_chain] = both;
        let _stays = if stays {
            drop(of_chain);
            of_rule
        } else {
            drop(of_rule);
            of_chain
        };
        let expected = process(stays);
        donor.is_made_fifo();
        donor.go_on();
        let before = await_some("it is known who has the priority", || all(&mut donation, &donor).pop());
        assert_eq!((before.pid, before.recipients), (expected, 1));
        owner.go_on();
        donor.says("has");
        owner.says("done");
        let used: Duration = all(&mut donation, &donor).iter().map(|donated| donated.used).sum();
        assert!(used >= Duration::from_millis(150), "{used:?}");
    }
}

#[test]
fn who_named_an_earlier_thread_of_the_same_number_takes_nothing_from_a_later_one() {
    let file = Scratch::new("locks", "");
    let mut donation = DonationPrograms::open().unwrap();
    for process in [true, false] {
        let (mut owner, mut donor) = (owner(&file), waiting(&file));
        let name = |of: u32| donation.donors().add(donor.pid(), process.then_some(of)).unwrap();
        let (earlier, _later) = (name(1), name(donor.pid()));
        drop(earlier);
        donor.is_made_fifo();
        donor.go_on();
        await_some("it is known who has the priority", || all(&mut donation, &donor).pop());
        owner.go_on();
        donor.says("has");
        owner.says("done");
    }
}

#[test]
fn what_others_donate_is_charged_to_nobody() {
    let file = Scratch::new("locks", "");
    let mut donation = DonationPrograms::open().unwrap();
    let (mut owner, mut other) = (owner(&file), waiting(&file));
    let mut bystander = waiting(&Scratch::new("others", ""));
    let _donates = donation.donors().add(bystander.pid(), Some(bystander.pid())).unwrap();
    for fifo in [&other, &bystander] {
        fifo.is_made_fifo();
    }
    bystander.go_on();
    bystander.says("has");
    other.go_on();
    until("the owner has its priority", || effective_priority(owner.pid()) == 94);
    owner.go_on();
    owner.says("done");
    assert!(donation.take().unwrap().is_empty());
}
