// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The shell that a tutorial is typed into: root's, in an empty folder, with giveway on its PATH. Its mounts and its network
//! are its own, so that the names of namespaces, /etc/giveway and the tree of cgroups are those of a fresh machine; what
//! giveway keeps in /run/giveway has a folder for each network namespace already. In: commands. Out: exit codes and what was
//! printed. When it is dropped, all that was started in its network namespaces ends.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

const ENTER: &str = "mkdir -p /run/netns; mount -t tmpfs tmpfs /run/netns
for own in /etc/giveway /usr/share/giveway; do [ ! -d $own ] || mount -t tmpfs tmpfs $own; done
[ \"$(stat -f -c %T /sys/fs/cgroup)\" = cgroup2fs ] || {
    umount -R /sys/fs/cgroup
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
}
exec bash";
/// The cgroup is the robot's.
const LEAVE: &str = "names=$(ip netns list | cut -d ' ' -f 1)
for signal in TERM KILL; do
    for name in $names; do ip netns pids $name | xargs -r kill -$signal; done
    [ -z \"$names\" ] || sleep 1
done
for name in $names; do ip netns delete $name; done
[ ! -d /sys/fs/cgroup/teleop ] || rmdir /sys/fs/cgroup/teleop";
const PATIENCE: Duration = Duration::from_secs(120);

pub struct Shell {
    bash: Child,
    input: ChildStdin,
    exit_codes: Receiver<i32>,
    folder: PathBuf,
    commands: usize,
}

impl Shell {
    pub fn start(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("giveway-tutorial-{}-{name}", std::process::id()));
        for part in ["bin", "here", "said"] {
            fs::create_dir_all(folder.join(part)).unwrap();
        }
        let giveway = Path::new(env!("CARGO_BIN_EXE_giveway-lab")).with_file_name("giveway");
        std::os::unix::fs::symlink(giveway, folder.join("bin/giveway")).unwrap();
        let mut bash = Command::new("unshare")
            .args(["--mount", "--net", "--propagation", "private", "bash", "-ec", ENTER])
            .current_dir(folder.join("here"))
            .env(
                "PATH",
                format!("{}/bin:/usr/sbin:/usr/bin:/sbin:/bin", folder.display()),
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, exit_codes) = mpsc::channel();
        let answers = BufReader::new(bash.stdout.take().unwrap());
        thread::spawn(move || {
            for line in answers.lines().map_while(Result::ok) {
                let _ = sender.send(line.parse().expect("bash tells an exit code"));
            }
        });
        Self {
            input: bash.stdin.take().unwrap(),
            bash,
            exit_codes,
            folder,
            commands: 0,
        }
    }

    /// Its exit code, and what it printed on both outputs. What it leaves running in the background may print later: that is
    /// in no answer.
    pub fn type_in(&mut self, command: &str) -> (i32, String) {
        self.commands += 1;
        let said = self.folder.join("said");
        let (typed, printed) = (
            said.join(format!("{}.in", self.commands)),
            said.join(format!("{}.out", self.commands)),
        );
        fs::write(&typed, format!("{command}\n")).unwrap();
        File::create(&printed).unwrap();
        let (typed, output) = (typed.display(), printed.display());
        writeln!(self.input, ". {typed} </dev/null >{output} 2>&1; echo $?").unwrap();
        let exit_code = self.exit_codes.recv_timeout(PATIENCE);
        let printed = fs::read_to_string(&printed).unwrap();
        let exit_code = exit_code.unwrap_or_else(|_| panic!("`{command}` does not end: {printed}"));
        (exit_code, printed)
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let pid = self.bash.id().to_string();
        let _ = Command::new("nsenter")
            .args(["--mount", "--target", &pid, "bash", "-c", LEAVE])
            .status();
        let _ = self.bash.kill();
        let _ = self.bash.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}
