// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds the files of systemd's services that name a class or a limit themselves: each unit's own file, then the files that
//! change it (`NAME.d/*.conf`), as systemd reads them. Users' own units are not looked at: their class is the user's choice.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use giveway_engine::class::{UNIT_KEY, UnitFile};

use super::{source, text};

/// A file in an earlier one stands in for one of the same name in a later one.
pub const FOLDERS: [&str; 3] = ["/etc/systemd/system", "/run/systemd/system", "/usr/lib/systemd/system"];
/// More than any machine has; the rest is not looked at.
const FILES: usize = 16_384;

/// By unit and, empty for the unit's own, by the name of the file.
type FilesByUnit = BTreeMap<(String, String), PathBuf>;

pub fn read(folders: &[PathBuf]) -> Vec<UnitFile> {
    let mut found = FilesByUnit::new();
    for folder in folders {
        for path in entries(folder) {
            let name = name_of(&path);
            match name.strip_suffix(".d") {
                Some(unit) if is_service(unit) => {
                    for path in entries(&path).filter(|path| path.extension().is_some_and(|kind| kind == "conf")) {
                        add(&mut found, unit, &name_of(&path), path);
                    }
                }
                _ if is_service(&name) => add(&mut found, &name, "", path),
                _ => {}
            }
        }
    }
    found
        .into_iter()
        .filter_map(|((unit, _), path)| says_something(unit, &path))
        .collect()
}

fn add(found: &mut FilesByUnit, unit: &str, name: &str, path: PathBuf) {
    if found.len() < FILES {
        found.entry((unit.to_owned(), name.to_owned())).or_insert(path);
    }
}

/// None where there is no such folder, or it cannot be read: systemd says so itself.
fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries.flatten().map(|entry| entry.path()).take(FILES)
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Processes are in services; slices and scopes have none of their own, or no file.
fn is_service(name: &str) -> bool {
    name.strip_suffix(".service").is_some_and(|name| !name.is_empty())
}

/// What cannot be read (a masked unit is a link to /dev/null) says nothing. Neither does what is not root's alone: a unit
/// may be a link to a user's file, who must not keep root's rules from being read by what is in it.
fn says_something(unit: String, path: &Path) -> Option<UnitFile> {
    let says = |text: &Result<String, String>| text.as_ref().is_ok_and(|text| text.contains(UNIT_KEY));
    let roots = text(path, true);
    if says(&roots) {
        let source = source(path, roots);
        return Some(UnitFile { unit, source });
    }
    if let Err(reason) = roots
        && says(&text(path, false))
    {
        tracing::warn!("{}: {reason}; its {UNIT_KEY} keys do not count", path.display());
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(folder: &Path, name: &str, class: &str) {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("[Service]\n{UNIT_KEY}Class={class}\n")).unwrap();
    }

    #[test]
    fn a_units_file_comes_before_those_that_change_it_and_an_earlier_folders_stands_in_for_a_later_ones() {
        let folder = tempfile::tempdir().unwrap();
        let [first, second] = ["first", "second"].map(|name| folder.path().join(name));
        write(&second, "a.service", "bulk");
        write(&second, "a.service.d/20-b.conf", "stream");
        write(&second, "a.service.d/10-a.conf", "stream");
        write(&first, "a.service.d/10-a.conf", "background");
        write(&second, "b.service", "stream");
        fs::write(first.join("b.service"), "[Service]\n").unwrap();
        for other in [
            "a.service.d/note.txt",
            "c.timer",
            "multi-user.target.wants/a.service",
            ".service",
        ] {
            write(&second, other, "bulk");
        }
        let found = read(&[first.clone(), second.clone()]);
        let paths: Vec<_> = found
            .iter()
            .map(|file| (file.unit.as_str(), file.source.path.as_str()))
            .collect();
        let at = |folder: &Path, name: &str| folder.join(name).display().to_string();
        assert_eq!(
            paths,
            [
                ("a.service", at(&second, "a.service").as_str()),
                ("a.service", &at(&first, "a.service.d/10-a.conf")),
                ("a.service", &at(&second, "a.service.d/20-b.conf")),
            ]
        );
    }

    #[test]
    fn a_file_that_others_may_write_says_nothing_and_keeps_no_other_from_being_read() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        for name in ["a.service", "b.service"] {
            write(folder.path(), name, "stream");
        }
        fs::set_permissions(folder.path().join("a.service"), fs::Permissions::from_mode(0o666)).unwrap();
        let found = read(&[folder.path().to_owned()]);
        assert_eq!(found.len(), 1);
        assert!(found[0].unit == "b.service" && found[0].source.text.is_ok());
    }
}
