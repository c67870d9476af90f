// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The program as a user meets it: what it says when it cannot do what was asked, and that it undoes
//! everything however it ends. Needs root; each test makes its own network namespaces.

#[cfg(test)]
#[path = "kernel/lab.rs"]
#[allow(dead_code, reason = "shared with the kernel's tests, which use all of it")]
mod lab;

#[cfg(test)]
mod daemon {
    mod admission;
    mod chain;
    mod exec;
    mod failures;
    mod life;
    mod process;
    mod queue;
    mod realtime;
}
