// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compiles the lab's BPF objects and generates their skeletons: in come the C files of `bpf/`, out go `*.skel.rs` with
//! the compiled program inside. Also compiles, for this machine, giveway's slack test and its congestion control for
//! background from their headers, and the static test program for rules. Needs clang; never reads this machine's
//! kernel.

use std::path::PathBuf;
use std::{env, process};

use libbpf_cargo::SkeletonBuilder;

const OBJECTS: &[&str] = &["access", "handover", "link", "nothing", "uplink"];

fn main() {
    println!("cargo::rerun-if-env-changed=CLANG");
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang-19".into());
    build_for_here(&clang, "slack", &["../bpf/slack.h"]);
    let rule = ["../bpf/timestamp.h", "../bpf/ledbat/rule.h", "../bpf/ledbat/receiver.h"];
    build_for_here(&clang, "background", &rule);
    build_for_here(&clang, "timestamps", &rule);
    println!("cargo::rerun-if-changed=../bpf/kernel_types.h");
    build_applicant(&clang);
    let out = PathBuf::from(variable("OUT_DIR"));
    for object in OBJECTS {
        let source = format!("bpf/{object}.bpf.c");
        println!("cargo::rerun-if-changed={source}");
        let built = SkeletonBuilder::new()
            .source(&source)
            .clang(&clang)
            .clang_args(clang_args())
            .build_and_generate(out.join(format!("{object}.skel.rs")));
        if let Err(error) = built {
            fail(&format!(
                "{source}: {error:#} (Debian's package clang-19 has the compiler; the variable CLANG names another)"
            ));
        }
    }
}

/// The parts of giveway's BPF programs that are plain C, for the lab's tests.
fn build_for_here(clang: &str, name: &str, headers: &[&str]) {
    let source = format!("c/{name}.c");
    for file in headers.iter().chain([&&*source]) {
        println!("cargo::rerun-if-changed={file}");
    }
    let built = cc::Build::new()
        .compiler(clang)
        .file(&source)
        .opt_level(2)
        .warnings_into_errors(true)
        .try_compile(name);
    if let Err(error) = built {
        fail(&format!("{source}: {error}"));
    }
}

fn build_applicant(clang: &str) {
    const SOURCE: &str = "c/applicant.c";
    println!("cargo::rerun-if-changed={SOURCE}");
    let mut compiler = process::Command::new(clang);
    compiler.args([
        "-O2", "-Wall", "-Wextra", "-Werror", "-static", "-pthread", SOURCE, "-o",
    ]);
    compiler.arg(PathBuf::from(variable("OUT_DIR")).join("applicant"));
    let target = variable("TARGET");
    if target != variable("HOST") {
        compiler.arg(format!("--target={target}"));
    }
    match compiler.status() {
        Ok(status) if status.success() => {}
        failed => fail(&format!("{SOURCE}: {clang} failed ({failed:?})")),
    }
}

/// Debian keeps each architecture's C types in a separate folder, which clang's BPF target does not search.
fn clang_args() -> Vec<String> {
    let multiarch = format!("/usr/include/{}-linux-gnu", variable("CARGO_CFG_TARGET_ARCH"));
    let args = [
        "-Wall",
        "-Wextra",
        "-Werror",
        "-Wno-unused-parameter",
        "-mcpu=v3",
        "-I../bpf",
        "-idirafter",
        &multiarch,
    ];
    args.map(str::to_owned).into()
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| fail(&format!("cargo did not set {name}")))
}

fn fail(message: &str) -> ! {
    for line in message.lines() {
        println!("cargo::error={line}");
    }
    process::exit(1)
}
