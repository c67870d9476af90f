// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Texts that people read say the field's words: the docs, and the strings of the program. Code for tests is free.

mod words {
    mod docs;
    mod patterns;
    mod strings;
}
