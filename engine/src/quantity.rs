// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Quantities as people write them on a command line: a number and its unit, as tc and systemd have them. Input: text.
//! Output: the value in the quantity's base unit, or what is wrong with the text. Configuration files have the unit in the
//! key's name.

/// One kind of quantity.
pub(crate) struct Quantity {
    /// With its article.
    pub noun: &'static str,
    /// Each with what one of it is in the base unit.
    pub units: &'static [(&'static str, f64)],
    /// What a correct one looks like.
    pub example: &'static str,
}

impl Quantity {
    /// `likely`: the unit that is probably meant where none is given.
    pub fn parse(&self, text: &str, likely: &str) -> Result<f64, String> {
        let unit_at = text
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(unit_at);
        let value: f64 = number.parse().map_err(|_| {
            format!(
                "`{text}` is not {}: write a number and its unit, as {}",
                self.noun, self.example
            )
        })?;
        if unit.is_empty() {
            return Err(format!("{number} has no unit; did you mean {number}{likely}?"));
        }
        let known = self.units.iter().find(|(name, _)| unit.eq_ignore_ascii_case(name));
        let (_, one) = known.ok_or_else(|| {
            let names: Vec<&str> = self.units.iter().map(|(name, _)| *name).collect();
            format!(
                "`{unit}` is not a unit of {}: use one of {}, as in {}",
                self.noun,
                names.join(", "),
                self.example
            )
        })?;
        Ok(value * one)
    }
}
