// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A plan as a row of a table.
//! Input: variants with what is expected of each, what is expected beside that, figures, columns. Output: the plan.

use anyhow::Result;

use crate::parameters::Parameters;
use crate::scenario::{Check, Plan, Plans, Plot, Variant};

pub struct Table {
    pub variants: fn(&Parameters) -> Result<Vec<Variant>>,
    pub bounds: fn(&Parameters) -> Result<Vec<Check>>,
    /// Of the names of all variants.
    pub plots: fn(&[String]) -> Vec<Plot>,
    pub columns: &'static str,
}

impl Table {
    /// What a row may leave out.
    pub const ROW: Self = Self {
        variants: |_| Ok(Vec::new()),
        bounds: |_| Ok(Vec::new()),
        plots: |_| Vec::new(),
        columns: "",
    };
}

impl Plans for Table {
    fn at(&self, parameters: &Parameters) -> Result<Plan> {
        let mut variants = (self.variants)(parameters)?;
        let of_each = variants
            .iter_mut()
            .flat_map(|variant| std::mem::take(&mut variant.checks));
        let mut checks: Vec<_> = of_each.collect();
        checks.extend((self.bounds)(parameters)?);
        let names: Vec<_> = variants.iter().map(|variant| variant.name.clone()).collect();
        Ok(Plan {
            variants,
            checks,
            plots: (self.plots)(&names),
            columns: self.columns,
        })
    }
}
