// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The loader's error value says no more than "Invalid argument"; what it means stands in the lines that libbpf
//! prints. [`explain`] runs one step of loading and puts those lines into its error.

use std::cell::RefCell;
use std::sync::Once;

use anyhow::{Result, anyhow};
use libbpf_rs::PrintLevel;

/// A verifier's log can have thousands of lines; the reason stands at its end.
const LINES_KEPT: usize = 25;

thread_local! {
    static LINES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Runs one step of loading, named `doing` ("load the flow monitor").
pub fn explain<T>(doing: &str, step: impl FnOnce() -> libbpf_rs::Result<T>) -> Result<T> {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        libbpf_rs::set_print(Some((PrintLevel::Warn, keep)));
    });
    LINES.take();
    step().map_err(|error| {
        let lines = LINES.take();
        if lines.is_empty() {
            anyhow!("cannot {doing}: {error}")
        } else {
            anyhow!("{}", lines.join("\n")).context(format!("cannot {doing}: {error}"))
        }
    })
}

/// libbpf calls this in the thread that loads.
fn keep(_level: PrintLevel, message: String) {
    LINES.with_borrow_mut(|lines| {
        lines.extend(message.lines().map(str::to_owned));
        let surplus = lines.len().saturating_sub(LINES_KEPT);
        lines.drain(..surplus);
    });
}

/// The loader's own log stays out: its last word is in the outer message.
pub fn one_line(error: &anyhow::Error) -> String {
    let causes = error
        .chain()
        .map(ToString::to_string)
        .filter(|cause| !cause.contains('\n'));
    causes.collect::<Vec<_>>().join(": ")
}
