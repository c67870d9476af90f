// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a figure is made of. Input: a text and the numbers of a result by VARIANT.METRIC. Output: its value, or what is wrong.

use std::collections::BTreeMap;

pub type Numbers = BTreeMap<String, f64>;

pub fn evaluate(text: &str, numbers: &Numbers) -> Result<f64, String> {
    let mut parser = Parser { rest: text, numbers };
    let value = parser.sum()?;
    parser.skip_blanks();
    match parser.rest {
        "" if value.is_finite() => Ok(value),
        "" => Err("has no finite value".into()),
        rest => Err(format!("`{rest}` is no operator")),
    }
}

struct Parser<'a> {
    rest: &'a str,
    numbers: &'a Numbers,
}

impl<'a> Parser<'a> {
    fn skip_blanks(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn takes(&mut self, token: &str) -> bool {
        self.skip_blanks();
        let rest = self.rest.strip_prefix(token);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn sum(&mut self) -> Result<f64, String> {
        let mut value = self.product()?;
        loop {
            if self.takes("+") {
                value += self.product()?;
            } else if self.takes("-") {
                value -= self.product()?;
            } else {
                return Ok(value);
            }
        }
    }

    fn product(&mut self) -> Result<f64, String> {
        let mut value = self.term()?;
        loop {
            if self.takes("*") {
                value *= self.term()?;
            } else if self.takes("/") {
                value /= self.term()?;
            } else {
                return Ok(value);
            }
        }
    }

    fn term(&mut self) -> Result<f64, String> {
        self.skip_blanks();
        let word = self.word();
        if let Some(value) = self.numbers.get(word) {
            self.rest = &self.rest[word.len()..];
            return Ok(*value);
        }
        if self.takes("(") {
            let value = self.sum()?;
            return self.closed(value);
        }
        for (name, of) in [("min(", min as fn(Vec<f64>) -> f64), ("max(", max), ("median(", median)] {
            if self.takes(name) {
                let mut values = vec![self.sum()?];
                while self.takes(",") {
                    values.push(self.sum()?);
                }
                return self.closed(of(values));
            }
        }
        let end = self
            .rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(self.rest.len());
        let (number, rest) = self.rest.split_at(end);
        // `2x.y` is a name that is not there, and no number with something behind it.
        let ends = rest.is_empty() || rest.starts_with([' ', ',', ')']);
        match number.parse() {
            Ok(value) if ends => {
                self.rest = rest;
                Ok(value)
            }
            _ => Err(format!("the result has no `{}`", self.word())),
        }
    }

    fn closed(&mut self, value: f64) -> Result<f64, String> {
        if self.takes(")") {
            Ok(value)
        } else {
            Err(format!("`)` is missing before `{}`", self.rest))
        }
    }

    /// A name: up to what cannot be in one. Operators can, so they have a blank before them.
    fn word(&self) -> &'a str {
        let end = self.rest.find([' ', ',', '(', ')']).unwrap_or(self.rest.len());
        &self.rest[..end]
    }
}

fn min(values: Vec<f64>) -> f64 {
    values.into_iter().fold(f64::INFINITY, f64::min)
}

fn max(values: Vec<f64>) -> f64 {
    values.into_iter().fold(f64::NEG_INFINITY, f64::max)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 {
        values[middle]
    } else {
        (values[middle - 1] + values[middle]) / 2.0
    }
}
