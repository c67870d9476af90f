// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Values as JSON and back: a struct by its fields, an enumeration by its kind. Default values are left out.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

/// The form of an error, whose text is for people.
const FAILED: &str = "failed";

pub trait Written {
    fn write(&self) -> Value;

    /// Left out when written, and restored when read.
    fn is_default(&self) -> bool {
        false
    }
}

pub trait Readable: Written + Sized {
    fn read(value: &Value) -> Result<Self, String>;
}

/// A struct: each field under its name, except texts for people, after a `;`.
macro_rules! fields {
    ($($of:ty { $($field:ident),* $(,)? $(; $text:ident)? })*) => {$(
        impl $crate::corpus::plain::Written for $of {
            fn write(&self) -> serde_json::Value {
                let mut object = serde_json::Map::new();
                $($crate::corpus::plain::put(&mut object, stringify!($field), &self.$field);)*
                serde_json::Value::Object(object)
            }
        }
        impl $crate::corpus::plain::Readable for $of {
            fn read(value: &serde_json::Value) -> Result<Self, String> {
                Ok(Self {
                    $($field: $crate::corpus::plain::get(value, stringify!($field))?,)*
                    $($text: String::new(),)?
                })
            }
        }
    )*};
}

/// An enumeration: its kind alone, or an object with the kind's fields. Unnamed fields get a name here.
macro_rules! kinds {
    ($($of:ty $(, read as $read:ty)? {
        $($kind:ident $({ $($field:ident),* $(; $text:ident)? })? $(( $($at:ident),* ))?,)*
    })*) => {$(
        kinds!(written $of { $($kind $({ $($field),* $(; $text)? })? $(( $($at),* ))?,)* });
        kinds!(read $of $(, $read)? { $($kind $({ $($field),* $(; $text)? })? $(( $($at),* ))?,)* });
    )*};
    (written $of:ty { $($kind:ident $({ $($field:ident),* $(; $text:ident)? })? $(( $($at:ident),* ))?,)* }) => {
        impl $crate::corpus::plain::Written for $of {
            fn write(&self) -> serde_json::Value {
                match self {
                    $(Self::$kind $({ $($field,)* $($text: _)? })? $(( $($at),* ))? => {
                        #[allow(unused_mut)]
                        let mut object = serde_json::Map::new();
                        $($($crate::corpus::plain::put(&mut object, stringify!($field), $field);)*)?
                        $($($crate::corpus::plain::put(&mut object, stringify!($at), $at);)*)?
                        $crate::corpus::plain::kind(stringify!($kind), object)
                    })*
                }
            }
        }
    };
    (read $of:ty, $read:ty { $($rest:tt)* }) => { kinds!(read $read { $($rest)* }); };
    (read $of:ty { $($kind:ident $({ $($field:ident),* $(; $text:ident)? })? $(( $($at:ident),* ))?,)* }) => {
        impl $crate::corpus::plain::Readable for $of {
            fn read(value: &serde_json::Value) -> Result<Self, String> {
                let (kind, _of) = $crate::corpus::plain::kind_of(value)?;
                Ok(match kind {
                    $(stringify!($kind) => Self::$kind
                        $({
                            $($field: $crate::corpus::plain::get(_of, stringify!($field))?,)*
                            $($text: String::new(),)?
                        })?
                        $(( $($crate::corpus::plain::get(_of, stringify!($at))?),* ))?,)*
                    _ => return Err(format!("no kind `{kind}` of {}", stringify!($of))),
                })
            }
        }
    };
}

pub(super) use {fields, kinds};

pub fn put(object: &mut Map<String, Value>, name: &str, value: &impl Written) {
    if !value.is_default() {
        object.insert(name.to_owned(), value.write());
    }
}

pub fn get<T: Readable>(object: &Value, name: &str) -> Result<T, String> {
    T::read(object.get(name).unwrap_or(&Value::Null)).map_err(|problem| format!("{name}: {problem}"))
}

pub fn kind(name: &str, fields: Map<String, Value>) -> Value {
    match fields.is_empty() {
        true => name.into(),
        false => Map::from_iter([(name.to_owned(), Value::Object(fields))]).into(),
    }
}

pub fn kind_of(value: &Value) -> Result<(&str, &Value), String> {
    let with_fields = || value.as_object()?.iter().next().map(|(name, of)| (&**name, of));
    let alone = || value.as_str().map(|name| (name, &Value::Null));
    alone().or_else(with_fields).ok_or_else(|| unlike("a kind", value))
}

pub fn unlike(what: &str, value: &Value) -> String {
    format!("not {what}: {value}")
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl Written for $number {
            fn write(&self) -> Value {
                (*self).into()
            }

            fn is_default(&self) -> bool {
                *self == 0
            }
        }
        impl Readable for $number {
            fn read(value: &Value) -> Result<Self, String> {
                let number = if value.is_null() { Some(0) } else { value.as_u64() };
                number.and_then(|number| Self::try_from(number).ok()).ok_or_else(|| unlike(stringify!($number), value))
            }
        }
    )*};
}
numbers!(u8, u16, u32, u64);

macro_rules! texts {
    ($($of:ty),*) => {$(
        impl Written for $of {
            fn write(&self) -> Value {
                self.to_string().into()
            }
        }
        impl Readable for $of {
            fn read(value: &Value) -> Result<Self, String> {
                let text = value.as_str().and_then(|text| text.parse().ok());
                text.ok_or_else(|| unlike(stringify!($of), value))
            }
        }
    )*};
}
texts!(IpAddr, Ipv4Addr, SocketAddr);

impl Written for usize {
    fn write(&self) -> Value {
        (*self).into()
    }
}

impl Written for i32 {
    fn write(&self) -> Value {
        (*self).into()
    }
}

impl Readable for i32 {
    fn read(value: &Value) -> Result<Self, String> {
        let number = value.as_i64().and_then(|number| Self::try_from(number).ok());
        number.ok_or_else(|| unlike("i32", value))
    }
}

impl Written for f64 {
    fn write(&self) -> Value {
        (*self).into()
    }
}

impl Readable for f64 {
    fn read(value: &Value) -> Result<Self, String> {
        value.as_f64().ok_or_else(|| unlike("a number", value))
    }
}

impl Written for bool {
    fn write(&self) -> Value {
        (*self).into()
    }

    fn is_default(&self) -> bool {
        !self
    }
}

impl Readable for bool {
    fn read(value: &Value) -> Result<Self, String> {
        Ok(value.as_bool().unwrap_or_default())
    }
}

impl Written for String {
    fn write(&self) -> Value {
        self.as_str().into()
    }

    fn is_default(&self) -> bool {
        self.is_empty()
    }
}

impl Readable for String {
    fn read(value: &Value) -> Result<Self, String> {
        Ok(value.as_str().unwrap_or_default().to_owned())
    }
}

impl Written for Arc<str> {
    fn write(&self) -> Value {
        (**self).into()
    }
}

impl Readable for Arc<str> {
    fn read(value: &Value) -> Result<Self, String> {
        String::read(value).map(Into::into)
    }
}

/// Nanoseconds.
impl Written for Duration {
    fn write(&self) -> Value {
        (self.as_nanos() as u64).into()
    }

    fn is_default(&self) -> bool {
        self.is_zero()
    }
}

impl Readable for Duration {
    fn read(value: &Value) -> Result<Self, String> {
        u64::read(value).map(Self::from_nanos)
    }
}

impl Written for () {
    fn write(&self) -> Value {
        true.into()
    }
}

impl Readable for () {
    fn read(_: &Value) -> Result<Self, String> {
        Ok(())
    }
}

impl<T: Written> Written for Option<T> {
    fn write(&self) -> Value {
        self.as_ref().map_or(Value::Null, Written::write)
    }

    fn is_default(&self) -> bool {
        self.is_none()
    }
}

impl<T: Readable> Readable for Option<T> {
    fn read(value: &Value) -> Result<Self, String> {
        if value.is_null() {
            Ok(None)
        } else {
            T::read(value).map(Some)
        }
    }
}

macro_rules! through {
    ($($pointer:ident),*) => {$(
        impl<T: Written> Written for $pointer<T> {
            fn write(&self) -> Value {
                (**self).write()
            }
        }
        impl<T: Readable> Readable for $pointer<T> {
            fn read(value: &Value) -> Result<Self, String> {
                T::read(value).map(Self::new)
            }
        }
    )*};
}
through!(Arc);

fn list<'a, T: Written + 'a>(items: impl IntoIterator<Item = &'a T>) -> Value {
    items.into_iter().map(Written::write).collect::<Vec<_>>().into()
}

fn items(value: &Value) -> Result<&[Value], String> {
    if value.is_null() {
        Ok(&[])
    } else {
        value
            .as_array()
            .map(Vec::as_slice)
            .ok_or_else(|| unlike("a list", value))
    }
}

impl<T: Written> Written for Vec<T> {
    fn write(&self) -> Value {
        list(self)
    }

    fn is_default(&self) -> bool {
        self.is_empty()
    }
}

impl<T: Readable> Readable for Vec<T> {
    fn read(value: &Value) -> Result<Self, String> {
        items(value)?.iter().map(T::read).collect()
    }
}

impl<T: Written> Written for BTreeSet<T> {
    fn write(&self) -> Value {
        list(self)
    }

    fn is_default(&self) -> bool {
        self.is_empty()
    }
}

impl<T: Readable + Ord> Readable for BTreeSet<T> {
    fn read(value: &Value) -> Result<Self, String> {
        items(value)?.iter().map(T::read).collect()
    }
}

/// As a list of pairs.
impl<K: Written, V: Written> Written for BTreeMap<K, V> {
    fn write(&self) -> Value {
        let pairs = self.iter().map(|(key, value)| vec![key.write(), value.write()]);
        pairs.map(Value::from).collect::<Vec<_>>().into()
    }

    fn is_default(&self) -> bool {
        self.is_empty()
    }
}

impl<K: Readable + Ord, V: Readable> Readable for BTreeMap<K, V> {
    fn read(value: &Value) -> Result<Self, String> {
        items(value)?.iter().map(<(K, V)>::read).collect()
    }
}

impl<A: Written, B: Written> Written for (A, B) {
    fn write(&self) -> Value {
        vec![self.0.write(), self.1.write()].into()
    }
}

impl<A: Readable, B: Readable> Readable for (A, B) {
    fn read(value: &Value) -> Result<Self, String> {
        match items(value)? {
            [a, b] => Ok((A::read(a)?, B::read(b)?)),
            _ => Err(unlike("a pair", value)),
        }
    }
}

impl<A: Written, B: Written, C: Written> Written for (A, B, C) {
    fn write(&self) -> Value {
        vec![self.0.write(), self.1.write(), self.2.write()].into()
    }
}

impl<A: Readable, B: Readable, C: Readable> Readable for (A, B, C) {
    fn read(value: &Value) -> Result<Self, String> {
        match items(value)? {
            [a, b, c] => Ok((A::read(a)?, B::read(b)?, C::read(c)?)),
            _ => Err(unlike("a triple", value)),
        }
    }
}

impl<T: Written> Written for [T; 2] {
    fn write(&self) -> Value {
        list(self)
    }
}

impl<T: Readable> Readable for [T; 2] {
    fn read(value: &Value) -> Result<Self, String> {
        Vec::read(value)?.try_into().map_err(|_| unlike("a pair", value))
    }
}

impl<T: Written> Written for Result<T, String> {
    fn write(&self) -> Value {
        self.as_ref().map_or(FAILED.into(), |value| {
            Map::from_iter([("ok".to_owned(), value.write())]).into()
        })
    }
}

impl<T: Readable> Readable for Result<T, String> {
    fn read(value: &Value) -> Result<Self, String> {
        match value.get("ok") {
            Some(value) => T::read(value).map(Ok),
            None => Ok(Err(FAILED.to_owned())),
        }
    }
}

/// By its name or text, as users write it.
pub fn by_text<T: Display>(value: &T) -> Value {
    value.to_string().into()
}

pub fn hex(bytes: &[u8]) -> String {
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.filter_map(|digit| char::from_digit(digit.into(), 16)).collect()
}

pub fn bytes(value: &Value) -> Result<Vec<u8>, String> {
    let text = value.as_str().unwrap_or_default();
    let digits: Option<Vec<u8>> = text
        .chars()
        .map(|digit| digit.to_digit(16).map(|digit| digit as u8))
        .collect();
    let digits = digits.ok_or_else(|| unlike("hexadecimal digits", value))?;
    Ok(digits
        .chunks(2)
        .map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit))
        .collect())
}
