// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a package has beside the program: a manual page for each command and for each key, and completions that complete.
// A test prints and makes files as it likes: `clippy.toml` is for the program.
#![allow(clippy::disallowed_macros, clippy::disallowed_methods)]

#[cfg(test)]
mod pages {
    use std::fs;
    use std::path::Path;
    use std::process::Command;

    use clap::CommandFactory as _;
    use giveway::cli::Cli;
    use giveway_engine::config::Config;
    use tempfile::TempDir;

    fn written() -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        let test = std::env::current_exe().unwrap();
        let example = test.ancestors().nth(2).unwrap().join("examples/pages");
        let status = Command::new(&example).arg(folder.path()).status();
        let built = "`cargo build -p giveway --examples` makes it";
        assert!(
            status
                .unwrap_or_else(|e| panic!("{}: {e}; {built}", example.display()))
                .success()
        );
        folder
    }

    fn read(folder: &TempDir, path: &str) -> String {
        let path = Path::new(path);
        fs::read_to_string(folder.path().join(path)).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }

    /// With its own name and those of its parents, but for those that users are not to see.
    fn commands(command: &clap::Command, name: &str, found: &mut Vec<String>) {
        found.push(name.to_owned());
        let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
        for command in shown {
            commands(command, &format!("{name}-{}", command.get_name()), found);
        }
    }

    #[test]
    fn each_command_has_a_page_and_what_is_hidden_has_none() {
        let folder = written();
        let mut names = Vec::new();
        commands(&Cli::command(), "giveway", &mut names);
        for name in &names {
            let page = read(&folder, &format!("usr/share/man/man1/{name}.1"));
            assert!(page.contains(".SH SYNOPSIS"), "{name}: {page}");
        }
        let pages = fs::read_dir(folder.path().join("usr/share/man/man1")).unwrap().count();
        assert_eq!(pages, names.len());
        assert!(names.contains(&"giveway-priority-add".to_owned()) && !names.contains(&"giveway-watchdog".to_owned()));
    }

    #[test]
    fn each_key_of_the_configuration_is_explained_below_its_section() {
        let page = read(&written(), "usr/share/man/man5/giveway.toml.5").replace("\\-", "-");
        let mut rest = page.as_str();
        let mut keys = 0;
        for line in Config::default_file().lines().map(|line| line.trim_start_matches('#')) {
            let wanted = match line.split_once(" = ") {
                _ if line.starts_with('[') => format!(".SH {line}\n"),
                Some((key, _)) if !line.starts_with(' ') => format!("\\fB{key}\\fR = "),
                _ => continue,
            };
            let (_, after) = rest
                .split_once(&wanted)
                .unwrap_or_else(|| panic!("{wanted:?} is not in {rest}"));
            let said = after.lines().nth(1).unwrap_or_default();
            assert!(
                said.len() > 3 && !said.starts_with('.') || line.starts_with('['),
                "{wanted}: {said}"
            );
            (rest, keys) = (after, keys + 1);
        }
        assert!(keys > 50, "{keys}");
    }

    #[test]
    fn a_shell_completes_commands_and_options() {
        let folder = written();
        let script = folder.path().join("usr/share/bash-completion/completions/giveway");
        let complete = |words: &str, word: &str| {
            let words = format!("giveway {words}");
            let number = words.split(' ').count() - 1;
            let bash = format!(
                ". {}; COMP_WORDS=({words}); COMP_CWORD={number}; COMPREPLY=(); _giveway giveway '{word}' giveway; \
                 echo \"${{COMPREPLY[*]}}\"",
                script.display()
            );
            let output = Command::new("bash").args(["-c", &bash]).output().unwrap();
            assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap().trim().to_owned()
        };
        assert_eq!(complete("to", "to"), "top");
        assert_eq!(complete("top --on", "--on"), "--once");
        for other in [
            "usr/share/zsh/vendor-completions/_giveway",
            "usr/share/fish/vendor_completions.d/giveway.fish",
        ] {
            assert!(read(&folder, other).contains("priority"), "{other}");
        }
    }
}
