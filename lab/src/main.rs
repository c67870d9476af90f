// SPDX-License-Identifier: Apache-2.0 OR MIT
mod medium;

fn main() -> std::process::ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("medium") => medium::run(),
        _ => std::process::ExitCode::from(2),
    }
}
