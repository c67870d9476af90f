// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel side against the real kernel: real sockets between network namespaces that each test makes for itself.
//! Needs root, iproute2 and a kernel with BTF; without them the tests fail and say so.

#[cfg(test)]
mod kernel {
    mod admission;
    mod cap;
    mod lab;
    mod monitor;
    mod schedule;
    mod task_watch;
}
