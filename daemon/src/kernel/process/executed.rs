// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What processes were when they were executed. Each stays that until it executes anew, whatever becomes of its file and of
//! the path that led to it. Input: what was found of a process. Output: the same, with the executables that it was found to
//! be before. Bounded: when there are more processes, those of the user who has most are forgotten.

use giveway_engine::model::ProcessId;
use std::collections::BTreeMap;

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;

use super::ReadProcess;

const KEPT: usize = 4096;

#[derive(Debug, Default)]
pub struct ExecHistory(BTreeMap<ProcessId, LastExec>);

#[derive(Debug)]
struct LastExec {
    uid: u32,
    /// The memory of an image that is gone may be another's; the count of execs does not come back.
    image: (u64, u64),
    executables: Vec<String>,
    trusted: Vec<String>,
}

impl ExecHistory {
    /// Adds what the same image was found to be before.
    pub fn recall(&mut self, found: &mut ReadProcess) {
        let (id, image) = (found.started.id, (found.image, found.execs));
        let process = &mut found.started.process;
        let was = self.0.remove(&id).filter(|was| was.image == image);
        let (mut executables, mut trusted) = was.map(|was| (was.executables, was.trusted)).unwrap_or_default();
        let is_sure = |path: &&String| found.at_its_place.contains(path);
        add(&mut executables, process.executables.iter().filter(is_sure));
        add(&mut trusted, process.trusted.iter().filter(is_sure));
        add(&mut process.executables, executables.iter());
        // Others may have been let write to the file since.
        if found.file_is_roots {
            add(&mut process.trusted, trusted.iter());
        }
        if executables.is_empty() {
            return;
        }
        if self.0.len() >= KEPT {
            self.make_room();
        }
        let was = LastExec {
            uid: process.uid,
            image,
            executables,
            trusted,
        };
        self.0.insert(id, was);
    }

    fn make_room(&mut self) {
        let is_gone = |id: &ProcessId| kill(Pid::from_raw(id.pid.cast_signed()), None) == Err(Errno::ESRCH);
        self.0.retain(|id, _| !is_gone(id));
        if self.0.len() > KEPT / 2 {
            forget_most(&mut self.0, |was| was.uid);
        }
    }
}

fn add<'a>(to: &mut Vec<String>, more: impl Iterator<Item = &'a String>) {
    for path in more {
        if !to.contains(path) {
            to.push(path.clone());
        }
    }
}

/// Forgets those of the user who has most; root's only where nobody else has any.
pub fn forget_most<T>(of: &mut BTreeMap<ProcessId, T>, uid_of: impl Fn(&T) -> u32) {
    let mut users = BTreeMap::<u32, usize>::new();
    for known in of.values() {
        *users.entry(uid_of(known)).or_default() += 1;
    }
    let most = users.into_iter().max_by_key(|(uid, has)| (*uid != 0, *has));
    of.retain(|_, known| most.is_some_and(|(uid, _)| uid != uid_of(known)));
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use giveway_engine::model::Process;
    use giveway_engine::priority::StartedProcess;

    use super::*;

    fn found(pid: u32, uid: u32, image: u64, execs: u64, executables: &[&str]) -> ReadProcess {
        let executables: Vec<String> = executables.iter().map(|path| (*path).to_owned()).collect();
        ReadProcess {
            started: StartedProcess {
                id: ProcessId { pid, start_ns: 1 },
                process: Process {
                    trusted: executables.clone(),
                    executables: executables.clone(),
                    uid,
                    ..Process::default()
                },
                tasks: 1,
                cpu: Duration::ZERO,
            },
            parent: 1,
            image,
            execs,
            at_its_place: executables,
            file_is_roots: true,
        }
    }

    #[track_caller]
    fn assert_is(executed: &mut ExecHistory, mut found: ReadProcess, expected: &[&str]) {
        executed.recall(&mut found);
        assert_eq!(found.started.process.executables, expected);
        assert_eq!(found.started.process.trusted, expected);
    }

    #[test]
    fn a_process_stays_what_it_was_until_it_executes_anew() {
        let executed = &mut ExecHistory::default();
        assert_is(executed, found(5, 0, 64, 3, &["/usr/bin/camera"]), &["/usr/bin/camera"]);
        assert_is(executed, found(5, 0, 64, 3, &[]), &["/usr/bin/camera"]);
        // The kernel may use the same memory for an image again.
        assert_is(executed, found(5, 0, 64, 5, &[]), &[]);
        assert_is(executed, found(5, 0, 64, 3, &[]), &[]);
        assert_is(executed, found(6, 0, 64, 3, &[]), &[]);
    }

    #[test]
    fn a_file_that_only_has_the_number_of_the_executable_is_not_remembered() {
        let executed = &mut ExecHistory::default();
        let mut other = found(5, 0, 64, 3, &["/usr/bin/camera"]);
        other.at_its_place.clear();
        assert_is(executed, other, &["/usr/bin/camera"]);
        assert_is(executed, found(5, 0, 64, 3, &[]), &[]);
    }

    #[test]
    fn a_file_that_others_may_write_to_by_now_is_trusted_no_more() {
        let executed = &mut ExecHistory::default();
        assert_is(executed, found(5, 0, 64, 3, &["/usr/bin/camera"]), &["/usr/bin/camera"]);
        let mut opened = found(5, 0, 64, 3, &[]);
        opened.file_is_roots = false;
        executed.recall(&mut opened);
        assert_eq!(opened.started.process.executables, ["/usr/bin/camera"]);
        assert!(opened.started.process.trusted.is_empty());
    }

    #[test]
    fn whose_processes_are_most_makes_room_and_not_root() {
        let mut known = BTreeMap::new();
        for (from, uid, count) in [(0, 0, 50), (100, 1000, 30), (200, 1001, 2)] {
            known.extend((from..from + count).map(|pid| (ProcessId { pid, start_ns: 1 }, uid)));
        }
        let mut left = || {
            forget_most(&mut known, |uid| *uid);
            known.len()
        };
        assert_eq!([left(), left(), left()], [52, 50, 0]);
    }
}
