// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The emulated machine: QEMU without hardware virtualisation, so that it runs anywhere and in virtual time. Input: a
//! kernel, an initrd, the number of CPUs and the clock. Output: a running QEMU, with three streams from the guest.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

use super::{Architecture, Clock, Guest};
use crate::process::Process;

const MEMORY_MB: u32 = 1536;
/// Where the guest's time begins when it is not the host's.
const EPOCH: &str = "2026-01-01T00:00:00";

pub struct QemuMachine {
    pub qemu: Process,
    pub stdout: UnixStream,
    pub stderr: UnixStream,
    /// A tar archive of what the guest leaves.
    pub files: UnixStream,
}

impl QemuMachine {
    /// QEMU's own messages and the guest's console go to `log`.
    pub fn start(guest: &Guest, image: &Path, initrd: &Path, log: &Path) -> Result<Self> {
        let (stdout, its_stdout) = stream()?;
        let (stderr, its_stderr) = stream()?;
        let (files, its_files) = stream()?;
        let messages = File::create(log).with_context(|| format!("cannot create {}", log.display()))?;
        let mut command = Command::new(guest.architecture.qemu());
        command.args("-nodefaults -no-user-config -display none -no-reboot".split(' '));
        command.args(["-machine", board(guest.architecture)]);
        command.args(["-m", &MEMORY_MB.to_string(), "-smp", &guest.cpus.to_string()]);
        command.args(clock_options(guest));
        command.arg("-kernel").arg(image).arg("-initrd").arg(initrd);
        command.args(["-append", &kernel_words(guest)]);
        command.args(["-serial", "stdio", "-device", "virtio-serial-pci"]);
        for (number, end) in (1..).zip([&its_stdout, &its_stderr, &its_files]) {
            command.args(["-chardev", &format!("socket,id=port{number},fd={}", end.as_raw_fd())]);
            command.args([
                "-device",
                &format!("virtserialport,nr={number},chardev=port{number},name=port{number}"),
            ]);
        }
        command
            .stdin(Stdio::null())
            .stdout(messages.try_clone()?)
            .stderr(messages);
        let qemu = Process::spawn(command).context("the guest needs QEMU: packaging/need installs it")?;
        Ok(Self {
            qemu,
            stdout,
            stderr,
            files,
        })
    }
}

/// Our end, which no child inherits, and QEMU's, which closes here once QEMU has it.
fn stream() -> io::Result<(UnixStream, OwnedFd)> {
    let (ours, its) = socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::empty())?;
    fcntl(&ours, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    Ok((ours.into(), its))
}

fn board(architecture: Architecture) -> &'static str {
    match architecture {
        Architecture::Amd64 => "q35",
        Architecture::Arm64 => "virt",
    }
}

/// In virtual time one instruction takes one nanosecond and idle time none, whatever the host does meanwhile.
fn clock_options(guest: &Guest) -> Vec<String> {
    let cpu = match (guest.architecture, guest.clock) {
        (Architecture::Amd64, Clock::Real) => "max",
        (Architecture::Amd64, Clock::Virtual) => "max,-rdrand,-rdseed",
        // Without its own random numbers, and without pointer authentication, which is slow to emulate.
        (Architecture::Arm64, _) => "cortex-a72",
    };
    let words = match guest.clock {
        // With a thread per CPU, QEMU 7.2 may hit a breakpoint that another CPU has just removed from the kernel's
        // text, as happens when a tracepoint or a static key changes: the kernel dies of an int3.
        Clock::Real => format!("-accel tcg,thread=single -cpu {cpu}"),
        Clock::Virtual => {
            format!("-accel tcg -icount shift=0,sleep=off -cpu {cpu} -rtc clock=vm,base={EPOCH} -seed 1")
        }
    };
    words.split(' ').map(Into::into).collect()
}

fn kernel_words(guest: &Guest) -> String {
    // A panic ends QEMU; a warning shows on the console, progress does not.
    let console = match guest.architecture {
        Architecture::Amd64 => "ttyS0",
        Architecture::Arm64 => "ttyAMA0",
    };
    let mut words = format!("console={console} loglevel=5 panic=-1 log_buf_len=4M rdinit=/init net.ifnames=0");
    if guest.clock == Clock::Virtual {
        words += " nokaslr norandmaps random.trust_cpu=off random.trust_bootloader=off";
        if guest.architecture == Architecture::Amd64 {
            words += " tsc=reliable";
        }
    }
    if let Some(model) = guest.preemption {
        words += &format!(" preempt={model}");
    }
    words
}
