// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The journal's contract, with entries that need no kernel.

use serde::Deserialize;

use super::*;

fn undo(path: &Path, dry_run: bool) -> UndoReport {
    super::undo(path, JournalContents::restore::<Fake>, dry_run)
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
enum Fake {
    Ours(u32),
    Anothers,
    Stuck,
    Lost,
}

impl Entry for Fake {
    fn restore(&self, _dry_run: bool) -> Result<Vec<String>> {
        match self {
            Self::Ours(number) => Ok(vec![format!("{number} is back")]),
            Self::Anothers => Ok(Vec::new()),
            Self::Stuck => anyhow::bail!("it is stuck"),
            Self::Lost => Err(anyhow::Error::new(Irreversible).context("its map is gone")),
        }
    }
}

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("giveway-journal-{}-{name}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn path(&self) -> PathBuf {
        self.0.join("fakes")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn everything_is_restored_the_latest_first_and_then_forgotten() {
    let scratch = Scratch::new("order");
    let mut journal = Journal::at(scratch.path());
    journal.add(&[Fake::Ours(1), Fake::Anothers]).unwrap();
    journal.add(&[Fake::Ours(2)]).unwrap();
    let found = undo(&scratch.path(), true);
    assert_eq!(
        (found.lines, found.failed.len()),
        (vec!["2 is back".into(), "1 is back".into()], 0)
    );
    assert_eq!(journal.undo().lines.len(), 2, "a dry run keeps everything");
    assert_eq!(undo(&scratch.path(), false).lines, Vec::<String>::new());
    assert!(!scratch.path().exists());
}

#[test]
fn what_fails_stays_what_cannot_be_read_is_reported_once_and_neither_hinders_the_rest() {
    let scratch = Scratch::new("stuck");
    let entries = "garbage\n{\"Ours\":1}\n\"Stuck\"\n\u{0}\u{1}\n{\"Ours\":2}\n{\"Ours\":3";
    fs::write(scratch.path(), entries).unwrap();
    for (restore, failed) in [(2, 3), (0, 1)] {
        let undone = undo(&scratch.path(), false);
        assert_eq!(
            (undone.lines.len(), undone.failed.len()),
            (restore, failed),
            "{undone:?}"
        );
    }
    let mut journal = Journal::at(scratch.path());
    journal.add(&[Fake::Ours(4)]).unwrap();
    journal.replace(&[]).unwrap();
    let kept = fs::read_to_string(left_of(&scratch.path())).unwrap();
    assert_eq!(kept, "\"Stuck\"\n", "and no later writer throws it away");
}

#[test]
fn what_nothing_can_undo_any_more_is_reported_once() {
    let scratch = Scratch::new("lost");
    Journal::at(scratch.path()).add(&[Fake::Lost]).unwrap();
    assert_eq!(undo(&scratch.path(), true).failed.len(), 1);
    assert_eq!(undo(&scratch.path(), false).failed.len(), 1);
    assert!(undo(&scratch.path(), false).is_nothing());
}

#[test]
fn a_journal_that_is_no_file_is_told_and_harms_nothing() {
    let scratch = Scratch::new("folder");
    fs::create_dir(scratch.path()).unwrap();
    let undone = undo(&scratch.path(), false);
    assert!(undone.failed[0].contains("cannot read"), "{undone:?}");
    assert!(Journal::at(scratch.path()).add(&[Fake::Anothers]).is_err());
}

#[test]
fn the_same_change_again_and_again_takes_one_line() {
    let scratch = Scratch::new("again");
    let mut journal = Journal::at(scratch.path());
    for _ in 0..100 {
        journal.add(&[Fake::Ours(1)]).unwrap();
    }
    assert_eq!(read(&scratch.path()).unwrap().len(), 1);
    fs::remove_file(scratch.path()).unwrap();
    journal.add(&[Fake::Ours(1)]).unwrap();
    assert_eq!(
        read(&scratch.path()).unwrap().len(),
        1,
        "it is known by the file, not by memory"
    );
}

#[test]
fn a_journal_is_bounded_by_what_is_installed() {
    let scratch = Scratch::new("bound");
    let mut journal = Journal::at(scratch.path());
    for number in 0..10_000 {
        let installed = Fake::Ours(number);
        journal.add([&installed]).unwrap();
        if journal.is_long(1) {
            journal.replace([&installed]).unwrap();
        }
        assert!(journal.written.len() <= LINES_KEPT + 1);
    }
    assert!(read(&scratch.path()).unwrap().len() <= LINES_KEPT + 1);
}

#[test]
fn a_journal_that_another_removes_is_written_anew_with_all_that_it_held() {
    let scratch = Scratch::new("removed");
    let mut journal = Journal::at(scratch.path());
    journal.add(&[Fake::Ours(1)]).unwrap();
    let mut other = Journal::at(scratch.path());
    other.add(&[Fake::Ours(2)]).unwrap();
    fs::remove_dir_all(&scratch.0).unwrap();
    restore_removed();
    assert_eq!(read(&scratch.path()).unwrap(), ["{\"Ours\":1}", "{\"Ours\":2}"]);
    fs::remove_file(scratch.path()).unwrap();
    other.add(&[Fake::Ours(3)]).unwrap();
    journal.add(&[Fake::Ours(4), Fake::Ours(1)]).unwrap();
    assert_eq!(undo(&scratch.path(), false).lines.len(), 4);
    restore_removed();
    assert!(!scratch.path().exists(), "what was undone is not written again");
}

#[test]
fn who_has_a_journal_open_reads_nothing_that_was_taken_out_of_it() {
    let scratch = Scratch::new("open");
    let mut journal = Journal::at(scratch.path());
    journal.add(&[Fake::Ours(1)]).unwrap();
    let first = File::open(scratch.path()).unwrap();
    journal.replace(&[Fake::Ours(2)]).unwrap();
    let second = File::open(scratch.path()).unwrap();
    journal.clear().unwrap();
    journal.add(&[Fake::Ours(3)]).unwrap();
    let third = File::open(scratch.path()).unwrap();
    journal.undo();
    for file in [first, second, third] {
        assert_eq!(contents(&file).unwrap(), b"");
    }
}
