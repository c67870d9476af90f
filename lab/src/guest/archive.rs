// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A file tree as the kernel unpacks it: the "newc" form of cpio (the kernel's
//! Documentation/driver-api/early-userspace/buffer-format.rst).
//! In: files, links and folders in any order. Out: bytes that depend on nothing else; no clock, no inode and no owner
//! of this machine shows in them. Archives may follow one another in one initrd.

use std::collections::BTreeMap;
use std::io::{self, Write};

const FOLDER: u32 = 0o040_755;
const LINK: u32 = 0o120_777;
const FILE: u32 = 0o100_644;
const PROGRAM: u32 = 0o100_755;
/// The kernel wants an archive that follows another to begin on four bytes; whole sectors please every tool.
const BLOCK: usize = 512;

#[derive(Default)]
pub struct Tree {
    entries: BTreeMap<String, (u32, Vec<u8>)>,
}

impl Tree {
    /// `path` has no leading slash here and below.
    pub fn folder(&mut self, path: &str) {
        self.add(path, FOLDER, Vec::new());
    }

    pub fn file(&mut self, path: &str, content: Vec<u8>) {
        self.add(path, FILE, content);
    }

    pub fn program(&mut self, path: &str, content: Vec<u8>) {
        self.add(path, PROGRAM, content);
    }

    pub fn link(&mut self, path: &str, to: &str) {
        self.add(path, LINK, to.into());
    }

    pub fn has(&self, path: &str) -> bool {
        self.entries.contains_key(path)
    }

    fn add(&mut self, path: &str, mode: u32, content: Vec<u8>) {
        for (end, _) in path.match_indices('/') {
            self.entries
                .entry(path[..end].into())
                .or_insert_with(|| (FOLDER, Vec::new()));
        }
        self.entries.insert(path.into(), (mode, content));
    }

    pub fn write(&self, to: impl Write) -> io::Result<()> {
        let mut to = Counting { to, written: 0 };
        for (number, (path, (mode, content))) in (1..).zip(&self.entries) {
            write_entry(&mut to, number, *mode, path, content)?;
        }
        write_entry(&mut to, 0, 0, "TRAILER!!!", &[])?;
        to.pad(BLOCK)?;
        to.to.flush()
    }
}

fn write_entry(to: &mut Counting<impl Write>, inode: u32, mode: u32, path: &str, content: &[u8]) -> io::Result<()> {
    let too_large = |_| io::Error::other(format!("{path} is too large for an initrd"));
    let size = u32::try_from(content.len()).map_err(too_large)?;
    let name = path.len() as u32 + 1;
    // inode, mode, uid, gid, links, mtime, size, device (2), device of a special file (2), name's length, checksum
    let fields = [inode, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name, 0];
    let header: String = fields.iter().map(|field| format!("{field:08x}")).collect();
    to.put(b"070701")?;
    to.put(header.as_bytes())?;
    to.put(path.as_bytes())?;
    to.put(b"\0")?;
    to.pad(4)?;
    to.put(content)?;
    to.pad(4)
}

struct Counting<W> {
    to: W,
    written: usize,
}

impl<W: Write> Counting<W> {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.written += bytes.len();
        self.to.write_all(bytes)
    }

    fn pad(&mut self, to: usize) -> io::Result<()> {
        let zeros = self.written.next_multiple_of(to) - self.written;
        self.put(&[0; BLOCK][..zeros])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(build: impl Fn(&mut Tree)) -> Vec<u8> {
        let mut tree = Tree::default();
        build(&mut tree);
        let mut bytes = Vec::new();
        tree.write(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn the_same_tree_gives_the_same_bytes_in_whatever_order_it_grew() {
        let forth = bytes(|tree| {
            tree.file("a/b/c", b"1".to_vec());
            tree.link("a/d", "b/c");
        });
        let back = bytes(|tree| {
            tree.link("a/d", "b/c");
            tree.file("a/b/c", b"1".to_vec());
        });
        assert_eq!(forth, back);
        assert_eq!(forth.len() % BLOCK, 0);
    }

    #[test]
    fn a_folder_comes_before_what_is_in_it() {
        let archive = bytes(|tree| tree.program("usr/bin/x", vec![7]));
        let text = String::from_utf8_lossy(&archive);
        let at = |name: &str| text.find(name).unwrap();
        assert!(at("usr\0") < at("usr/bin\0") && at("usr/bin\0") < at("usr/bin/x\0"));
        assert!(at("usr/bin/x\0") < at("TRAILER!!!"));
    }
}
