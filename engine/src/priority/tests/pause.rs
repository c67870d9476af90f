// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A pause revokes all real-time priority, and its end restores it where it is still allowed.

use super::*;

const WHY: &str = "paused by uid 0";

impl Machine {
    fn pause(&mut self) {
        let actions = self.priority.pause(self.now, WHY.to_owned());
        self.carry_out(actions);
    }

    fn resume(&mut self) {
        let actions = self.priority.resume(self.now);
        self.carry_out(actions);
    }
}

#[test]
fn a_pause_revokes_everything_and_its_end_restores_it() {
    let mut machine = Machine::new(vec![rule("camera", "/camera")], Vec::new());
    assert!(machine.start(1, "/camera"));
    machine.find_napi();
    assert!(machine.request(31));
    machine.pause();
    assert!(machine.granted.is_empty() && machine.raised.is_empty() && !machine.is_napi_raised);
    let changes = machine.log.to_vec();
    assert!(changes.iter().any(|latest| latest.change.reason == WHY), "{changes:?}");
    assert!(!machine.request(31), "its chain is suspended");
    assert!(!machine.start(2, "/camera"), "nothing is given meanwhile");
    for _ in 0..30 {
        machine.run(TICK, &|_| 0.0, 0.0, 0.0);
        machine.report_usage();
    }
    assert!(machine.granted.is_empty() && !machine.is_napi_raised);
    machine.resume();
    assert_eq!(machine.pids(), [1, 2], "also what was started meanwhile");
    assert!(machine.request(31));
    machine.report_usage();
    assert!(machine.is_napi_raised);
}

#[test]
fn ended_or_overrun_processes_are_not_restored_after_a_pause() {
    let mut machine = Machine::new(vec![rule("camera", "/camera"), rule("other", "/other")], Vec::new());
    assert!(machine.start(1, "/camera") && machine.start(2, "/other"));
    for _ in 0..9 {
        machine.run(TICK, &|pid| if pid == 2 { 1.0 } else { 0.1 }, 0.0, 0.0);
        machine.report_usage();
    }
    assert_eq!(machine.pids(), [1]);
    machine.pause();
    let cpu = Duration::ZERO;
    machine.give_input(Input::Exited { id: id(1), cpu });
    machine.resume();
    assert!(machine.granted.is_empty());
}
