// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads the files that have rules for classes: giveway.toml, the administrator's folder, systemd's units, the vendor's
//! folder. Input: paths.
//! Output: their texts in the engine's words, or why one cannot be read. Decides nothing about rules.
//!
//! A rule can raise a flow above others, so only root's files count, and only in folders that nobody else writes to.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use giveway_engine::class::{Folders, Rules, Source};
use giveway_engine::config::{Located, differing_sections};
use nix::fcntl::OFlag;

use crate::kernel::uid_of;

mod units;

pub use units::FOLDERS as UNIT_FOLDERS;

/// The earlier one's files come first.
const FOLDERS: [&str; 2] = ["/etc/giveway/rules.d", "/usr/share/giveway/rules.d"];
const FILES: usize = 256;
/// More than any file may have.
const BYTES: u64 = 1 << 20;
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// Where rules are read from, again and again.
#[derive(Clone, Debug)]
pub struct RuleFiles {
    main: Option<PathBuf>,
    /// The text of `main` when the daemon started.
    started_with: Option<String>,
    folders: Vec<PathBuf>,
    /// They were named, so they must be there.
    are_named: bool,
    units: Vec<PathBuf>,
}

impl RuleFiles {
    /// `folders`: in place of the usual ones and of systemd's, where there are any.
    pub fn new(main: Option<&Path>, folders: &[PathBuf]) -> Self {
        let (usual, units) = match folders {
            [] => (
                FOLDERS.map(PathBuf::from).to_vec(),
                units::FOLDERS.map(PathBuf::from).to_vec(),
            ),
            _ => (folders.to_vec(), Vec::new()),
        };
        Self {
            main: main.map(Path::to_owned),
            started_with: main.and_then(|path| text(path, false).ok()),
            folders: usual,
            are_named: !folders.is_empty(),
            units,
        }
    }

    pub fn main(&self) -> Option<String> {
        self.main.as_ref().map(|path| path.display().to_string())
    }

    /// What has changed in giveway.toml since the start beside the rules: it counts at the next one.
    pub fn unread(&self) -> Vec<String> {
        let now = self.main.as_ref().and_then(|path| text(path, false).ok());
        let both = self.started_with.as_ref().zip(now.as_ref());
        both.map(|(before, now)| differing_sections(before, now))
            .unwrap_or_default()
    }

    /// The same as [`Self::read`]. None where that takes longer: another thread goes on waiting, and what it finds is
    /// lost; or where no thread can be started.
    pub fn read_within(&self, patience: Duration) -> Option<(Rules, Vec<Located>)> {
        let (sender, receiver) = mpsc::channel();
        let files = self.clone();
        thread::Builder::new().spawn(move || sender.send(files.read())).ok()?;
        receiver.recv_timeout(patience).ok()
    }

    /// The rules of all that is right, and what is not. It may wait for a file system, or for who knows the users.
    pub fn read(&self) -> (Rules, Vec<Located>) {
        let folders = Folders {
            main: self.main.as_deref().map(|path| source(path, text(path, false))),
            folders: self.folders.iter().map(|folder| self.sources(folder)).collect(),
            units: units::read(&self.units),
        };
        let (mut rules, problems) = Rules::of(folders, &uid_of);
        rules.note_idle(&is_script);
        (rules, problems)
    }
}

/// Whether the kernel starts it by an interpreter.
pub fn is_script(path: &str) -> bool {
    starts(path).is_ok_and(|start| start == *b"#!")
}

/// The first two bytes of a plain file.
pub fn starts(path: &str) -> io::Result<[u8; 2]> {
    let mut start = [0; 2];
    if fs::metadata(path)?.is_file() {
        File::open(path)?.read_exact(&mut start)?;
    }
    Ok(start)
}

impl RuleFiles {
    /// Every file of rules in the folder.
    fn sources(&self, folder: &Path) -> Vec<Source> {
        let found = match names(folder, self.are_named) {
            Ok(found) => found,
            Err(reason) => return vec![source(folder, Err(reason))],
        };
        found.iter().map(|path| source(path, text(path, true))).collect()
    }
}

fn source(path: &Path, text: Result<String, String>) -> Source {
    let name = path.file_name().unwrap_or_default();
    Source {
        path: path.display().to_string(),
        name: name.to_string_lossy().into_owned(),
        text,
    }
}

fn names(folder: &Path, must_be_there: bool) -> Result<Vec<PathBuf>, String> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && !must_be_there => return Ok(Vec::new()),
        entries => entries.map_err(|error| format!("cannot be read: {error}"))?,
    };
    check_owner(&fs::metadata(folder).map_err(|error| error.to_string())?)?;
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(|error| error.to_string())?.path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            found.push(path);
        }
        if found.len() > FILES {
            return Err(format!("has more than {FILES} files"));
        }
    }
    Ok(found)
}

/// Of the usual size, whatever the file says of its own.
pub fn text(path: &Path, must_be_roots: bool) -> Result<String, String> {
    let read = || {
        // A named pipe must not keep us waiting.
        let file = File::options()
            .read(true)
            .custom_flags(OFlag::O_NONBLOCK.bits())
            .open(path)?;
        let about = file.metadata()?;
        let mut bytes = Vec::new();
        if about.is_file() {
            file.take(BYTES).read_to_end(&mut bytes)?;
        }
        Ok((about, bytes))
    };
    let (about, bytes) = read().map_err(|error: io::Error| format!("cannot be read: {error}"))?;
    if !about.is_file() {
        return Err("is not a file".to_owned());
    }
    if must_be_roots {
        check_owner(&about)?;
    }
    String::from_utf8(bytes).map_err(|_| "is not UTF-8".to_owned())
}

fn check_owner(about: &fs::Metadata) -> Result<(), String> {
    if about.uid() != 0 {
        return Err(format!("belongs to uid {}, and must be root's", about.uid()));
    }
    if about.mode() & WRITABLE_BY_OTHERS != 0 {
        return Err("may be written by others than root (chmod go-w)".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, chown};

    use giveway_engine::config::read_rules;

    use super::*;

    const RULE: &str = "[[rule]]\nport = 873\nclass = \"background\"\n";

    fn problems(folder: &Path) -> Vec<String> {
        let (_, problems) = RuleFiles::new(None, &[folder.to_owned()]).read();
        problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn only_roots_files_in_roots_folders_count() {
        let folder = tempfile::tempdir().unwrap();
        let [good, open, theirs, other] = ["a.toml", "b.toml", "c.toml", "d.txt"].map(|name| folder.path().join(name));
        for path in [&good, &open, &theirs, &other] {
            fs::write(path, RULE).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
        }
        fs::set_permissions(&open, fs::Permissions::from_mode(0o664)).unwrap();
        chown(&theirs, Some(1000), None).unwrap();
        let files = RuleFiles::new(None, &[folder.path().to_owned()]);
        let (rules, _) = files.read();
        assert_eq!(rules.len(), 1);
        let told = problems(folder.path());
        assert!(told[0].contains("b.toml: may be written by others"), "{told:?}");
        assert!(told[1].contains("c.toml: belongs to uid 1000"), "{told:?}");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(files.read().0.len(), 0, "in a folder that others write to");
    }

    #[test]
    fn a_folder_that_was_named_must_be_there() {
        let told = problems(Path::new("/no/such/folder"));
        assert!(
            told[0].contains("/no/such/folder: cannot be read: No such file"),
            "{told:?}"
        );
    }

    #[test]
    fn each_rule_of_the_package_can_match_counts_and_has_its_reason() {
        let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/rules.d"));
        let name = "50-background.toml";
        let text = fs::read_to_string(folder.join(name)).unwrap();
        for (line, rule) in read_rules(name, &text).unwrap() {
            assert!(rule.reason.is_some(), "{name}:{line} gives no reason");
        }
        let folders = Folders {
            folders: vec![vec![source(&folder.join(name), Ok(text))]],
            ..Folders::default()
        };
        let (rules, problems) = Rules::of(folders, &uid_of);
        assert_eq!(problems, []);
        assert_eq!(rules.without_a_match().next(), None);
        assert_eq!(rules.never_reached().next(), None);
    }

    #[test]
    fn what_is_no_file_keeps_nobody_waiting() {
        let folder = tempfile::tempdir().unwrap();
        nix::unistd::mkfifo(
            &folder.path().join("a.toml"),
            nix::sys::stat::Mode::from_bits_truncate(0o644),
        )
        .unwrap();
        assert!(problems(folder.path())[0].ends_with("a.toml: is not a file"));
    }
}
