// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The program as a user meets it: what it says when it cannot do what was asked, and that it undoes
//! everything however it ends. Needs root; each test makes its own network namespaces.
// A test prints and makes files as it likes: `clippy.toml` is for the program.
#![allow(clippy::disallowed_macros, clippy::disallowed_methods)]

#[cfg(test)]
#[allow(dead_code, reason = "shared by three test crates, none of which uses all of it")]
mod support;

#[cfg(test)]
mod daemon {
    mod admission;
    mod background;
    mod chain;
    mod check;
    mod classes;
    mod download;
    mod enforcement;
    mod environment;
    mod exec;
    mod executed;
    mod failures;
    mod focus;
    mod forwarded;
    mod hang;
    mod inherit;
    mod json;
    mod life;
    mod limits;
    mod links;
    mod live;
    mod locked;
    mod lookup;
    mod namespace;
    mod nice;
    mod order;
    mod owners;
    mod peers;
    mod queue;
    mod realtime;
    mod receive;
    mod recovery;
    mod shares;
    mod top;
    mod trial;
    mod upload;
    mod web;
    mod words;
}
