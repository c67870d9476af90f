// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes what a package has beside the program, from the program's own command line and the configuration's own documentation: a
//! manual page for each command, giveway.toml(5), and completions for bash, zsh and fish. Input: a folder, in which they get
//! the places that they have below `/`.
#![allow(clippy::disallowed_macros, clippy::disallowed_methods)]

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::CommandFactory as _;
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use giveway::cli::Cli;
use giveway::commands::completions;
use giveway_engine::config::Config;

fn main() -> Result<()> {
    let root = PathBuf::from(std::env::args_os().nth(1).context("usage: pages FOLDER")?);
    let folder = |path: &str| {
        let folder = root.join(path);
        fs::create_dir_all(&folder)
            .with_context(|| format!("cannot make {}", folder.display()))
            .map(|()| folder)
    };
    commands(&folder("usr/share/man/man1")?)?;
    configuration(&folder("usr/share/man/man5")?)?;
    let shells = [
        (Shell::Bash, "usr/share/bash-completion/completions", "giveway"),
        (Shell::Zsh, "usr/share/zsh/vendor-completions", "_giveway"),
        (Shell::Fish, "usr/share/fish/vendor_completions.d", "giveway.fish"),
    ];
    for (shell, path, name) in shells {
        fs::write(
            folder(path)?.join(name),
            completions::text(shell, giveway::cli::shown()),
        )?;
    }
    Ok(())
}

/// giveway(1), giveway-status(1), ..., but for those that users are not to see.
fn commands(folder: &Path) -> Result<()> {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    pages_of(&command, folder)?;
    let mut page = File::options().append(true).open(folder.join("giveway.1"))?;
    Ok(page.write_all(around().as_bytes())?)
}

/// What giveway(1) has beside the command line.
fn around() -> String {
    let mut page = Roff::new();
    let mut section = |name: &str, entries: &[(&str, &str)]| {
        page.control("SH", [name]);
        for (what, about) in entries {
            page.control("TP", []);
            page.text([bold(*what)]);
            page.text([roman(*about)]);
        }
    };
    section(
        "FILES",
        &[
            (
                "/etc/giveway/giveway.toml",
                "The configuration, giveway.toml(5); read when the daemon starts.",
            ),
            (
                "/etc/giveway/rules.d/*.toml",
                "The administrator's rules for classes; `giveway reload` reads them again.",
            ),
            (
                "/usr/share/giveway/rules.d/*.toml",
                "Rules that come with the package; an earlier file's come first.",
            ),
            (
                "/etc/giveway/group.key",
                "The key of the group of devices, where one was made (`giveway key new`).",
            ),
            (
                "/run/giveway",
                "The sockets of the running daemon, and its journal of what is to be undone.",
            ),
        ],
    );
    section(
        "EXIT STATUS",
        &[
            ("0", "It was done."),
            (
                "1",
                "It could not be done; standard error says why. `giveway exec` has the exit status of its command, as env(1).",
            ),
            (
                "2",
                "The command line or the configuration is wrong; nothing was changed.",
            ),
        ],
    );
    page.control("SH", ["SEE ALSO"]);
    page.text([bold("giveway.toml"), roman("(5), /usr/share/doc/giveway")]);
    page.to_roff()
}

fn pages_of(command: &clap::Command, folder: &Path) -> Result<()> {
    let page = Man::new(command.clone())
        .source(concat!("giveway ", env!("CARGO_PKG_VERSION")))
        .manual("giveway");
    page.generate_to(folder)?;
    let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
    shown.into_iter().try_for_each(|command| pages_of(command, folder))
}

/// giveway.toml(5). The default file says all of it: what stands before a key, its value, and what a section is for.
fn configuration(folder: &Path) -> Result<()> {
    let mut page = Roff::new();
    page.control(
        "TH",
        [
            "giveway.toml",
            "5",
            "",
            concat!("giveway ", env!("CARGO_PKG_VERSION")),
            "giveway",
        ],
    );
    page.control("SH", ["NAME"]);
    page.text([roman("giveway.toml - the configuration of giveway")]);
    page.control("SH", ["DESCRIPTION"]);
    page.text([roman(
        "A TOML file: /etc/giveway/giveway.toml, or the one that `giveway run --config` names. An empty one is valid: each key has the default that is shown \
         here. An unknown key is refused, with the nearest name. Sections in two brackets may be written as often as \
         wanted. `giveway config check FILE` checks a file.",
    )]);
    page.control("SH", ["KEYS ABOVE ALL SECTIONS"]);
    let mut said = Vec::new();
    for line in Config::default_file().lines().skip(1) {
        match line.strip_prefix("# ") {
            Some(text) => said.push(text.to_owned()),
            None => entry(&mut page, line, std::mem::take(&mut said).join(" ")),
        }
    }
    page.control("SH", ["SEE ALSO"]);
    page.text([bold("giveway"), roman("(1), "), bold("giveway-config"), roman("(1)")]);
    let mut file = File::create(folder.join("giveway.toml.5"))?;
    Ok(file.write_all(page.to_roff().as_bytes())?)
}

/// A section or a key, with what was said of it.
fn entry(page: &mut Roff, line: &str, said: String) {
    let line = line.trim_start_matches('#');
    if line.starts_with('[') {
        page.control("SH", [line]);
        page.text([roman(said)]);
    } else if let Some((key, value)) = line.split_once(" = ") {
        page.control("TP", []);
        page.text([bold(key), roman(format!(" = {value}"))]);
        page.text([roman(said)]);
    }
}
