// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A report as bytes: the content of the seal. `docs/reference/protocol.md` has the tables.
//!
//! In: a [`Report`], or bytes that were authenticated but may still be anything. Out: bytes, or a report with every
//! field checked. Every report has exactly one encoding, so whatever decodes also encodes to the same bytes. Never
//! decides whether the report counts.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::{CaState, Class};

/// The most senders, responses and challenged sessions in one report.
pub const MAX_SENDERS: usize = 16;
pub const MAX_RESPONSES: usize = 16;
pub const MAX_CHALLENGED: usize = 4;
/// The shortest and longest interval that a device may announce.
pub const INTERVAL_RANGE_MS: std::ops::RangeInclusive<u32> = 20..=600_000;
/// [`Sender::demand_kbit`] of a connection with unlimited demand.
pub const UNLIMITED_KBIT: u32 = u32::MAX;
/// The size of one response.
pub(super) const ECHO_BYTES: usize = 8;
/// The shortest report: two u64, and each of the others in one byte.
pub(super) const MIN_BYTES: usize = 16 + 6;
/// The longest encoding of everything but senders and responses: two u64, two varints, purpose, three counts, challenged.
pub(super) const MAX_FIXED_BYTES: usize = 16 + 10 + 5 + 1 + 3 + 2 * MAX_CHALLENGED;

/// Bytes that no device of this version seals.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub &'static str);

/// A device's report to its peers.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Report {
    /// Random, chosen when the device's daemon started.
    pub session: u64,
    /// Grows with every report of the session.
    pub counter: u64,
    /// A device that responds with it has just heard this session.
    pub challenge: u64,
    /// The time until about the next report.
    pub interval_ms: u32,
    pub purpose: Purpose,
    /// [`hint`]s of sessions that the device hears and cannot authenticate yet: a response is requested from them.
    pub challenged: Vec<u16>,
    /// Responses: the challenges of others. Their 64 random bits identify them.
    pub responses: Vec<u64>,
    /// The connections that are sending; none: the device is idle.
    pub senders: Vec<Sender>,
}

/// The purpose of a report, as far as it matters to the receiver.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Purpose {
    Telling,
    /// The device leaves: no further report follows.
    Leaving,
    /// To one device that fell silent: it is to answer directly, and at once.
    Asking,
}

/// A connection that is sending.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub struct Sender {
    pub cwnd_segments: u32,
    pub min_rtt_us: u32,
    pub srtt_us: u32,
    /// Written by the application and not yet acknowledged.
    pub queue_bytes: u32,
    pub ca_state: CaState,
    pub delivery_rate_kbit: u32,
    /// Segments since the connection opened.
    pub retransmits: u32,
    pub class: Class,
    /// Its demand, or [`UNLIMITED_KBIT`].
    pub demand_kbit: u32,
}

/// The numbers on the wire are the positions in this list, in [`Class::ALL`] and in [`CaState::BY_NUMBER`], which hold
/// all values in order.
const PURPOSES: [Purpose; 3] = [Purpose::Telling, Purpose::Leaving, Purpose::Asking];

/// Sixteen bits of a session's id: enough to request a response, since a collision costs one response.
pub fn hint(session: u64) -> u16 {
    session as u16
}

impl Report {
    /// Refuses what [`Report::decode`] would refuse.
    pub fn encode(&self) -> Result<Vec<u8>, Malformed> {
        let mut out = Vec::with_capacity(128);
        out.extend(self.session.to_be_bytes());
        out.extend(self.challenge.to_be_bytes());
        put_varint(&mut out, self.counter);
        put_varint(&mut out, interval(self.interval_ms)?.into());
        out.push(self.purpose as u8);
        out.push(count(self.challenged.len(), MAX_CHALLENGED, "too many challenged")?);
        out.push(count(self.responses.len(), MAX_RESPONSES, "too many responses")?);
        out.push(count(self.senders.len(), MAX_SENDERS, "too many senders")?);
        out.extend(self.challenged.iter().flat_map(|d| d.to_be_bytes()));
        out.extend(self.responses.iter().flat_map(|e| e.to_be_bytes()));
        for sender in &self.senders {
            sender.put(&mut out);
        }
        Ok(out)
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut rest = Rest(bytes);
        let session = u64::from_be_bytes(rest.take()?);
        let challenge = u64::from_be_bytes(rest.take()?);
        let counter = rest.varint()?;
        let interval_ms = interval(rest.varint_u32()?)?;
        let purpose = PURPOSES.get(usize::from(rest.byte()?));
        let purpose = *purpose.ok_or(Malformed("unknown purpose"))?;
        let challenged = count(rest.byte()?.into(), MAX_CHALLENGED, "too many challenged")?;
        let responses = count(rest.byte()?.into(), MAX_RESPONSES, "too many responses")?;
        let senders = count(rest.byte()?.into(), MAX_SENDERS, "too many senders")?;
        let report = Self {
            session,
            counter,
            challenge,
            interval_ms,
            purpose,
            challenged: rest.list(challenged, |rest| rest.take().map(u16::from_be_bytes))?,
            responses: rest.list(responses, |rest| rest.take().map(u64::from_be_bytes))?,
            senders: rest.list(senders, Sender::take)?,
        };
        if !rest.0.is_empty() {
            return Err(Malformed("bytes after the end"));
        }
        Ok(report)
    }
}

impl Sender {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(self.ca_state as u8 | (self.class as u8) << 3);
        // Demand plus one, so that `unlimited` is the shortest number instead of the longest.
        let demand = self.demand_kbit.wrapping_add(1);
        let numbers = [self.cwnd_segments, self.min_rtt_us, self.srtt_us, self.queue_bytes];
        for number in numbers
            .iter()
            .chain(&[self.delivery_rate_kbit, self.retransmits, demand])
        {
            put_varint(out, u64::from(*number));
        }
    }

    fn take(rest: &mut Rest) -> Result<Self, Malformed> {
        let kind = rest.byte()?;
        let place = |at: u8| usize::from(at & 7);
        if kind & 0xc0 != 0 {
            return Err(Malformed("a sender of a kind that this version does not know"));
        }
        Ok(Self {
            ca_state: *CaState::BY_NUMBER
                .get(place(kind))
                .ok_or(Malformed("unknown congestion-avoidance state"))?,
            class: *Class::ALL.get(place(kind >> 3)).ok_or(Malformed("unknown class"))?,
            cwnd_segments: rest.varint_u32()?,
            min_rtt_us: rest.varint_u32()?,
            srtt_us: rest.varint_u32()?,
            queue_bytes: rest.varint_u32()?,
            delivery_rate_kbit: rest.varint_u32()?,
            retransmits: rest.varint_u32()?,
            demand_kbit: rest.varint_u32()?.wrapping_sub(1),
        })
    }

    pub(super) fn encoded_bytes(&self) -> usize {
        let mut out = Vec::with_capacity(36);
        self.put(&mut out);
        out.len()
    }
}

fn interval(ms: u32) -> Result<u32, Malformed> {
    let is_possible = INTERVAL_RANGE_MS.contains(&ms);
    is_possible.then_some(ms).ok_or(Malformed("an impossible interval"))
}

fn count(number: usize, most: usize, excess: &'static str) -> Result<u8, Malformed> {
    (number <= most).then_some(number as u8).ok_or(Malformed(excess))
}

/// Seven bits a byte, the lowest first; the top bit says that another byte follows (LEB128).
fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// The unread rest.
struct Rest<'a>(&'a [u8]);

impl Rest<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, tail) = self.0.split_first_chunk().ok_or(Malformed("ends too early"))?;
        self.0 = tail;
        Ok(*head)
    }

    fn list<T>(&mut self, count: u8, read: impl Fn(&mut Self) -> Result<T, Malformed>) -> Result<Vec<T>, Malformed> {
        (0..count).map(|_| read(self)).collect()
    }

    fn byte(&mut self) -> Result<u8, Malformed> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if (bits << shift) >> shift != bits {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                let is_shortest = byte != 0 || shift == 0;
                return is_shortest
                    .then_some(value)
                    .ok_or(Malformed("a number longer than it need be"));
            }
        }
        Err(Malformed("a number too large"))
    }

    fn varint_u32(&mut self) -> Result<u32, Malformed> {
        self.varint()?.try_into().map_err(|_| Malformed("a number too large"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn varint(bytes: &[u8]) -> Result<u64, Malformed> {
        Rest(bytes).varint()
    }

    #[test]
    fn a_number_has_one_encoding() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX] {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            assert_eq!(varint(&out), Ok(value));
        }
        assert_eq!(varint(&[0x80, 0x00]), Err(Malformed("a number longer than it need be")));
        assert_eq!(varint(&[0xff; 9]), Err(Malformed("ends too early")));
        assert_eq!(
            varint(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02]),
            Err(Malformed("a number too large"))
        );
    }

    #[test]
    fn unlimited_demand_takes_one_byte() {
        let sender = Sender {
            cwnd_segments: 43,
            min_rtt_us: 256_000,
            srtt_us: 262_144,
            queue_bytes: 500_000,
            ca_state: CaState::Open,
            delivery_rate_kbit: 1_950,
            retransmits: 17,
            class: Class::Standard,
            demand_kbit: UNLIMITED_KBIT,
        };
        assert_eq!(sender.encoded_bytes(), 1 + 1 + 3 + 3 + 3 + 2 + 1 + 1);
    }
}
