// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How files are made: with their final mode by the call that makes them, so that there is no moment in which others could
//! open them; and whose a file is that decides what giveway does. Input: paths. Output: files, or what is wrong with one.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use nix::fcntl::OFlag;
use nix::unistd::geteuid;

use crate::inherited::umask;

/// Of a state folder. Others may reach the control socket, and list nothing: who may read a folder can hold its lock for as long
/// as they like, and nothing in it could be written or removed meanwhile.
pub const FOLDER_MODE: u32 = 0o711;
const OF_OTHERS: u32 = 0o077;
const WRITABLE_BY_OTHERS: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// What is giveway's own: for its owner alone. Neither a link nor a named pipe leads elsewhere or keeps anybody waiting.
pub fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options
        .mode(0o600)
        .custom_flags((OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW).bits());
    options
}

/// Whether this is a file that nobody but its owner, this process's user, could ever have opened.
pub fn is_private(about: &Metadata) -> bool {
    about.is_file() && about.uid() == geteuid().as_raw() && about.mode() & OF_OTHERS == 0
}

pub fn is_unwritten_by_others(about: &Metadata) -> bool {
    about.uid() == geteuid().as_raw() && about.mode() & WRITABLE_BY_OTHERS == 0
}

/// Why a file that decides what this process does is somebody else's, and what to do: its own, or a folder's on the way to it, in
/// which they could put another.
pub fn not_the_callers(path: &Path, about: &Metadata) -> Option<String> {
    if let Some(reason) = others_hand(about) {
        let what = if about.uid() == geteuid().as_raw() {
            "chmod go-w"
        } else {
            "chown root"
        };
        return Some(format!(
            "it {reason}, and decides what giveway does: `{what} {}`",
            path.display()
        ));
    }
    let path = std::path::absolute(path).ok()?;
    // Where the path leads, and the folders of each link on the way that its last name is.
    let whole = std::fs::canonicalize(&path).ok()?;
    let folders = path.ancestors().skip(1).chain(whole.ancestors().skip(1));
    for folder in folders {
        let Ok(about) = std::fs::metadata(folder) else { continue };
        if about.mode() & STICKY == 0
            && let Some(reason) = others_hand(&about)
        {
            return Some(format!(
                "its folder {} {reason}, who could replace the file: move it to a folder that only root can \
                 write to",
                folder.display()
            ));
        }
    }
    None
}

/// Who has made it, or may write to it, beside root, this process's user, and whoever became root by sudo.
fn others_hand(about: &Metadata) -> Option<String> {
    let owner = about.uid();
    let by_sudo = || std::env::var("SUDO_UID").ok()?.parse().ok();
    if owner != 0 && owner != geteuid().as_raw() && Some(owner) != by_sudo() {
        return Some(format!("belongs to uid {owner}"));
    }
    let is_writable = about.mode() & 0o002 != 0 || (about.mode() & 0o020 != 0 && about.gid() != 0);
    is_writable.then(|| format!("may be written by others (mode {:04o})", about.mode() & 0o7777))
}

/// A result that the user has asked for, with the mode that the user wants.
pub fn output(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    options.mode(0o666 & !umask()).open(path)
}
