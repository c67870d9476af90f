// SPDX-License-Identifier: Apache-2.0 OR MIT
//! OpenSSH's own server as a remote host, and what a client needs to reach it without a question.
//! Input: a namespace, a folder, ports. Output: a running sshd and the client's configuration. Touches nothing of the
//! machine: keys, users and run-time files are the folder's, in a mount namespace of the server's own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::namespace::Namespace;
use crate::process::{Process, run};

/// Debian's, or one unpacked beside the build, so that no machine gets a service that it did not ask for.
const UNPACKED: &str = "../need";
const USERS: &str = "sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin\n\
                     nobody:x:65534:65534::/:/usr/sbin/nologin\n";
/// Parts of the server since 9.8 and 10.0, and the option that says where each is.
const PARTS: [(&str, &str); 2] = [("SshdSessionPath", "sshd-session"), ("SshdAuthPath", "sshd-auth")];

pub struct Server {
    _process: Process,
    /// For `ssh -F`.
    pub client: PathBuf,
}

/// The programs of the server that are there: sshd, then its parts.
pub fn programs() -> Result<Vec<PathBuf>> {
    let beside = std::env::current_exe()?.with_file_name(UNPACKED);
    let roots = [PathBuf::from("/"), beside];
    // In a guest all programs are in one folder.
    let find = |name: &str| {
        let folders = ["usr/sbin", "usr/lib/openssh", "usr/bin"];
        let files = roots
            .iter()
            .flat_map(|root| folders.map(|folder| root.join(folder).join(name)));
        files.into_iter().find(|file| file.is_file())
    };
    let server = find("sshd").context("`sshd` is missing, which the lab needs: packaging/need unpacks it")?;
    let parts = PARTS.into_iter().filter_map(|(_, part)| find(part));
    Ok([server].into_iter().chain(parts).collect())
}

impl Server {
    /// Listens when this returns; whoever comes is in the folder `home`. The client's configuration means `host` by its name or by any other.
    pub fn start(at: &Namespace, folder: &Path, ports: &[u16], home: &Path) -> Result<Self> {
        let file = |name: &str| folder.join(name).display().to_string();
        for key in ["host_key", "user_key"] {
            let mut make = Command::new("ssh-keygen");
            make.args(["-q", "-t", "ed25519", "-N", "", "-f", &file(key)]);
            run(make)?;
        }
        let programs = programs()?;
        let mut server = vec![
            format!("HostKey {}", file("host_key")),
            format!("AuthorizedKeysFile {}", file("user_key.pub")),
            "StrictModes no\nUsePAM no\nUseDNS no\nPidFile none\nPermitRootLogin yes".into(),
            "MaxStartups 100\nSubsystem sftp internal-sftp\nLogLevel ERROR".into(),
        ];
        server.extend(ports.iter().map(|port| format!("Port {port}")));
        for (option, part) in PARTS {
            let found = programs.iter().find(|program| program.ends_with(part));
            server.extend(found.map(|path| format!("{option} {}", path.display())));
        }
        let client = format!(
            "IdentityFile {}\nStrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\nBatchMode yes\n",
            file("user_key")
        );
        for (name, text) in [
            ("sshd_config", server.join("\n") + "\n"),
            ("ssh_config", client),
            ("passwd", format!("root:x:0:0::{}:/bin/sh\n{USERS}", home.display())),
            ("shadow", "root:*:19000::::::\nsshd:*:19000::::::\n".into()),
        ] {
            fs::write(folder.join(name), text).with_context(|| format!("cannot write {}", file(name)))?;
        }
        let script = format!(
            "[ -e /etc/shadow ] || : >/etc/shadow; mount --bind {} /etc/passwd; mount --bind {} /etc/shadow; mount -t tmpfs tmpfs /run; \
             mkdir -m 755 /run/sshd; exec {} -D -e -f {}",
            file("passwd"),
            file("shadow"),
            programs[0].display(),
            file("sshd_config")
        );
        let mut command = at.command("unshare")?;
        command.args(["--mount", "sh", "-ec", &script]);
        let log = fs::File::create(folder.join("sshd.log"))?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let process = Process::spawn(command)?;
        ports.iter().try_for_each(|port| at.wait_until_listening(*port))?;
        Ok(Self {
            _process: process,
            client: folder.join("ssh_config"),
        })
    }
}
