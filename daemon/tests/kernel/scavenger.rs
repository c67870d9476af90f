// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The congestion control for background transfers on a real connection over a narrow link.

use std::thread::sleep;
use std::time::Duration;

use giveway::actuate::sockets::scavenger::Scavenger;

use crate::support::bottleneck::{Bottleneck, Shape};

const LINK: Shape = Shape {
    mbit: 20,
    rtt: Duration::from_millis(50),
    queue: Duration::from_millis(100),
    loses_one_in: 0,
};
const LINK_MBIT: f64 = LINK.mbit as f64;
/// Its own, beside a daemon that may run on this machine.
const NAME: &str = "gw_test_scavenger";

#[test]
fn a_background_transfer_alone_fills_the_link_and_keeps_its_queue_short() {
    let _scavenger = Scavenger::register(NAME, None).unwrap();
    let link = Bottleneck::enter(LINK);
    let background = link.transfer(NAME);
    sleep(Duration::from_secs(3));
    link.longest_wait();
    let mbit = background.mbit_during(Duration::from_secs(3));
    assert!(mbit > 0.85 * LINK_MBIT, "{mbit:.1} Mbit/s");
    let wait = link.longest_wait();
    assert!(wait < Duration::from_millis(60), "{wait:?} in the queue");
}

#[test]
fn a_background_transfer_yields_within_a_second_and_comes_back() {
    let _scavenger = Scavenger::register(NAME, None).unwrap();
    let link = Bottleneck::enter(LINK);
    let background = link.transfer(NAME);
    sleep(Duration::from_secs(4));
    let foreground = link.transfer("cubic");
    sleep(Duration::from_millis(1_200));
    let beside = background.mbit_during(Duration::from_secs(3));
    assert!(beside < 0.05 * LINK_MBIT, "{beside:.2} Mbit/s beside CUBIC");
    drop(foreground);
    sleep(Duration::from_secs(3));
    let again = background.mbit_during(Duration::from_secs(2));
    assert!(again > 0.5 * LINK_MBIT, "{again:.1} Mbit/s after it");
}

#[test]
fn random_loss_does_not_stop_a_background_transfer() {
    let _scavenger = Scavenger::register(NAME, None).unwrap();
    let link = Bottleneck::enter(Shape {
        loses_one_in: 100,
        ..LINK
    });
    let background = link.transfer(NAME);
    sleep(Duration::from_secs(6));
    let mbit = background.mbit_during(Duration::from_secs(4));
    assert!(mbit > 0.5 * LINK_MBIT, "{mbit:.1} Mbit/s");
}
