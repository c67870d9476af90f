// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The tutorials of docs/tutorials, typed as they stand, with the real daemon in network namespaces: every command
//! succeeds and prints what the page promises. Needs root, and what packaging/need installs.

#[cfg(test)]
mod tutorials {
    mod page;
    mod shell;

    use std::path::Path;
    use std::sync::{Mutex, PoisonError};

    use page::{keeps, steps};
    use shell::Shell;

    /// They measure by this machine's clock, and one makes a cgroup.
    static TURN: Mutex<()> = Mutex::new(());

    fn follow(name: &str) {
        if !nix::unistd::geteuid().is_root() {
            assert!(
                std::env::var_os("CI").is_none(),
                "CI has to follow the tutorials as root"
            );
            eprintln!("skipped: network namespaces need root");
            return;
        }
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../docs/tutorials/{name}.md"));
        let steps = steps(&std::fs::read_to_string(page).unwrap());
        assert!(steps.len() > 20, "{name}.md has {} commands", steps.len());
        let mut shell = Shell::start(name);
        let mut done = String::new();
        for step in steps {
            // This machine has what they install.
            if step.command.starts_with("apt-get ") {
                continue;
            }
            let (exit_code, printed) = shell.type_in(&step.command);
            done += &format!("# {}\n{printed}", step.command);
            assert_eq!(exit_code, step.exit_code, "exit code of the last command:\n{done}");
            let lines: Vec<_> = printed.lines().collect();
            assert!(
                step.promised.is_empty() || keeps(&step.promised, &lines),
                "the page promises {:#?} of the last command:\n{done}",
                step.promised
            );
        }
    }

    #[test]
    fn a_page_loads_fast_beside_a_backup_on_the_laptop() {
        follow("laptop");
    }

    #[test]
    fn commands_of_the_robot_are_in_time_or_refused() {
        follow("robot");
    }

    #[test]
    fn limits_of_the_edge_box_hold_and_are_counted() {
        follow("edge-box");
    }
}
