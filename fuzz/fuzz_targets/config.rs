// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A configuration file, and a key file.
//!
//! Checked: what is accepted passes the second check as well, and is the same when it is written and read again.
#![no_main]

use giveway_engine::config::Config;
use giveway_engine::peers::Keyring;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let _ = Keyring::parse(text);
    let Ok(config) = Config::parse(text) else {
        return;
    };
    config.check().expect("what was accepted");
    let written = toml::to_string(&config).expect("a configuration is written");
    assert_eq!(Config::parse(&written).expect("what was written"), config);
});
