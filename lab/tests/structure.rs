// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What holds for the source of `engine`, `daemon` and `lab` as a whole, which no compiler sees to. Code for tests is free.

mod structure {
    mod circles;
    mod graph;
    mod names;
    mod source;
    mod types;
}
