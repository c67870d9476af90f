// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The seal around a report: XChaCha20-Poly1305 under the group's key.
//!
//! In: plain bytes, or a datagram from anyone. Out: a datagram, or the bytes that a holder of the key sealed, or the
//! reason for a refusal. The clear header (magic, version, key id, nonce) is authenticated too. A nonce is made of
//! randomness and of the content, so that two contents never share one, even with the same randomness. Never: a key in
//! a message, an error or a log; a secret's text leaves only through [`Key::reveal`].

use blake2::Blake2bMac;
use blake2::digest::consts::U24;
use blake2::digest::{FixedOutput, Update};
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use rand_chacha::rand_core::CryptoRng;

use super::DatagramRefusal;

/// The longest datagram; a receiver's buffer must hold one byte more, to notice longer ones.
pub const MAX_DATAGRAM_BYTES: usize = 512;
/// The version of the datagram that this code writes, and the only one that it reads.
pub const VERSION: u8 = 2;
/// The longest content that fits.
pub const MAX_CONTENT_BYTES: usize = MAX_DATAGRAM_BYTES - OVERHEAD_BYTES;
/// Header and tag.
pub const OVERHEAD_BYTES: usize = HEADER_BYTES + TAG_BYTES;

/// Of every version.
pub const MAGIC: [u8; 3] = *b"gvw";
const KEY_ID_BYTES: usize = 4;
const NONCE_BYTES: usize = 24;
const HEADER_BYTES: usize = MAGIC.len() + 1 + KEY_ID_BYTES + NONCE_BYTES;
pub(super) const TAG_BYTES: usize = 16;
const SECRET_BYTES: usize = 32;
/// Separates nonce derivation from other uses of the key (BLAKE2's personalization).
const NONCE_LABEL: &[u8; 16] = b"giveway nonce 1\0";
const KEY_PREFIX: &str = "giveway-key-1:";

/// Why a key file was refused. The file's content is never part of the message.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum KeyError {
    #[error("it has no key; `giveway key new` makes one")]
    NoKey,
    #[error("line {line}: a third key; at most two are valid during a change")]
    TooMany { line: usize },
    #[error("line {line}: not a key of this version; it must start with `{KEY_PREFIX}`")]
    Prefix { line: usize },
    #[error("line {line}: {digits} characters after `{KEY_PREFIX}` instead of 64")]
    Length { line: usize, digits: usize },
    #[error("line {line}: the character at place {place} after `{KEY_PREFIX}` is not a hexadecimal digit")]
    Digit { line: usize, place: usize },
    #[error("line {line}: the same key again")]
    Twice { line: usize },
}

/// A group's secret. A device that holds it is a member.
pub struct Key {
    secret: [u8; SECRET_BYTES],
    id: [u8; KEY_ID_BYTES],
}

impl Key {
    pub fn from_secret(secret: [u8; SECRET_BYTES]) -> Self {
        // The tag of a constant message under a nonce used for nothing else: it identifies the key and, as a tag,
        // reveals nothing about it.
        let label = Payload {
            msg: &[],
            aad: b"giveway key id",
        };
        let tag = cipher(&secret)
            .encrypt(&XNonce::from([0; NONCE_BYTES]), label)
            .expect("an empty message fits");
        Self {
            secret,
            id: [tag[0], tag[1], tag[2], tag[3]],
        }
    }

    /// One line of a key file, without the line end.
    pub fn reveal(&self) -> String {
        let digits = self.secret.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        let digits = digits.filter_map(|digit| char::from_digit(digit.into(), 16));
        KEY_PREFIX.chars().chain(digits).collect()
    }

    /// Identifies the key, in clear in every datagram, without revealing anything about it.
    pub fn id(&self) -> [u8; KEY_ID_BYTES] {
        self.id
    }

    fn parse(text: &str, line: usize) -> Result<Self, KeyError> {
        let digits = text.strip_prefix(KEY_PREFIX).ok_or(KeyError::Prefix { line })?;
        let count = digits.chars().count();
        if count != 2 * SECRET_BYTES {
            return Err(KeyError::Length { line, digits: count });
        }
        let mut secret = [0; SECRET_BYTES];
        for (at, digit) in digits.chars().enumerate() {
            let value = digit.to_digit(16).ok_or(KeyError::Digit { line, place: at + 1 })?;
            secret[at / 2] = secret[at / 2] << 4 | value as u8;
        }
        Ok(Self::from_secret(secret))
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "Key({:08x})", u32::from_be_bytes(self.id))
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        self.secret.fill(0);
        // Keeps the compiler from eliding the write, as far as possible without `unsafe`.
        std::hint::black_box(&self.secret);
    }
}

/// The active keys: the first seals, all open. Two while a group changes its key, else one.
#[derive(Debug)]
pub struct Keyring(Vec<Key>);

impl Keyring {
    /// As in a key file.
    #[cfg(any(test, feature = "corpus"))]
    pub fn reveal(&self) -> String {
        self.0.iter().map(|key| key.reveal() + "\n").collect()
    }

    pub fn new(key: Key) -> Self {
        Self(vec![key])
    }

    /// A key file: one key a line; empty lines and those that start with `#` are skipped.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let mut keys: Vec<Key> = Vec::new();
        for (at, text) in text.lines().map(str::trim).enumerate() {
            let line = at + 1;
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            if keys.len() == 2 {
                return Err(KeyError::TooMany { line });
            }
            let key = Key::parse(text, line)?;
            if keys.iter().any(|other| other.secret == key.secret) {
                return Err(KeyError::Twice { line });
            }
            keys.push(key);
        }
        if keys.is_empty() {
            Err(KeyError::NoKey)
        } else {
            Ok(Self(keys))
        }
    }

    /// The keys' ids, the sealing one first.
    pub fn ids(&self) -> impl Iterator<Item = [u8; KEY_ID_BYTES]> {
        self.0.iter().map(Key::id)
    }

    /// `None` if the content is too long.
    pub fn seal(&self, rng: &mut impl CryptoRng, content: &[u8]) -> Option<Vec<u8>> {
        let key = self.0.first()?;
        let mut random = [0; 32];
        rng.fill_bytes(&mut random);
        let nonce = nonce_for(&key.secret, &random, content)?;
        let mut datagram = Vec::with_capacity(OVERHEAD_BYTES + content.len());
        datagram.extend(MAGIC);
        datagram.push(VERSION);
        datagram.extend(key.id);
        datagram.extend(nonce);
        let payload = Payload {
            msg: content,
            aad: &datagram,
        };
        let sealed = cipher(&key.secret).encrypt(&XNonce::from(nonce), payload).ok()?;
        datagram.extend(sealed);
        (datagram.len() <= MAX_DATAGRAM_BYTES).then_some(datagram)
    }

    pub fn open(&self, datagram: &[u8]) -> Result<Vec<u8>, DatagramRefusal> {
        let (id, nonce) = read_header(datagram)?;
        let (header, sealed) = datagram.split_at(HEADER_BYTES);
        let mut named = self.0.iter().filter(|key| key.id == id).peekable();
        named.peek().ok_or(DatagramRefusal::UnknownKey)?;
        named
            .find_map(|key| {
                let (msg, aad) = (sealed, header);
                cipher(&key.secret)
                    .decrypt(&XNonce::from(nonce), Payload { msg, aad })
                    .ok()
            })
            .ok_or(DatagramRefusal::Forged)
    }
}

/// The version is checked before the length, so that every version is recognised.
fn read_header(datagram: &[u8]) -> Result<([u8; KEY_ID_BYTES], [u8; NONCE_BYTES]), DatagramRefusal> {
    let short = DatagramRefusal::TooShort(datagram.len());
    let (magic, rest) = datagram.split_first_chunk::<{ MAGIC.len() }>().ok_or(short)?;
    let (version, rest) = rest.split_first().ok_or(short)?;
    match *version {
        _ if *magic != MAGIC => return Err(DatagramRefusal::NotOurs),
        0 => return Err(DatagramRefusal::NotOurs),
        VERSION => {}
        older @ ..VERSION => return Err(DatagramRefusal::OlderVersion(older)),
        future => return Err(DatagramRefusal::FutureVersion(future)),
    }
    if datagram.len() > MAX_DATAGRAM_BYTES {
        return Err(DatagramRefusal::TooLong(datagram.len()));
    }
    let (id, rest) = rest.split_first_chunk().ok_or(short)?;
    let (nonce, sealed) = rest.split_first_chunk().ok_or(short)?;
    if sealed.len() < TAG_BYTES {
        Err(short)
    } else {
        Ok((*id, *nonce))
    }
}

/// Pseudorandom without the key, and different for each content. A machine that is cloned, or restored from a snapshot,
/// draws the same randomness again for other content: with a nonce of randomness alone, the one-time key of Poly1305
/// follows from two such datagrams. Cf. the synthetic IV of RFC 5297.
fn nonce_for(secret: &[u8; SECRET_BYTES], random: &[u8; 32], content: &[u8]) -> Option<[u8; NONCE_BYTES]> {
    let mut mac = Blake2bMac::<U24>::new_with_salt_and_personal(Some(secret), &[], NONCE_LABEL).ok()?;
    mac.update(random);
    mac.update(content);
    Some(mac.finalize_fixed().into())
}

/// Identifies a sealed datagram.
pub(super) fn tag_of(datagram: &[u8]) -> Option<[u8; TAG_BYTES]> {
    datagram.last_chunk().copied()
}

fn cipher(secret: &[u8; SECRET_BYTES]) -> XChaCha20Poly1305 {
    XChaCha20Poly1305::new(secret.into())
}
