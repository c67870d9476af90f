// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A file tree as the kernel unpacks it: the "newc" form of cpio (the kernel's
//! Documentation/driver-api/early-userspace/buffer-format.rst). Input: files, links and folders in any order. Output:
//! bytes that depend on nothing else; no clock, inode or owner of this machine shows in them. Archives may follow one
//! another in one initrd.

use std::collections::BTreeMap;
use std::io::{self, Write};

use cpio::newc::{Builder, trailer};

pub const FOLDER: u32 = 0o040_755;
/// A link to the path in its content.
pub const LINK: u32 = 0o120_777;
pub const FILE: u32 = 0o100_644;
pub const PROGRAM: u32 = 0o100_755;

#[derive(Default)]
pub struct FileTree {
    entries: BTreeMap<String, (u32, Vec<u8>)>,
}

impl FileTree {
    pub fn has(&self, path: &str) -> bool {
        self.entries.contains_key(path)
    }

    /// With the folders above it; `path` has no leading slash.
    pub fn add(&mut self, path: &str, mode: u32, content: impl Into<Vec<u8>>) {
        for (end, _) in path.match_indices('/') {
            let above = self.entries.entry(path[..end].into());
            above.or_insert_with(|| (FOLDER, Vec::new()));
        }
        self.entries.insert(path.into(), (mode, content.into()));
    }

    pub fn write(&self, mut to: impl Write) -> io::Result<()> {
        for (number, (path, (mode, content))) in (1..).zip(&self.entries) {
            let too_large = |_| io::Error::other(format!("{path} is too large for an initrd"));
            let size = u32::try_from(content.len()).map_err(too_large)?;
            let mut entry = Builder::new(path).ino(number).mode(*mode).write(to, size);
            entry.write_all(content)?;
            to = entry.finish()?;
        }
        trailer(to)?.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(build: impl Fn(&mut FileTree)) -> Vec<u8> {
        let mut tree = FileTree::default();
        build(&mut tree);
        let mut bytes = Vec::new();
        tree.write(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn the_same_tree_gives_the_same_bytes_in_whatever_order_it_grew() {
        let forth = bytes(|tree| {
            tree.add("a/b/c", FILE, "1");
            tree.add("a/d", LINK, "b/c");
        });
        let back = bytes(|tree| {
            tree.add("a/d", LINK, "b/c");
            tree.add("a/b/c", FILE, "1");
        });
        assert_eq!(forth, back);
        assert_eq!(
            forth.len() % 4,
            0,
            "the kernel wants another archive to follow on four bytes"
        );
    }

    #[test]
    fn a_folder_comes_before_what_is_in_it() {
        let archive = bytes(|tree| tree.add("usr/bin/x", PROGRAM, [7]));
        let text = String::from_utf8_lossy(&archive);
        let at = |name: &str| text.find(name).unwrap();
        assert!(at("usr\0") < at("usr/bin\0") && at("usr/bin\0") < at("usr/bin/x\0"));
        assert!(at("usr/bin/x\0") < at("TRAILER!!!"));
    }
}
