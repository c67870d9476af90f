// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel side against the real kernel: real sockets between network namespaces that each test makes for itself.
//! Needs root, iproute2 and a kernel with BTF; without them the tests fail and say so.
// A test prints and makes files as it likes: `clippy.toml` is for the program.
#![allow(clippy::disallowed_macros, clippy::disallowed_methods)]

#[cfg(test)]
#[allow(dead_code, reason = "shared by three test crates, none of which uses all of it")]
mod support;

#[cfg(test)]
mod kernel {
    mod admission;
    mod cap;
    mod donation;
    mod monitor;
    mod pace;
    mod receive;
    mod scavenger;
    mod schedule;
    mod task_watch;
}
