// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A journal of any writer, as another version, a full disk or a hostile hand may have left it. The first byte says
//! whose it is.
//!
//! Checked: what can be read is the same when it is written and read again; no line is read twice.
#![no_main]

use std::collections::HashSet;
use std::fmt::Debug;

use giveway::actuate::nice::NiceEntry;
use giveway::actuate::queue::undo::OriginalQueue;
use giveway::actuate::receive::settings::Setting;
use giveway::actuate::sockets::cap::saved::CapEntry;
use giveway::actuate::thread::ThreadChange;
use giveway::journal::{Entry, parse};
use libfuzzer_sys::fuzz_target;

fn read<E: Entry + PartialEq + Debug>(bytes: &[u8]) {
    let lines = parse::<E>(bytes);
    let unique: HashSet<&str> = lines.iter().map(|(line, _)| line.as_str()).collect();
    assert_eq!(unique.len(), lines.len());
    for entry in lines.into_iter().filter_map(|(_, entry)| entry) {
        let mut written = serde_json::to_string(&entry).expect("an entry is written");
        written.push('\n');
        let [(_, Some(again))] = &parse::<E>(written.as_bytes())[..] else {
            panic!("what was written cannot be read: {written}");
        };
        assert_eq!(*again, entry);
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((whose, bytes)) = input.split_first() else {
        return;
    };
    match whose % 5 {
        0 => read::<CapEntry>(bytes),
        1 => read::<OriginalQueue>(bytes),
        2 => read::<Setting>(bytes),
        3 => read::<ThreadChange>(bytes),
        _ => read::<NiceEntry>(bytes),
    }
});
