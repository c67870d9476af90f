// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The addresses of the emulated link.
//!
//! Input: an Ethernet frame from anyone. Output: the destination port, or nothing if there is none here. Reads the
//! destination address only; the source is given by the TAP that the frame came from.

use super::airtime::ETHERNET_HEADER_BYTES;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Port {
    Station(usize),
    Server,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destination {
    One(Port),
    Everyone,
}

const PREFIX: [u8; 5] = [0x02, 0, 0, 0, 0];
const SERVER: u8 = 0xfe;
/// Station i has the last byte i + 1; the server's follows after the last of them.
pub const MAX_STATIONS: usize = SERVER as usize - 1;

/// Locally administered; `None` past the last station that has an address.
pub fn mac_of(port: Port) -> Option<[u8; 6]> {
    let last = match port {
        Port::Station(index) if index < MAX_STATIONS => u8::try_from(index + 1).ok()?,
        Port::Station(_) => return None,
        Port::Server => SERVER,
    };
    let [a, b, c, d, e] = PREFIX;
    Some([a, b, c, d, e, last])
}

pub fn destination(frame: &[u8], stations: usize) -> Option<Destination> {
    if frame.len() < ETHERNET_HEADER_BYTES {
        return None;
    }
    if frame[0] & 1 == 1 {
        return Some(Destination::Everyone);
    }
    let last = frame[..6].strip_prefix(&PREFIX)?[0];
    match usize::from(last) {
        _ if last == SERVER => Some(Destination::One(Port::Server)),
        number if (1..=stations).contains(&number) => Some(Destination::One(Port::Station(number - 1))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame_to(mac: [u8; 6]) -> Vec<u8> {
        let mut frame = vec![0; 64];
        frame[..6].copy_from_slice(&mac);
        frame
    }

    #[test]
    fn every_port_is_reached_by_its_own_address() {
        for port in [Port::Station(0), Port::Station(7), Port::Server] {
            let mac = mac_of(port).unwrap();
            assert_eq!(destination(&frame_to(mac), 8), Some(Destination::One(port)));
        }
    }

    #[test]
    fn broadcast_and_multicast_are_for_everyone() {
        assert_eq!(destination(&frame_to([0xff; 6]), 8), Some(Destination::Everyone));
        assert_eq!(
            destination(&frame_to([0x33, 0x33, 0, 0, 0, 1]), 8),
            Some(Destination::Everyone)
        );
    }

    #[test]
    fn unknown_addresses_and_truncated_frames_have_no_port() {
        assert_eq!(destination(&frame_to([2, 0, 0, 0, 0, 9]), 8), None);
        assert_eq!(destination(&frame_to([2, 0, 0, 0, 0, 0]), 8), None);
        assert_eq!(destination(&frame_to([2, 0, 0, 1, 0, 1]), 8), None);
        assert_eq!(destination(&[0xff; 13], 8), None);
        assert_eq!(destination(&[], 8), None);
    }

    #[test]
    fn the_last_station_does_not_take_the_servers_address() {
        assert_eq!(mac_of(Port::Station(MAX_STATIONS)), None);
        assert_ne!(mac_of(Port::Station(MAX_STATIONS - 1)), mac_of(Port::Server));
    }
}
