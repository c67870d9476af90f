// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether each figure of the documentation is that of a result.
//! Input: README.md, CONTRIBUTING.md, CHANGELOG.md and docs/. Output: a failure for each figure that differs.
//!
//! A figure is a reference link, `[98%][kept]`, whose definition points to a result's page and has an expression as its title:
//!
//!     [kept]: ../../bench/results/yield/README.md "100 * fifo-100/giveway.foreground_mbit / fifo-100/foreground.foreground_mbit"
//!
//! The expression is over `variants` of the `result.json` beside that page: VARIANT.METRIC, numbers, `+ - * / ( )`, and
//! `min(…)`, `max(…)`, `median(…)` of a list. Names of variants have `/`, `-` and `+` in them, so a name goes on to
//! the next blank, comma or bracket: operators have blanks around them.
//!
//! The first number of the link's text has to be the expression's value, rounded to as many decimals as the text has. A `%` is a
//! word like `ms`: it changes nothing, so a ratio that the text gives in percent is multiplied by 100 in the expression. Commas
//! between thousands are left out.

#[cfg(test)]
mod figures {
    pub mod expression;
    pub mod page;
    mod tests;
}
