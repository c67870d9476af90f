// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The active sessions of the machine's seats, by the files of systemd-logind. May never return: for a worker alone.

use std::fs;
use std::io;
use std::path::Path;

use giveway_engine::class::{Activity, LoginSession, active_session, is_seat};
use serde::{Deserialize, Serialize};

use crate::rules::text;

/// More than any machine has; the rest is not looked at.
const SEATS: usize = 16;
const FILES: usize = 1024;

#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Sessions {
    pub active: Vec<Activity>,
    /// With the first of the files that do not count.
    pub problem: Option<String>,
}

pub(super) fn read_sessions(folder: &Path) -> Sessions {
    let mut found = Sessions::default();
    let files = fs::read_dir(folder.join("seats")).into_iter().flatten().flatten();
    let names = files.take(FILES).filter_map(|file| file.file_name().into_string().ok());
    let mut seats: Vec<String> = names.filter(|name| is_seat(name)).collect();
    seats.sort_unstable();
    for seat in seats.iter().take(SEATS) {
        match at_seat(folder, seat) {
            Ok(active) => found.active.extend(active),
            Err(problem) => found.problem = found.problem.or(Some(problem)),
        }
    }
    found
}

fn at_seat(folder: &Path, seat: &str) -> Result<Vec<Activity>, String> {
    let of_seat = read(&folder.join("seats").join(seat), |text| {
        Ok(active_session(text)?.map(str::to_owned))
    });
    let Some(session) = of_seat? else { return Ok(Vec::new()) };
    let session = read(&folder.join("sessions").join(session), LoginSession::read)?;
    Ok(session.map_or(Vec::new(), |session| session.activities(seat)))
}

/// None where there is no such file: a session may end at any moment.
fn read<T>(path: &Path, parse: impl Fn(&str) -> Result<Option<T>, String>) -> Result<Option<T>, String> {
    if fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        return Ok(None);
    }
    let parsed = text(path, true).and_then(|text| parse(&text));
    parsed.map_err(|reason| format!("{}: {reason}; ignored", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
    use std::path::PathBuf;

    use super::*;

    const SEAT: &str = "IS_SEAT0=1\nACTIVE=2\n";
    const SESSION: &str = "UID=1000\nACTIVE=1\nCLASS=user\nSCOPE=session-2.scope\n";

    /// systemd's folder, with one session at one seat.
    fn folder() -> (tempfile::TempDir, PathBuf, PathBuf) {
        assert!(nix::unistd::geteuid().is_root(), "run the tests as root");
        let scratch = tempfile::tempdir().unwrap();
        let [seat, session] = ["seats/seat0", "sessions/2"].map(|name| scratch.path().join(name));
        for (path, text) in [(&seat, SEAT), (&session, SESSION)] {
            fs::create_dir(path.parent().unwrap()).unwrap();
            write(path, text);
        }
        (scratch, seat, session)
    }

    fn write(path: &Path, text: &str) {
        fs::write(path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
    }

    #[test]
    fn each_seats_active_session_is_found() {
        let (scratch, _, session) = folder();
        write(&scratch.path().join("seats/seat-usb"), "ACTIVE=c3\n");
        write(&session.with_file_name("c3"), &SESSION.replace("1000", "1001"));
        write(&scratch.path().join("seats/.#seat0x"), "ACTIVE=2\n");
        let found = read_sessions(scratch.path());
        let uids: Vec<u32> = found.active.iter().map(|active| active.uid).collect();
        assert_eq!((uids, found.problem), (vec![1001, 1001, 1000, 1000], None));
    }

    #[test]
    fn without_a_folder_a_session_or_anybody_at_the_seat_nothing_is_active_and_nothing_wrong() {
        let (scratch, seat, session) = folder();
        fs::remove_file(&session).unwrap();
        assert_eq!(read_sessions(scratch.path()), Sessions::default());
        write(&seat, "IS_SEAT0=1\n");
        assert_eq!(read_sessions(scratch.path()), Sessions::default());
        assert_eq!(read_sessions(Path::new("/nonexistent")), Sessions::default());
    }

    #[test]
    fn what_is_no_file_of_roots_or_says_no_session_is_told_of_and_the_other_seats_count() {
        let (scratch, seat, session) = folder();
        write(&scratch.path().join("seats/seat9"), "ACTIVE=9\n");
        write(&session.with_file_name("9"), SESSION);
        let cases: [(&str, &dyn Fn()); 7] = [
            ("is not a file", &|| fs::create_dir(&session).unwrap()),
            ("is not a file", &|| symlink("/dev/zero", &session).unwrap()),
            ("is not a file", &|| {
                let mode = nix::sys::stat::Mode::from_bits_truncate(0o644);
                nix::unistd::mkfifo(&session, mode).unwrap();
            }),
            ("is not UTF-8", &|| fs::write(&session, vec![0xff; 1 << 21]).unwrap()),
            ("belongs to uid 1000", &|| {
                write(&session, SESSION);
                chown(&session, Some(1000), None).unwrap();
            }),
            ("SCOPE names none", &|| {
                write(&session, &SESSION.replace("session-2", "../../x"));
            }),
            ("ACTIVE names no session", &|| write(&seat, "ACTIVE=../../etc/passwd\n")),
        ];
        for (problem, make) in cases {
            let _ = fs::remove_file(&session).or_else(|_| fs::remove_dir(&session));
            make();
            let found = read_sessions(scratch.path());
            assert!(
                found.problem.as_ref().is_some_and(|told| told.contains(problem)),
                "{problem}: {found:?}"
            );
            assert!(
                found.active.len() == 2 && found.active[0].seat.as_deref() == Some("seat9"),
                "{found:?}"
            );
        }
    }
}
