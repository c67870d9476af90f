// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The modelled hosts' packets, as Ethernet frames of the true length: the medium reads the length and the address, the
//! hosts the few numbers at the beginning of the payload.

use std::rc::Rc;

use crate::medium::address::{Port, mac_of};
use crate::medium::airtime::ETHERNET_HEADER_BYTES;

/// Payload of a full segment.
pub const MSS_BYTES: u64 = 1_448;
/// IP and TCP headers, the latter with the timestamp option.
const HEADER_BYTES: usize = 20 + 32;
/// One SACK block, and the option's overhead (two bytes, and two of padding).
const SACK_BLOCK_BYTES: usize = 8;
const SACK_OPTION_BYTES: usize = 4;
/// Beside timestamps there is room for three.
pub const SACK_BLOCKS: usize = 3;
/// IP and UDP headers of a report.
const REPORT_HEADER_BYTES: usize = 28;

/// Sequence numbers count full segments.
#[derive(Clone, Debug, PartialEq)]
pub enum Packet {
    Syn {
        connection: u16,
    },
    SynAck {
        connection: u16,
    },
    Data {
        connection: u16,
        segment: u32,
    },
    Ack {
        connection: u16,
        next: u32,
        blocks: Vec<(u32, u32)>,
    },
    Report {
        from: u16,
        datagram: Vec<u8>,
    },
}

impl Packet {
    /// From a station to the server (or, a report, to all the others), or from the server to that station.
    pub fn frame(&self, station: usize) -> Rc<[u8]> {
        let mut numbers = Vec::new();
        let mut put = |tag: u8, values: &[u32]| {
            numbers.push(tag);
            values
                .iter()
                .for_each(|value| numbers.extend_from_slice(&value.to_be_bytes()));
        };
        let (to, length) = match self {
            Self::Syn { connection } => {
                put(0, &[u32::from(*connection)]);
                (mac_of(Port::Server), HEADER_BYTES + 8)
            }
            Self::SynAck { connection } => {
                put(1, &[u32::from(*connection)]);
                (mac_of(Port::Station(station)), HEADER_BYTES + 8)
            }
            Self::Data { connection, segment } => {
                put(2, &[u32::from(*connection), *segment]);
                (mac_of(Port::Server), HEADER_BYTES + MSS_BYTES as usize)
            }
            Self::Ack {
                connection,
                next,
                blocks,
            } => {
                let flat = blocks.iter().flat_map(|(from, to)| [*from, *to]);
                let head = [u32::from(*connection), *next];
                put(3, &head.into_iter().chain(flat).collect::<Vec<_>>());
                let option = match blocks.len() {
                    0 => 0,
                    count => SACK_OPTION_BYTES + count * SACK_BLOCK_BYTES,
                };
                (mac_of(Port::Station(station)), HEADER_BYTES + option)
            }
            Self::Report { from, datagram } => {
                put(4, &[u32::from(*from)]);
                numbers.extend_from_slice(datagram);
                (Some([0xff; 6]), REPORT_HEADER_BYTES + datagram.len())
            }
        };
        let mut frame = vec![0; ETHERNET_HEADER_BYTES + length];
        frame[..6].copy_from_slice(&to.unwrap_or_default());
        frame[ETHERNET_HEADER_BYTES..][..numbers.len()].copy_from_slice(&numbers);
        frame.into()
    }

    /// As a report, but to one device.
    pub fn frame_between(&self, to: usize) -> Rc<[u8]> {
        let mut frame = self.frame(to).to_vec();
        frame[..6].copy_from_slice(&mac_of(Port::Station(to)).unwrap_or_default());
        frame.into()
    }

    pub fn read(frame: &[u8]) -> Option<Self> {
        let payload = frame.get(ETHERNET_HEADER_BYTES..)?;
        let (tag, rest) = payload.split_first()?;
        let number = |index: usize| {
            let bytes = rest.get(index * 4..index * 4 + 4)?;
            Some(u32::from_be_bytes(bytes.try_into().ok()?))
        };
        let connection = number(0)? as u16;
        Some(match tag {
            0 => Self::Syn { connection },
            1 => Self::SynAck { connection },
            2 => Self::Data {
                connection,
                segment: number(1)?,
            },
            3 => {
                let option = payload.len().saturating_sub(HEADER_BYTES + SACK_OPTION_BYTES);
                let blocks =
                    (0..option / SACK_BLOCK_BYTES).filter_map(|i| Some((number(2 + 2 * i)?, number(3 + 2 * i)?)));
                Self::Ack {
                    connection,
                    next: number(1)?,
                    blocks: blocks.collect(),
                }
            }
            4 => Self::Report {
                from: connection,
                datagram: rest.get(4..rest.len() - (REPORT_HEADER_BYTES - 5))?.to_vec(),
            },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packet_round_trips_with_its_true_length() {
        let packets = [
            (Packet::Syn { connection: 7 }, 74),
            (
                Packet::Data {
                    connection: 7,
                    segment: 9,
                },
                1_514,
            ),
            (
                Packet::Ack {
                    connection: 7,
                    next: 9,
                    blocks: vec![],
                },
                66,
            ),
            (
                Packet::Ack {
                    connection: 7,
                    next: 9,
                    blocks: vec![(11, 12), (15, 19)],
                },
                86,
            ),
            (
                Packet::Report {
                    from: 3,
                    datagram: vec![5; 87],
                },
                129,
            ),
        ];
        for (packet, length) in packets {
            let frame = packet.frame(3);
            assert_eq!(frame.len(), length);
            assert_eq!(Packet::read(&frame), Some(packet));
        }
    }
}
