// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel's own type information (BTF), in which each function, structure and tracepoint has its name. Input: names. Output:
//! which of them this kernel has. Our programs find the kernel's fields by it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;

use anyhow::{Context, Result, ensure};
use libbpf_rs::btf::types::{FuncProto, Ptr, Struct};
use libbpf_rs::btf::{Btf, BtfType, ReferencesType as _};

use super::kernel_release;
use super::libbpf_log::explain;

const KERNEL_BTF: &str = "/sys/kernel/btf/vmlinux";

/// Says in one line what no program could be loaded without, before the loader says it in thirty.
pub fn check_btf() -> Result<()> {
    check(KERNEL_BTF)
}

fn check(path: &str) -> Result<()> {
    let advice = "nothing can be watched or changed; use a kernel built with CONFIG_DEBUG_INFO_BTF=y";
    let mut magic = [0; 2];
    File::open(path)
        .and_then(|mut file| file.read_exact(&mut magic))
        .with_context(|| format!("this kernel tells no types ({path} cannot be read): {advice}"))?;
    ensure!(
        u16::from_ne_bytes(magic) == 0xeb9f,
        "this kernel tells no types ({path} is not BTF): {advice}"
    );
    Ok(())
}

/// The kernel's type information, in which each function and tracepoint has its name.
pub struct Types(Option<Btf<'static>>);

impl Types {
    pub fn load() -> Self {
        let load = |()| explain("read the kernel's types", Btf::from_vmlinux);
        Self(check_btf().and_then(load).ok())
    }

    pub fn have(&self, names: &[&str]) -> Result<()> {
        let btf = self
            .0
            .as_ref()
            .context("cannot tell without the kernel's types (BTF)")?;
        let there = |name: &str| btf.type_by_name::<BtfType<'_>>(name).is_some();
        let missing: Vec<&str> = names.iter().copied().filter(|name| !there(name)).collect();
        ensure!(
            missing.is_empty(),
            "this kernel ({}) has no {}",
            kernel_release(),
            missing.join(", ")
        );
        Ok(())
    }

    /// Whether a congestion control in BPF sees each acknowledgement, which is how `cong_control` is called since then.
    pub fn scavenger(&self) -> Result<()> {
        let seen = self.0.as_ref().and_then(parameters_of_cong_control);
        ensure!(seen == Some(4), "needs Linux 6.10 (this is {})", kernel_release());
        Ok(())
    }

    /// Whether this kernel has BPF qdiscs.
    pub fn bpf_qdisc(&self) -> Result<()> {
        self.have(&["Qdisc_ops", "bpf_qdisc_skb_drop"])
            .context("needs Linux 6.16 with CONFIG_NET_SCH_BPF")
    }
}

fn parameters_of_cong_control(btf: &Btf<'_>) -> Option<usize> {
    let ops: Struct<'_> = btf.type_by_name("tcp_congestion_ops")?;
    let function = ops
        .iter()
        .find(|member| member.name == Some(OsStr::new("cong_control")))?;
    let pointer: Ptr<'_> = btf.type_by_id(function.ty)?;
    let prototype = FuncProto::try_from(pointer.referenced_type()).ok()?;
    Some(prototype.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_and_what_is_there_is_not() {
        let types = Types::load();
        types.have(&["tcp_sendmsg"]).unwrap();
        let message = types
            .have(&["tcp_sendmsg", "no_such_function"])
            .unwrap_err()
            .to_string();
        assert!(
            message.contains("no_such_function") && !message.contains("tcp_sendmsg"),
            "{message}"
        );
    }

    #[test]
    fn something_that_is_not_btf_is_refused() {
        let message = check("/dev/zero").unwrap_err().to_string();
        assert!(message.contains("is not BTF"), "{message}");
        assert!(check("/dev/null").is_err());
    }
}
