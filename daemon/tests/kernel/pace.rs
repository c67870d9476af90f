// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pacing rates on real connections: set, held, left alone, put back.

use std::net::TcpStream;
use std::thread::sleep;
use std::time::Duration;

use giveway::actuate::sockets::SocketActuator as _;
use giveway::actuate::sockets::cap::CapActuator;
use giveway::actuate::sockets::cap::lift::Lift;
use giveway::actuate::sockets::pace::PaceActuator;
use giveway::kernel::own_netns;
use giveway_engine::change::Value;
use giveway_engine::network::action::Outcome;
use libbpf_rs::MapHandle;

use crate::support::lab::{FAR_V4, Lab};
use crate::support::tcp::{Transfer, cookie, max_pacing_rate, set_max_pacing_rate, walked};

const UNLIMITED: u32 = u32::MAX;
const RATE: u32 = 500_000;

struct Paced {
    actuator: PaceActuator,
    marks: MapHandle,
    _caps: CapActuator,
}

impl Paced {
    fn open() -> Self {
        let netns = own_netns().unwrap();
        let caps = CapActuator::open(netns).unwrap();
        let of = || MapHandle::try_from(caps.marks()).unwrap();
        Self {
            actuator: PaceActuator::open(netns, of()).unwrap(),
            marks: of(),
            _caps: caps,
        }
    }

    fn set(&mut self, socket: &TcpStream, value: Value) -> Outcome {
        let mut outcomes = self.actuator.apply(&[(cookie(socket), value)]).unwrap();
        assert_eq!(outcomes.len(), 1, "one outcome for what was asked: {outcomes:?}");
        outcomes.remove(0).1
    }
}

fn rate(bytes_per_s: u32) -> Value {
    Value::Number(bytes_per_s.into())
}

#[test]
fn a_live_connection_is_held_below_its_rate_and_set_free_again() {
    let lab = Lab::enter();
    let (mut monitor, mut paced) = (lab.monitor(), Paced::open());
    let (near, far) = lab.connect(FAR_V4);
    assert_eq!(paced.set(&near, rate(RATE)), Outcome::Applied);
    assert_eq!(max_pacing_rate(&near), RATE);

    let _transfer = Transfer::start(&near, far);
    let acked = |monitor: &mut _| walked(monitor, &near).acked_bytes;
    sleep(Duration::from_millis(500));
    let before = acked(&mut monitor);
    sleep(Duration::from_secs(2));
    let moved = acked(&mut monitor) - before;
    let asked = u64::from(RATE) * 2;
    assert!(
        (asked * 7 / 10..=asked * 12 / 10).contains(&moved),
        "{moved} of {asked} bytes"
    );

    assert_eq!(paced.set(&near, Value::default()), Outcome::Applied);
    assert_eq!(max_pacing_rate(&near), UNLIMITED);
    let before = acked(&mut monitor);
    sleep(Duration::from_secs(1));
    assert!(acked(&mut monitor) - before > asked);
}

#[test]
fn a_rate_that_an_application_has_set_is_left_alone() {
    let lab = Lab::enter();
    let mut paced = Paced::open();
    let (near, _far) = lab.connect(FAR_V4);
    set_max_pacing_rate(&near, 2 * RATE);
    let foreign = Outcome::Foreign { found: rate(2 * RATE) };
    assert_eq!(paced.set(&near, rate(RATE)), foreign);
    assert_eq!(max_pacing_rate(&near), 2 * RATE);

    set_max_pacing_rate(&near, UNLIMITED);
    assert_eq!(paced.set(&near, rate(RATE)), Outcome::Applied);
    set_max_pacing_rate(&near, 2 * RATE);
    assert_eq!(paced.set(&near, Value::default()), foreign);
    assert_eq!(max_pacing_rate(&near), 2 * RATE);
}

#[test]
fn what_a_dead_daemon_left_is_put_back_by_the_marks() {
    let lab = Lab::enter();
    let mut paced = Paced::open();
    let (near, _far) = lab.connect(FAR_V4);
    assert_eq!(paced.set(&near, rate(RATE)), Outcome::Applied);
    assert_eq!(paced.set(&near, rate(RATE / 2)), Outcome::Applied);
    let found = Lift::open(own_netns().unwrap(), Some(&paced.marks), false)
        .unwrap()
        .run(&[])
        .unwrap();
    assert!(found.iter().all(|one| one.error.is_none()), "{found:?}");
    assert_eq!(max_pacing_rate(&near), UNLIMITED);
}
