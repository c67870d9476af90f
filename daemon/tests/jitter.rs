// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway jitter` on the real kernel: planted culprits are found, its figures agree with cyclictest's, and it leaves
//! nothing behind. Needs root, a kernel with BTF and rt-tests; without them the tests fail and say so.
// A test prints and makes files as it likes: `clippy.toml` is for the program.
#![allow(clippy::disallowed_macros, clippy::disallowed_methods)]

#[cfg(test)]
#[allow(dead_code, reason = "shared by three test crates, none of which uses all of it")]
mod support;

#[cfg(test)]
mod jitter {
    mod agreement;
    mod culprits;
    mod life;
    mod plant;
    mod process;
}
