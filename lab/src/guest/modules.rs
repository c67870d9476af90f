// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The modules that the lab loads, out of the thousands of a kernel. Input: the modules' folder of a kernel's unpacked
//! package. Output: an initrd archive with the chosen ones and their dependencies, uncompressed, and the index that
//! modprobe and the kernel's autoload read.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::archive::{FILE, FileTree};
use crate::process::run;

/// Folders (with all in them) and beginnings of names, below `kernel/`.
const CHOSEN: &[&str] = &[
    "net/sched/",
    "net/ipv4/tcp_",
    "net/ipv4/inet_diag",
    "net/ipv4/udp_diag",
    "net/unix/unix_diag",
    "net/netlink/netlink_diag",
    "net/packet/",
    "net/core/pktgen",
    "net/bridge/bridge",
    "net/8021q/",
    "net/mac80211/",
    "net/wireless/cfg80211",
    "drivers/net/wireless/virtual/mac80211_hwsim",
    "drivers/net/bonding/",
    "drivers/net/dummy",
    "drivers/net/ifb",
    "drivers/net/macvlan",
    "drivers/net/netdevsim/",
    "drivers/net/tun",
    "drivers/net/veth",
    "drivers/net/wireguard/",
    "drivers/net/virtio_net",
    "drivers/char/virtio_console",
    "drivers/virtio/virtio_pci",
];

/// Its hash changes with the choice, so that no cached archive lacks a module.
pub fn file_name() -> String {
    let mut chosen = DefaultHasher::new();
    CHOSEN.hash(&mut chosen);
    format!("modules-{:016x}.cpio", chosen.finish())
}

pub fn pack(root: &Path, release: &str, archive: &Path) -> Result<()> {
    let all = Modules::below(&root.join("kernel"))?;
    let chosen = all.closure()?;
    let index = index(&chosen, release, &root.join("chosen"))?;
    let mut tree = FileTree::default();
    for (path, content) in chosen.into_iter().chain(index) {
        tree.add(&format!("usr/lib/modules/{release}/{path}"), FILE, content);
    }
    let file = File::create(archive).with_context(|| format!("cannot create {}", archive.display()))?;
    tree.write(BufWriter::new(file)).context("cannot write the modules")
}

/// Every module of the kernel: its path, by its name as `depends` spells it.
struct Modules {
    root: PathBuf,
    by_name: BTreeMap<String, String>,
}

impl Modules {
    fn below(root: &Path) -> Result<Self> {
        let mut by_name = BTreeMap::new();
        let mut folders = vec![root.to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
                let path = entry?.path();
                if path.is_dir() {
                    folders.push(path);
                } else if let Some(below) = path.strip_prefix(root).ok().and_then(Path::to_str) {
                    by_name.insert(name(below), below.to_owned());
                }
            }
        }
        Ok(Self {
            root: root.to_owned(),
            by_name,
        })
    }

    /// The chosen ones and what they need, as `kernel/...ko` with content.
    fn closure(&self) -> Result<BTreeMap<String, Vec<u8>>> {
        let is_chosen = |path: &&String| CHOSEN.iter().any(|chosen| path.starts_with(chosen));
        let mut open: Vec<String> = self.by_name.values().filter(is_chosen).cloned().collect();
        let mut found = BTreeMap::new();
        while let Some(path) = open.pop() {
            let plain = format!("kernel/{}", path.trim_end_matches(".xz"));
            if found.contains_key(&plain) {
                continue;
            }
            let mut unpack = Command::new("xz");
            unpack.arg("-dcf").arg(self.root.join(&path));
            let content = run(unpack)?.stdout;
            for needed in depends(&content) {
                let module = self.by_name.get(&needed);
                open.push(
                    module
                        .with_context(|| format!("{path} needs {needed}, which is missing"))?
                        .clone(),
                );
            }
            found.insert(plain, content);
        }
        Ok(found)
    }
}

/// `kernel/net/sched/sch-x.ko.xz` is called `sch_x`.
fn name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split(".ko").next().unwrap_or(file).replace('-', "_")
}

/// The dependencies stated in a module.
fn depends(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|window| window == KEY) else {
        return Vec::new();
    };
    let value = module[at + KEY.len()..].split(|byte| *byte == 0).next().unwrap_or(&[]);
    let value = String::from_utf8_lossy(value);
    value.split(',').filter(|name| !name.is_empty()).map(name).collect()
}

/// What depmod writes about them, in `folder`.
fn index(modules: &BTreeMap<String, Vec<u8>>, release: &str, folder: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let root = folder.join("lib/modules").join(release);
    for (path, content) in modules {
        let file = root.join(path);
        fs::create_dir_all(file.parent().unwrap_or(&root))?;
        fs::write(file, content)?;
    }
    for list in ["modules.order", "modules.builtin"] {
        fs::write(root.join(list), "")?;
    }
    let mut depmod = Command::new("/sbin/depmod");
    depmod.arg("--basedir").arg(folder).arg(release);
    run(depmod).context("is kmod installed?")?;
    let text = ["modules.dep", "modules.alias", "modules.symbols", "modules.softdep"];
    let read = |name: &str| Ok((name.to_owned(), fs::read(root.join(name))?));
    let index = text.into_iter().map(read).collect();
    fs::remove_dir_all(folder)?;
    index
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_says_what_it_needs() {
        let module = b"\x7fELF\0license=GPL\0depends=crc32c,nf-conntrack\0name=x\0";
        assert_eq!(depends(module), ["crc32c", "nf_conntrack"]);
        assert!(depends(b"\0depends=\0name=x").is_empty() && depends(b"nothing").is_empty());
    }

    #[test]
    fn a_name_is_spelled_as_the_kernel_spells_it() {
        assert_eq!(name("drivers/firmware/qemu-fw-cfg.ko.xz"), "qemu_fw_cfg");
    }
}
