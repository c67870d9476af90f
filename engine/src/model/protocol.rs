// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Properties of packets: protocol, addresses and marks.

use std::fmt;
use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    #[default]
    Udp,
    Tcp,
}

impl Protocol {
    /// As in the IP header.
    pub fn number(self) -> u8 {
        match self {
            Self::Udp => 17,
            Self::Tcp => 6,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Udp => "udp",
            Self::Tcp => "tcp",
        })
    }
}

/// An address, or a prefix: `192.0.2.0/24`.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub struct Prefix {
    address: IpAddr,
    bits: u8,
}

impl Prefix {
    /// None: an address of this kind has fewer bits.
    pub fn new(address: IpAddr, bits: u8) -> Option<Self> {
        (bits <= width(address)).then_some(Self { address, bits })
    }

    /// The address, where it is a single one.
    pub fn single(&self) -> Option<IpAddr> {
        (self.bits == width(self.address)).then_some(self.address)
    }

    /// The address's bytes, and a mask of the bits that count. IPv4 has the first four.
    pub fn masked(&self) -> ([u8; 16], [u8; 16]) {
        let ignored = u32::from(128 - self.bits);
        let mask = u128::MAX.checked_shl(ignored).unwrap_or(0);
        let unused = u32::from(128 - width(self.address));
        let bits = (number(self.address) << unused) & mask;
        (bits.to_be_bytes(), mask.to_be_bytes())
    }

    pub fn is_ipv4(&self) -> bool {
        self.address.is_ipv4()
    }

    /// IPv4-mapped IPv6 addresses count as IPv4.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        let differing = number(self.address) ^ number(address);
        let ignored = u32::from(width(self.address) - self.bits);
        width(address) == width(self.address) && differing.checked_shr(ignored).unwrap_or(0) == 0
    }
}

fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

impl TryFrom<String> for Prefix {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let (address, bits) = text
            .split_once('/')
            .map_or((text.as_str(), None), |(a, b)| (a, Some(b)));
        let read = || {
            let written: IpAddr = address.parse().ok()?;
            let bits = bits.map_or(Some(width(written)), |bits| bits.parse().ok())?;
            let address = written.to_canonical();
            // The first 96 bits of an IPv4-mapped IPv6 address only identify it as one.
            let own = bits.checked_sub(width(written) - width(address))?;
            (own <= width(address)).then_some(Self { address, bits: own })
        };
        read().ok_or_else(|| format!("`{text}` is neither an IPv4 or IPv6 address nor a prefix such as 192.0.2.0/24"))
    }
}

impl From<Prefix> for String {
    fn from(prefix: Prefix) -> Self {
        prefix.to_string()
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.single() {
            Some(address) => address.fmt(f),
            None => write!(f, "{}/{}", self.address, self.bits),
        }
    }
}

/// A differentiated services code point (RFC 2474, RFC 8622).
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct Dscp(u8);

impl Dscp {
    pub const LE: Self = Self(1);
    pub const CS1: Self = Self(8);

    /// Its lower six bits.
    pub const fn new(number: u8) -> Self {
        Self(number & 0x3f)
    }

    pub fn number(self) -> u8 {
        self.0
    }

    fn by_name(name: &str) -> Option<u8> {
        let name = name.to_ascii_uppercase();
        let digits = |prefix: &str| name.strip_prefix(prefix).map(str::as_bytes);
        match name.as_str() {
            "LE" => return Some(1),
            "EF" => return Some(46),
            "VA" => return Some(44),
            _ => {}
        }
        match (digits("CS"), digits("AF")) {
            (Some([class @ b'0'..=b'7']), _) => Some((class - b'0') << 3),
            (_, Some([class @ b'1'..=b'4', drop @ b'1'..=b'3'])) => Some((class - b'0') << 3 | (drop - b'0') << 1),
            _ => name.parse().ok().filter(|number| *number < 64),
        }
    }
}

impl TryFrom<String> for Dscp {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let found = Self::by_name(&text).map(Self);
        found.ok_or_else(|| {
            format!("`{text}` is neither the name of a DSCP, such as CS1, AF21 or EF, nor one from 0 to 63")
        })
    }
}

impl From<Dscp> for String {
    fn from(dscp: Dscp) -> Self {
        dscp.to_string()
    }
}

impl fmt::Display for Dscp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            1 => f.write_str("LE"),
            44 => f.write_str("VA"),
            46 => f.write_str("EF"),
            n if n % 8 == 0 => write!(f, "CS{}", n / 8),
            n if (1..=4).contains(&(n / 8)) && [2, 4, 6].contains(&(n % 8)) => write!(f, "AF{}{}", n / 8, n % 8 / 2),
            n => write!(f, "{n}"),
        }
    }
}

/// The mark of packets.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub enum Mark {
    /// The application's.
    #[default]
    Keep,
    Write(Dscp),
}

const KEEP: &str = "keep";

impl TryFrom<String> for Mark {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.as_str() {
            KEEP => Ok(Self::Keep),
            _ => Dscp::try_from(text)
                .map(Self::Write)
                .map_err(|problem| format!("{problem}; `{KEEP}` leaves it as it is")),
        }
    }
}

impl From<Mark> for String {
    fn from(mark: Mark) -> Self {
        match mark {
            Mark::Keep => KEEP.to_owned(),
            Mark::Write(dscp) => dscp.into(),
        }
    }
}

#[cfg(test)]
mod tests;
