// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The examples under examples/, as a user would build and run them, on a link that cannot carry what they send: each
//! is told of every packet that giveway refuses, and every other one arrives. Needs root, a C compiler and Python.

#[cfg(test)]
mod senders {
    #[cfg(test)]
    mod examples {
        use std::fs::File;
        use std::net::UdpSocket;
        use std::path::{Path, PathBuf};
        use std::process::{Child, Command, Stdio};
        use std::thread;
        use std::time::{Duration, Instant};

        use nix::sched::{CloneFlags, setns};
        use nix::time::{ClockId, clock_gettime};
        use serde_json::Value;

        const FAR: &str = "10.78.3.2";
        const PORT: &str = "5005";
        const DEADLINE_MS: &str = "10";
        const PACKETS: u64 = 300;
        const PATIENCE: Duration = Duration::from_secs(20);

        /// Two namespaces, a wire between them, and a daemon in the near one. All gone when dropped.
        struct Pair {
            near: String,
            far: String,
            folder: PathBuf,
            daemon: Option<Child>,
        }

        impl Pair {
            fn raise() -> Self {
                let name = |side| format!("gwex-{}-{side}", std::process::id());
                let mut pair = Self {
                    near: name("near"),
                    far: name("far"),
                    folder: std::env::temp_dir().join(name("files")),
                    daemon: None,
                };
                std::fs::create_dir_all(&pair.folder).unwrap();
                let (near, far) = (&pair.near, &pair.far);
                let there = "lladdr 02:00:00:00:03:02";
                for line in [
                    format!("netns add {near}"),
                    format!("netns add {far}"),
                    format!("-n {near} link add gwx type veth peer name gwx netns {far} address 02:00:00:00:03:02"),
                    format!("-n {near} address add 10.78.3.1/24 dev gwx"),
                    format!("-n {far} address add {FAR}/24 dev gwx"),
                    format!("-n {near} link set gwx up"),
                    format!("-n {far} link set gwx up"),
                    // Whoever waits for an answer about an address is told nothing of a refusal.
                    format!("-n {near} neighbour replace {FAR} {there} dev gwx nud permanent"),
                ] {
                    run(Command::new("ip").args(line.split_whitespace()));
                }
                pair.start_daemon();
                pair
            }

            fn start_daemon(&mut self) {
                let config = self.folder.join("giveway.toml");
                let text = "[cap]\npolicy = \"none\"\n[link]\nrate_mbit = 20\n[queue]\nbackend = \"htb\"\n";
                std::fs::write(&config, text).unwrap();
                let mut daemon = self.near(&giveway());
                daemon.args(["run", "--interface", "gwx", "--config"]).arg(&config);
                self.daemon = Some(daemon.stderr(Stdio::null()).spawn().unwrap());
                let end = Instant::now() + PATIENCE;
                while self.queue()["installed"].is_null() {
                    assert!(Instant::now() < end, "giveway puts no queue up: {}", self.queue());
                    thread::sleep(Duration::from_millis(20));
                }
            }

            /// A command in the near namespace, with the files of this one.
            fn near(&self, program: &Path) -> Command {
                let mut command = Command::new("nsenter");
                command.arg(format!("--net=/run/netns/{}", self.near)).arg(program);
                command
            }

            fn far_socket(&self) -> UdpSocket {
                let far = File::open(format!("/run/netns/{}", self.far)).unwrap();
                let bind = move || {
                    setns(far, CloneFlags::CLONE_NEWNET).unwrap();
                    UdpSocket::bind(format!("{FAR}:{PORT}")).unwrap()
                };
                let socket = thread::spawn(bind).join().unwrap();
                socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
                socket
            }

            /// What the daemon says of its queue; nothing before it answers.
            fn queue(&self) -> Value {
                let said = self
                    .near(&giveway())
                    .args(["status", "--json"])
                    .output()
                    .unwrap()
                    .stdout;
                serde_json::from_slice::<Value>(&said).unwrap_or_default()["queue"].take()
            }

            /// The refusals that the daemon counts, from a poll after this call.
            fn refused(&self) -> u64 {
                let asked_ns = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap()).as_nanos();
                let start = Instant::now();
                loop {
                    let queue = self.queue();
                    if queue["counted_t_ns"]
                        .as_u64()
                        .is_some_and(|at| u128::from(at) > asked_ns)
                    {
                        return queue["counters"]["refused"]["total"].as_u64().unwrap();
                    }
                    assert!(start.elapsed() < Duration::from_secs(10), "no counters: {queue}");
                }
            }
        }

        impl Drop for Pair {
            fn drop(&mut self) {
                if let Some(daemon) = &mut self.daemon {
                    let _ = daemon.kill();
                    let _ = daemon.wait();
                }
                for name in [&self.near, &self.far] {
                    let _ = Command::new("ip").args(["netns", "delete", name]).status();
                }
                let _ = std::fs::remove_dir_all(&self.folder);
            }
        }

        fn run(command: &mut Command) -> String {
            let done = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
            let said = String::from_utf8_lossy(&done.stderr);
            assert!(done.status.success(), "{command:?}: {said}");
            String::from_utf8(done.stdout).unwrap()
        }

        fn giveway() -> PathBuf {
            Path::new(env!("CARGO_BIN_EXE_giveway-lab")).with_file_name("giveway")
        }

        fn example(name: &str) -> PathBuf {
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").join(name)
        }

        fn in_c(folder: &Path) -> PathBuf {
            let program = folder.join("sender");
            run(Command::new("cc").arg("-o").arg(&program).arg(example("sender.c")));
            program
        }

        /// As `cargo test` has built it with all other targets. To build it here would wait for every other build.
        fn in_rust() -> PathBuf {
            let program = Path::new(env!("CARGO_BIN_EXE_giveway-lab")).with_file_name("examples/sender");
            let changed = |path: &Path| std::fs::metadata(path).and_then(|file| file.modified()).ok();
            assert!(
                changed(&program) > changed(&example("sender.rs")),
                "first: cargo build --release --workspace --example sender"
            );
            program
        }

        /// What it says: packets sent and refused.
        fn counts(said: &str) -> (u64, u64) {
            let words: Vec<_> = said.split_whitespace().collect();
            let ["sent", sent, "refused", refused] = words.as_slice() else {
                panic!("an example says: {said}");
            };
            (sent.parse().unwrap(), refused.parse().unwrap())
        }

        #[test]
        fn examples_count_every_refusal_and_the_rest_arrives() {
            if !nix::unistd::geteuid().is_root() {
                assert!(std::env::var_os("CI").is_none(), "CI has to run the examples as root");
                eprintln!("skipped: network namespaces need root");
                return;
            }
            let pair = Pair::raise();
            let socket = pair.far_socket();
            let mut refused_before = 0;
            for program in [in_c(&pair.folder), example("sender.py"), in_rust()] {
                let mut sender = pair.near(&program);
                let (sent, refused) = counts(&run(sender.args([FAR, PORT, DEADLINE_MS, &PACKETS.to_string()])));
                let arrived = std::iter::from_fn(|| socket.recv(&mut [0; 2_000]).ok()).count() as u64;
                let name = program.display();
                assert_eq!((sent + refused, arrived), (PACKETS, sent), "{name}");
                // 24 Mbit each second for 20: most have to be refused, and some never.
                assert!(sent >= 10 && refused >= 100, "{name}: {sent} sent, {refused} refused");
                let counted = pair.refused();
                assert_eq!(counted - refused_before, refused, "{name}");
                refused_before = counted;
            }
        }
    }
}
