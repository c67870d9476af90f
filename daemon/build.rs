// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compiles each object of `bpf/` and generates its skeleton: in come the C files, out go `*.skel.rs` with the
//! compiled program inside, so that the binary carries them. Says which commit and which objects these are, for
//! `--version`. Needs clang; never looks at this machine's kernel. What comes out does not depend on where the sources are.
#![allow(clippy::disallowed_macros, clippy::disallowed_methods)]

use std::path::{Path, PathBuf};
use std::{env, fs, process::Command};

use libbpf_cargo::SkeletonBuilder;

fn main() {
    println!("cargo::rerun-if-env-changed=CLANG");
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang-19".into());
    if let Err(error) = Command::new(&clang).arg("--version").output() {
        fail(&format!(
            "the kernel's programs are compiled by `{clang}`, which does not run ({error}): \
             install Debian's package clang-19, or name another clang in the variable CLANG"
        ));
    }
    let sources = Path::new(&variable("CARGO_MANIFEST_DIR")).join("../bpf");
    let out = PathBuf::from(variable("OUT_DIR"));
    let mut objects = Vec::new();
    let entries = fs::read_dir(&sources).unwrap_or_else(|error| fail(&format!("{}: {error}", sources.display())));
    println!("cargo::rerun-if-changed={}", sources.display());
    for path in entries.flatten().map(|entry| entry.path()) {
        println!("cargo::rerun-if-changed={}", path.display());
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some(object) = name.strip_suffix(".bpf.c") else {
            continue;
        };
        let built = SkeletonBuilder::new()
            .source(&path)
            .clang(&clang)
            .clang_args(clang_args())
            .build_and_generate(out.join(format!("{object}.skel.rs")));
        if let Err(error) = built {
            fail(&format!("{name}: {error:#}"));
        }
        objects.push(object.to_owned());
    }
    objects.sort();
    println!("cargo::rustc-env=GIVEWAY_OBJECTS={}", objects.join(" "));
    println!("cargo::rustc-env=GIVEWAY_COMMIT={}", commit());
}

/// As `make deb` says it. Git is not asked: what git says changes with each commit, and all of BPF would be compiled anew.
fn commit() -> String {
    println!("cargo::rerun-if-env-changed=GIVEWAY_COMMIT");
    env::var("GIVEWAY_COMMIT").unwrap_or_else(|_| "not recorded (packages have it)".to_owned())
}

/// Debian keeps the C types of each architecture in a folder of its own, which clang's BPF target does not search.
fn clang_args() -> Vec<String> {
    let multiarch = format!("/usr/include/{}-linux-gnu", variable("CARGO_CFG_TARGET_ARCH"));
    let root = Path::new(&variable("CARGO_MANIFEST_DIR")).join("..");
    let manifest = format!("-ffile-prefix-map={}=daemon", variable("CARGO_MANIFEST_DIR"));
    let sources = format!("-ffile-prefix-map={}=.", root.display());
    let warnings = ["-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", "-mcpu=v3"];
    warnings
        .iter()
        .map(|arg| (*arg).to_owned())
        .chain([manifest, sources, "-idirafter".into(), multiarch])
        .collect()
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| fail(&format!("cargo did not set {name}")))
}

fn fail(message: &str) -> ! {
    for line in message.lines() {
        println!("cargo::error={line}");
    }
    std::process::exit(1)
}
