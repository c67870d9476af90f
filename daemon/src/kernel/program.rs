// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Starts this program anew: the same file, whatever its path leads to by now. It is opened once and executed by its
//! descriptor: /proc/self/exe would be looked up in folders whose lock any user can hold.

use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::OnceLock;

static OWN: OnceLock<File> = OnceLock::new();

/// Opens it, while the path by which it was started is still its own. The kernel remembers the names of what runs.
///
/// # Errors
/// Where it cannot be opened.
pub fn open() -> io::Result<&'static File> {
    if let Some(own) = OWN.get() {
        return Ok(own);
    }
    // SAFETY: the kernel leaves a text there for as long as the process lives, or nothing.
    let name = unsafe {
        let at = libc::getauxval(libc::AT_EXECFN) as *const libc::c_char;
        (!at.is_null()).then(|| CStr::from_ptr(at))
    };
    let by = |path: &OsStr| File::options().read(true).custom_flags(libc::O_PATH).open(path);
    let own = match name.map(|name| by(OsStr::from_bytes(name.to_bytes()))) {
        Some(Ok(own)) => own,
        _ => by(OsStr::new("/proc/self/exe"))?,
    };
    Ok(OWN.get_or_init(|| own))
}

/// This program, called giveway, with this argument. Its environment is the caller's without `hidden`, or nothing.
pub fn again(argument: &CStr, hidden: Option<&str>) -> io::Result<Command> {
    let own = open()?;
    let words = vec![c"giveway".to_owned(), argument.to_owned()];
    let kept = std::env::vars_os().filter(|(name, _)| hidden.is_some_and(|hidden| name != hidden));
    let line = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        CString::new([name.as_bytes(), b"=", value.as_bytes()].concat()).ok()
    };
    let variables: Vec<CString> = kept.filter_map(line).collect();
    let (arguments, environment) = (List::new(words), List::new(variables));
    let execute = move || {
        // SAFETY: both lists end with a null, and what they point to lives in them. Allocates nothing.
        unsafe {
            libc::syscall(
                libc::SYS_execveat,
                own.as_raw_fd(),
                c"".as_ptr(),
                arguments.pointers(),
                environment.pointers(),
                libc::AT_EMPTY_PATH,
            );
        }
        Err(io::Error::last_os_error())
    };
    // Its path is never used: what is to be executed is executed before.
    let mut command = Command::new("giveway");
    // SAFETY: the call above is all that is done in the child.
    unsafe { command.pre_exec(execute) };
    Ok(command)
}

/// As the kernel takes it.
struct List {
    _texts: Vec<CString>,
    /// Of the texts, which do not move; numbers may be handed to another thread.
    addresses: Vec<usize>,
}

impl List {
    fn new(texts: Vec<CString>) -> Self {
        let addresses = texts.iter().map(|text| text.as_ptr() as usize).chain([0]).collect();
        Self {
            _texts: texts,
            addresses,
        }
    }

    /// By a call, so that a closure that makes it keeps all of this and not only the numbers.
    fn pointers(&self) -> *const usize {
        self.addresses.as_ptr()
    }
}
