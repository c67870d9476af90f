// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The programs at work, each as somebody would call it. Input: a place. Output: the running program.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use strum::IntoStaticStr;

use super::place::{BackupClient, in_folder};
use crate::giveway::binary;
use crate::network::PEER_ADDRESS;
use crate::process::{Process, run};

#[derive(Clone, Copy, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum Tool {
    Restic,
    Borg,
    Rsync,
    Git,
    Scp,
    /// A connection that one ssh holds and another one sends through.
    #[strum(serialize = "ssh")]
    Master,
}

/// What is running: the processes that are the work, by their first.
pub struct Work {
    process: Process,
    /// Sends through the other's connection.
    _beside: Option<Process>,
    port: u16,
}

impl Work {
    /// Its first process, and the port that it sends to.
    pub fn sends(&self) -> (i32, u16) {
        (self.process.id(), self.port)
    }
}

impl Tool {
    /// Where Debian's package has it.
    pub fn program(self) -> PathBuf {
        Path::new("/usr/bin").join(<&str>::from(self))
    }

    pub fn port(self) -> u16 {
        match self {
            Self::Git => 2222,
            _ => 22,
        }
    }

    /// What its command line says behind the program, once there is what it needs.
    fn arguments(self, place: &BackupClient, program: &Path, ssh: &str) -> Result<String> {
        let file = |name: &str| place.file(name).display().to_string();
        let far = PEER_ADDRESS;
        Ok(match self {
            Self::Restic => {
                let mut init = Command::new(program);
                init.args(["init", "--no-cache", "-q", "-r", &file("restic")]);
                run(in_folder(init, place, ssh))?;
                format!(
                    "-q -r sftp:{far}:{} --no-cache --pack-size 4 backup {}",
                    file("restic"),
                    file("data")
                )
            }
            Self::Borg => {
                let mut init = Command::new(program);
                init.args(["init", "-e", "none", &file("borg")]);
                run(in_folder(init, place, ssh))?;
                format!("create -C none ssh://root@{far}{}::a {}", file("borg"), file("data"))
            }
            Self::Rsync => format!("-a {} {far}:{}", file("data"), file("rsync")),
            Self::Git => {
                let commands = "git init -q --bare git; git init -q source; cp data/blob source; cd source; git add blob; \
                                git -c user.name=lab -c user.email=lab@example.org commit -q -m data";
                let mut make = Command::new("sh");
                make.args(["-ec", commands]).current_dir(place.folder());
                run(in_folder(make, place, ssh))?;
                let port = self.port();
                format!(
                    "-C {} push -q ssh://root@{far}:{port}{} HEAD:refs/heads/main",
                    file("source"),
                    file("git")
                )
            }
            Self::Scp => format!(
                "-F {} {} {far}:{}",
                place.client().display(),
                file("data/blob"),
                file("scp")
            ),
            Self::Master => format!("-F {} -M -N -S {} {far}", place.client().display(), file("master")),
        })
    }

    /// `is_marked`: as OpenSSH 7.8 to 10.0 mark what is not interactive.
    pub fn start(self, place: &BackupClient, by_exec: bool, is_marked: bool, program: &Path) -> Result<Work> {
        let mark = if is_marked { " -o IPQoS=cs1" } else { "" };
        let ssh = format!("ssh -F {}{mark}", place.client().display());
        let line = self.arguments(place, program, &ssh)?;
        let mut words: Vec<OsString> = Vec::new();
        if by_exec {
            words.push(binary()?.into());
            words.extend(["exec", "--require", "--class", "background", "--"].map(Into::into));
        }
        words.push(program.into());
        if let Self::Restic = self {
            words.extend(["-o".into(), format!("sftp.command={ssh} {PEER_ADDRESS} -s sftp").into()]);
        }
        words.extend(line.split_whitespace().map(Into::into));
        let process = place.spawn(&words, &ssh, None)?;
        let beside = match self {
            Self::Master => {
                place.wait_until_there("master")?;
                let slave = format!(
                    "ssh -F {} -S {} {PEER_ADDRESS} cat",
                    place.client().display(),
                    place.file("master").display()
                );
                let words: Vec<OsString> = slave.split(' ').map(Into::into).collect();
                Some(place.spawn(&words, &ssh, Some(File::open(place.file("data/blob"))?))?)
            }
            _ => None,
        };
        Ok(Work {
            process,
            _beside: beside,
            port: self.port(),
        })
    }
}
