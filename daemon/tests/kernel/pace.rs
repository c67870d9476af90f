// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pacing rates on real connections: set, held, left alone, put back.

use std::net::TcpStream;
use std::thread::sleep;
use std::time::Duration;

use giveway::actuate::sockets::SocketActuator as _;
use giveway::actuate::sockets::cap::clear::Clear;
use giveway::actuate::sockets::cap::{CapActuator, CapResult};
use giveway::actuate::sockets::pace::PaceActuator;
use giveway::kernel::own_netns;
use giveway_engine::change::Value;
use giveway_engine::sockets::setting::Outcome;
use libbpf_rs::MapHandle;
use socket2::{Domain, Socket, Type};

use crate::support::lab::{FAR_V4, Lab};
use crate::support::tcp::{Transfer, cookie, max_pacing_rate, scanned, set_max_pacing_rate};
use crate::support::wait::await_some;

const UNLIMITED: u32 = u32::MAX;
const RATE: u32 = 500_000;

struct Paced {
    actuator: PaceActuator,
    saved: MapHandle,
    caps: CapActuator,
}

impl Paced {
    fn open() -> Self {
        let netns = own_netns().unwrap();
        let caps = CapActuator::open(netns).unwrap();
        let of = || MapHandle::try_from(caps.saved()).unwrap();
        Self {
            actuator: PaceActuator::open(netns, of()).unwrap(),
            saved: of(),
            caps,
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
    let acked = |monitor: &mut _| scanned(monitor, &near).acked_bytes;
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

/// CUBIC from the beginning: BBR, the default of some kernels, leaves a connection paced.
fn cubic(lab: &Lab) -> (TcpStream, TcpStream) {
    let listener = lab.far_listener(FAR_V4);
    let near = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    near.set_tcp_congestion(b"cubic").unwrap();
    near.connect(&listener.local_addr().unwrap().into()).unwrap();
    (near.into(), listener.accept().unwrap().0)
}

/// HyStart takes the queue that others keep full for one that slow start has made, and ends it.
#[test]
fn a_connection_that_is_not_paced_any_more_goes_back_to_its_cap_by_slow_start() {
    for was_paced in [false, true] {
        let lab = Lab::enter();
        lab.narrow(20, 1_000_000);
        let (mut monitor, mut paced) = (lab.monitor(), Paced::open());
        let (near, far) = cubic(&lab);
        for value in [rate(RATE), Value::default()].into_iter().filter(|_| was_paced) {
            assert_eq!(paced.set(&near, value), Outcome::Applied);
        }
        let caps = &mut paced.caps;
        let mut cap_at = |segments: u32| caps.write([(cookie(&near), Some(segments))]).unwrap().remove(0);
        cap_at(500);
        let _transfer = Transfer::start(&near, far);
        let flow = await_some("the end of slow start", || {
            let flow = scanned(&mut monitor, &near);
            flow.ssthresh
                .is_some_and(|ssthresh| ssthresh <= flow.cwnd)
                .then_some(flow)
        });
        assert!(flow.retransmits == 0 && flow.cwnd < 500, "not by HyStart: {flow:?}");

        assert_eq!(
            cap_at(600).result,
            CapResult::Applied {
                without_restart: !was_paced
            }
        );
        let ssthresh = scanned(&mut monitor, &near).ssthresh;
        assert_eq!(ssthresh == Some(600), was_paced, "{ssthresh:?}");
    }
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
fn saved_state_restores_the_pacing_rate_after_the_daemons_death() {
    let lab = Lab::enter();
    let mut paced = Paced::open();
    let (near, _far) = lab.connect(FAR_V4);
    assert_eq!(paced.set(&near, rate(RATE)), Outcome::Applied);
    assert_eq!(paced.set(&near, rate(RATE / 2)), Outcome::Applied);
    let found = Clear::open(own_netns().unwrap(), Some(&paced.saved), false)
        .unwrap()
        .run(&[])
        .unwrap();
    assert!(found.iter().all(|one| one.error.is_none()), "{found:?}");
    assert_eq!(max_pacing_rate(&near), UNLIMITED);
}
