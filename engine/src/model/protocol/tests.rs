// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which addresses a prefix contains, and how it is written.

use proptest::prelude::*;

use super::*;

fn read(text: &str) -> Result<Prefix, String> {
    text.to_owned().try_into()
}

#[test]
fn a_prefix_contains_what_begins_with_its_bits() {
    let contains = |prefix: &str, address: &str| {
        let prefix = read(prefix).unwrap();
        prefix.contains(address.parse().unwrap())
    };
    assert!(contains("192.0.2.0/24", "192.0.2.255"));
    assert!(contains("192.0.2.0/24", "::ffff:192.0.2.1"));
    assert!(!contains("192.0.2.0/24", "192.0.3.0"));
    assert!(contains("0.0.0.0/0", "255.0.0.1"));
    assert!(
        !contains("::/0", "192.0.2.1"),
        "IPv4 is not matched by a prefix of IPv6"
    );
    assert!(contains("2001:db8::/32", "2001:db8:ffff::1"));
    assert!(contains("::ffff:192.0.2.1", "192.0.2.1"));
    assert!(contains("::ffff:192.0.2.1/120", "192.0.2.2"));
    for wrong in [
        "",
        "/",
        "192.0.2.0/33",
        "192.0.2.0/",
        "192.0.2/24",
        "2001:db8::/129",
        "::ffff:1.2.3.4/95",
    ] {
        assert!(read(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn a_dscp_is_written_as_it_is_read() {
    for number in 0..64 {
        let dscp = Dscp::new(number);
        assert_eq!(Dscp::try_from(dscp.to_string()), Ok(dscp));
        assert_eq!(Dscp::try_from(number.to_string()), Ok(dscp));
    }
    for (name, number) in [("le", 1), ("CS1", 8), ("AF21", 18), ("AF41", 34), ("ef", 46)] {
        assert_eq!(Dscp::try_from(name.to_owned()), Ok(Dscp::new(number)), "{name}");
    }
    for wrong in ["", "64", "-1", "AF51", "AF14", "CS8", "ÄF"] {
        assert!(Dscp::try_from(wrong.to_owned()).is_err(), "{wrong}");
    }
}

proptest! {
    #[test]
    fn a_prefix_is_written_as_it_is_read(address: IpAddr, bits in 0u8..=128) {
        let written = format!("{address}/{}", bits.min(width(address)));
        match read(&written) {
            Ok(prefix) => {
                prop_assert_eq!(read(&prefix.to_string()), Ok(prefix));
                prop_assert!(prefix.contains(address), "{}", prefix);
            }
            Err(_) => prop_assert!(address.to_canonical() != address && bits < 96),
        }
    }
}
