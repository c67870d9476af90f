// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Many devices in virtual time: the real engine, a network that loses, delays and reorders, and a model of the
//! kernels. Every device must agree on the number of senders and the caps.

#[path = "simulation/world.rs"]
mod world;

use std::time::Duration;

use proptest::prelude::*;
use world::{Air, World};

/// Hirai et al., table 2 and the same formula beyond it: 20 Mbit/s, 256 ms, 120 kB, 1500 bytes.
fn paper_cap(devices: usize) -> u32 {
    (((640_000 - 120_000) / 1500) / devices as u32).max(4)
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn two_to_sixty_four_devices_agree_on_the_caps() {
    for devices in [2, 3, 5, 8, 16, 32, 64] {
        let mut world = World::new(devices, Air::default(), 1);
        for device in 0..devices {
            world.start_sending(device);
        }
        world.run(60 * SECOND);
        assert_eq!(world.senders_seen(), vec![devices as u32; devices], "{devices} devices");
        assert_eq!(
            world.caps(),
            vec![Some(paper_cap(devices)); devices],
            "{devices} devices"
        );
    }
}

#[test]
fn clones_of_one_machine_count_separately() {
    for copies in [vec![0, 1], vec![0, 1, 2, 3]] {
        let mut world = World::new(5, Air::default(), 3);
        world.copy_of_one(&copies);
        (0..5).for_each(|device| world.start_sending(device));
        world.run(60 * SECOND);
        assert_eq!(world.senders_seen(), vec![5; 5], "{} copies", copies.len());
    }
}

#[test]
fn sixty_four_devices_agree_after_losses_reordering_restarts_and_clock_jumps() {
    let air = Air {
        loss: 0.2,
        reorder: 0.2,
        ..Air::default()
    };
    let mut world = World::new(64, air, 11);
    (0..64).for_each(|device| world.start_sending(device));
    world.run(30 * SECOND);
    (0..8).for_each(|device| world.restart(device));
    (8..12).for_each(|device| world.kill(device));
    (12..16).for_each(|device| world.jump_clock(device, 100 * SECOND));
    world.run(30 * SECOND);
    (12..14).for_each(|device| world.jump_clock_back(device));
    (8..10).for_each(|device| {
        world.restart(device);
        world.start_sending(device);
    });
    world.run(30 * SECOND);
    world.calm();
    world.run(120 * SECOND);
    assert_eq!(world.senders_seen(), vec![62; 62]);
    for device in world.sending() {
        assert_eq!(world.caps_of(device), vec![Some(paper_cap(62))], "device {device}");
    }
}

#[test]
fn caps_are_right_within_a_second_of_a_start_and_two_of_a_stop() {
    let mut world = World::new(8, Air::default(), 2);
    (0..7).for_each(|device| world.start_sending(device));
    world.run(20 * SECOND);
    world.start_sending(7);
    world.run(SECOND);
    assert_eq!(world.caps(), vec![Some(paper_cap(8)); 8]);
    world.stop_sending(7);
    world.run(2 * SECOND);
    assert_eq!(world.caps()[..7], vec![Some(paper_cap(7)); 7]);
}

#[test]
fn a_dead_device_is_forgotten_within_five_seconds() {
    let mut world = World::new(8, Air::default(), 3);
    (0..8).for_each(|device| world.start_sending(device));
    world.run(20 * SECOND);
    world.kill(7);
    world.run(5 * SECOND);
    assert_eq!(world.caps()[..7], vec![Some(paper_cap(7)); 7]);
}

#[test]
fn a_restarted_device_is_counted_once() {
    let mut world = World::new(4, Air::default(), 4);
    (0..4).for_each(|device| world.start_sending(device));
    world.run(20 * SECOND);
    world.kill(2);
    world.run(SECOND);
    world.restart(2);
    world.start_sending(2);
    world.run(5 * SECOND);
    assert_eq!(world.caps(), vec![Some(paper_cap(4)); 4]);
}

#[test]
fn a_clock_jump_does_not_separate_devices() {
    let mut world = World::new(4, Air::default(), 5);
    (0..4).for_each(|device| world.start_sending(device));
    world.run(20 * SECOND);
    world.jump_clock(1, 3600 * SECOND);
    world.run(10 * SECOND);
    assert_eq!(world.caps(), vec![Some(paper_cap(4)); 4]);
}

#[test]
fn losses_do_not_expire_a_peer() {
    let air = Air {
        loss: 0.2,
        ..Air::default()
    };
    let mut world = World::new(8, air, 6);
    (0..8).for_each(|device| world.start_sending(device));
    world.run(20 * SECOND);
    world.run(3600 * SECOND);
    assert_eq!(world.caps(), vec![Some(paper_cap(8)); 8]);
    assert_eq!(world.expired(), 0);
}

#[test]
fn a_device_without_a_key_counts_only_itself() {
    let mut world = World::new(3, Air::default(), 7);
    world.take_key(0);
    (0..3).for_each(|device| world.start_sending(device));
    world.run(20 * SECOND);
    assert_eq!(world.senders_seen(), vec![1, 2, 2]);
}

#[test]
fn connections_of_one_device_divide_its_share() {
    let mut world = World::new(2, Air::default(), 8);
    world.start_sending(0);
    world.start_sending(1);
    world.open_connection(1);
    world.run(20 * SECOND);
    assert_eq!(world.caps_of(0), vec![Some(paper_cap(2))]);
    assert_eq!(world.caps_of(1), vec![Some(paper_cap(4)); 2]);
}

#[test]
fn another_tools_clamp_is_not_overridden_and_the_reason_is_reported() {
    let mut world = World::new(2, Air::default(), 9);
    world.start_sending(0);
    world.start_sending(1);
    world.run(10 * SECOND);
    world.set_clamp_behind_giveways_back(0, 17);
    world.run(10 * SECOND);
    assert_eq!(world.caps_of(0), vec![Some(17)]);
    assert!(
        world.reasons(0).iter().any(|reason| reason.contains("another tool")),
        "{:?}",
        world.reasons(0)
    );
}

#[test]
fn loss_recovery_is_not_disturbed() {
    let mut world = World::new(2, Air::default(), 10);
    world.start_sending(0);
    world.repair_a_loss(0, true);
    world.run(10 * SECOND);
    assert_eq!(world.caps_of(0), vec![None]);
    world.repair_a_loss(0, false);
    world.run(SECOND);
    assert_eq!(world.caps_of(0), vec![Some(paper_cap(1))]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Whatever happened before: once the network and the devices are quiet, all agree.
    #[test]
    fn all_agree_after_any_history(
        devices in 2usize..20, seed: u64, loss in 0.0..0.4f64, reorder in 0.0..0.5f64,
        history in prop::collection::vec((0usize..20, 0u8..7, 0u64..3000), 0..40),
    ) {
        let mut world = World::new(devices, Air { loss, reorder, ..Air::default() }, seed);
        for (device, what, wait_ms) in history {
            let device = device % devices;
            match what {
                0 | 1 => world.start_sending(device),
                2 => world.stop_sending(device),
                3 => world.kill(device),
                4 => world.restart(device),
                5 => world.jump_clock(device, Duration::from_secs(100)),
                _ => world.jump_clock_back(device),
            }
            world.run(Duration::from_millis(wait_ms));
        }
        world.calm();
        world.run(120 * SECOND);
        let sending = world.sending();
        for device in 0..devices {
            if let Some(seen) = world.seen_by(device) {
                prop_assert_eq!(seen as usize, sending.len());
            }
        }
        for &device in &sending {
            prop_assert_eq!(world.caps_of(device), vec![Some(paper_cap(sending.len()))]);
        }
    }
}
