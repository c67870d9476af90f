// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A file that `giveway plot` is given.
//!
//! Checked: a record is the same when it is written and read again; a log is refused, or can be drawn.
#![no_main]

use std::path::Path;

use giveway::commands::plot::{chart, series};
use giveway_engine::record::{Header, Record};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|file: &[u8]| {
    for line in file.split(|byte| *byte == b'\n') {
        if let Ok(record) = serde_json::from_slice::<Record>(line) {
            let written = serde_json::to_vec(&record).expect("a record is written");
            assert_eq!(
                serde_json::from_slice::<Record>(&written).expect("what was written"),
                record
            );
        }
        let _ = serde_json::from_slice::<Header>(line);
    }
    if let Ok(log) = series::read(file) {
        log.left_out_text();
        let _ = chart::draw(&log, Path::new("/dev/null"));
    }
});
