// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The newest 7.x kernel that Debian builds for its stable release's backports.
//! Input: the machine's own apt, for the mirror and the checksums. Output: a cached kernel image and the modules that
//! the lab loads, as an initrd archive. Installs nothing; apt's own lists and settings stay as they are.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;

use super::modules;
use crate::process::run;

/// Where 7.x kernels are built, and what their index is signed with.
const SUITE: &str = "trixie-backports";
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// How what zstd packed begins.
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
/// How long the newest kernel is believed to be the newest.
const BELIEVED: Duration = Duration::from_secs(24 * 3600);

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq, ValueEnum)]
pub enum Flavour {
    Stock,
    /// PREEMPT_RT
    #[value(name = "rt")]
    Realtime,
}

/// A kernel in the cache.
pub struct Kernel {
    pub release: String,
    folder: PathBuf,
}

impl Kernel {
    pub fn image(&self) -> PathBuf {
        self.folder.join("image")
    }

    pub fn modules(&self) -> PathBuf {
        self.folder.join("modules.cpio")
    }

    fn is_whole(&self) -> bool {
        self.image().exists() && self.modules().exists()
    }
}

/// The newest kernel, from the cache where it was looked up within a day. GIVEWAY_LAB_KERNEL asks for the newest whose
/// version begins so, for instance `7.2`.
pub fn newest(flavour: Flavour, cache: &Path) -> Result<Kernel> {
    let wanted = std::env::var("GIVEWAY_LAB_KERNEL").unwrap_or_else(|_| "7".into());
    let note = cache.join(format!("newest-{wanted}-{}", flavour.suffix()));
    let known = fs::read_to_string(&note)
        .ok()
        .map(|release| Kernel::cached(cache, release))
        .filter(|kernel| kernel.is_whole());
    match known {
        Some(kernel) if is_young(&note) => Ok(kernel),
        known => match fetch(flavour, &wanted, cache) {
            Ok(kernel) => {
                fs::write(&note, &kernel.release)?;
                Ok(kernel)
            }
            Err(error) => {
                let kernel = known.ok_or(error)?;
                eprintln!("guest: cannot ask for a newer kernel now; {} is here", kernel.release);
                Ok(kernel)
            }
        },
    }
}

fn is_young(file: &Path) -> bool {
    let written = fs::metadata(file).and_then(|metadata| metadata.modified());
    let age = written.map(|written| SystemTime::now().duration_since(written).unwrap_or_default());
    age.is_ok_and(|age| age < BELIEVED)
}

impl Kernel {
    fn cached(cache: &Path, release: String) -> Self {
        let folder = cache.join(&release);
        Self { release, folder }
    }
}

impl Flavour {
    /// How the names of its packages end.
    fn suffix(self) -> &'static str {
        match self {
            Flavour::Stock => "amd64",
            Flavour::Realtime => "rt-amd64",
        }
    }
}

fn fetch(flavour: Flavour, wanted: &str, cache: &Path) -> Result<Kernel> {
    ensure!(
        cfg!(target_arch = "x86_64"),
        "the guest is an amd64 machine, and this is none"
    );
    let apt = Apt::of_this_machine(cache)?;
    let release = apt.newest(flavour, wanted)?;
    let kernel = Kernel::cached(cache, release);
    if kernel.is_whole() {
        return Ok(kernel);
    }
    let packages = ["binary", "modules"].map(|what| format!("linux-{what}-{}", kernel.release));
    eprintln!("guest: fetching kernel {}", kernel.release);
    // Whole or not at all: it gets its name at the end.
    let begun = cache.join("fetching");
    if begun.exists() {
        fs::remove_dir_all(&begun)?;
    }
    fs::create_dir_all(&begun)?;
    apt.unpack(&packages, &begun)?;
    let root = begun.join("usr/lib/modules").join(&kernel.release);
    unpack_image(&root.join("vmlinuz"), &begun.join("image"))?;
    eprintln!("guest: choosing its modules");
    modules::pack(&begun, &kernel.release, &begun.join("modules.cpio"))?;
    fs::remove_dir_all(begun.join("usr"))?;
    if kernel.folder.exists() {
        fs::remove_dir_all(&kernel.folder)?;
    }
    fs::rename(&begun, &kernel.folder)?;
    Ok(kernel)
}

/// An ELF image spares the emulator two of ten seconds: it need not emulate the kernel unpacking itself. QEMU starts
/// it by its PVH entry. One that is packed otherwise than with zstd is left as it is.
fn unpack_image(packed: &Path, image: &Path) -> Result<()> {
    let bytes = fs::read(packed).context("the kernel's package has no vmlinuz")?;
    let payload = payload(&bytes).filter(|payload| payload.starts_with(ZSTD));
    let Some(payload) = payload else {
        return fs::copy(packed, image).map(drop).context("cannot copy the kernel");
    };
    let file = image.with_extension("zst");
    fs::write(&file, payload)?;
    let mut unpack = Command::new("zstd");
    unpack.args(["-dq", "--rm"]).arg(&file);
    run(unpack).context("cannot unpack the kernel")?;
    Ok(())
}

/// The packed kernel within a bzImage, without the length that ends it (Documentation/arch/x86/boot.rst: setup_sects,
/// payload_offset, payload_length).
fn payload(image: &[u8]) -> Option<&[u8]> {
    let number = |at: usize| Some(u32::from_le_bytes(image.get(at..at + 4)?.try_into().ok()?) as usize);
    let setup_bytes = (usize::from(*image.get(0x1f1)?) + 1) * 512;
    let from = setup_bytes.checked_add(number(0x248)?)?;
    let to = from.checked_add(number(0x24c)?.checked_sub(4)?)?;
    image.get(from..to)
}

/// apt with a source and a state of its own.
struct Apt {
    options: Vec<String>,
}

impl Apt {
    fn of_this_machine(cache: &Path) -> Result<Self> {
        let state = cache.join("apt");
        fs::create_dir_all(state.join("lists/partial"))?;
        let source = state.join("source.list");
        let line = format!("deb [signed-by={KEYRING}] {} {SUITE} main\n", mirror()?);
        fs::write(&source, line)?;
        let apt = Self {
            options: [
                format!("Dir::Etc::SourceList={}", source.display()),
                "Dir::Etc::SourceParts=-".into(),
                format!("Dir::State::Lists={}", state.join("lists").display()),
                "Dir::Cache::pkgcache=".into(),
                "Dir::Cache::srcpkgcache=".into(),
                // The cache may be where only root can write.
                "APT::Sandbox::User=root".into(),
                "APT::Update::Post-Invoke-Success::=true".into(),
            ]
            .into(),
        };
        run(apt.command("apt-get", &["-qq", "update"])).with_context(|| format!("cannot read the index of {SUITE}"))?;
        Ok(apt)
    }

    fn command(&self, program: &str, words: &[&str]) -> Command {
        let mut command = Command::new(program);
        for option in &self.options {
            command.args(["-o", option]);
        }
        command.args(words);
        command
    }

    fn newest(&self, flavour: Flavour, wanted: &str) -> Result<String> {
        let said = run(self.command("apt-cache", &["pkgnames", "linux-binary-"]))?.stdout;
        let said = String::from_utf8_lossy(&said);
        let releases = said.lines().filter_map(|name| name.strip_prefix("linux-binary-"));
        newest_of(releases, flavour, wanted)
            .map(Into::into)
            .with_context(|| format!("{SUITE} has no kernel {wanted} for {}", flavour.suffix()))
    }

    fn unpack(&self, packages: &[String; 2], into: &Path) -> Result<()> {
        let [binary, modules] = packages;
        let mut download = self.command("apt-get", &["-qq", "download", binary, modules]);
        download.current_dir(into);
        run(download).context("cannot fetch the kernel")?;
        for entry in fs::read_dir(into)? {
            let file = entry?.path();
            if file.extension().is_some_and(|extension| extension == "deb") {
                let mut unpack = Command::new("dpkg-deb");
                unpack.arg("-x").arg(&file).arg(into);
                run(unpack)?;
                fs::remove_file(&file)?;
            }
        }
        Ok(())
    }
}

/// The Debian mirror that this machine uses, whichever way its sources are written.
fn mirror() -> Result<String> {
    let mut targets = Command::new("apt-get");
    targets.args([
        "indextargets",
        "--format",
        "$(LABEL) $(REPO_URI)",
        "Created-By: Packages",
    ]);
    let said = run(targets).context("the guest's kernel comes through apt, which does not work here")?;
    let said = String::from_utf8_lossy(&said.stdout);
    let mirror = said.lines().find_map(|line| line.strip_prefix("Debian "));
    match mirror {
        Some(mirror) => Ok(mirror.into()),
        None => bail!("apt has no Debian mirror among its sources, or was never updated: try `apt-get update`"),
    }
}

fn newest_of<'a>(releases: impl Iterator<Item = &'a str>, flavour: Flavour, wanted: &str) -> Option<&'a str> {
    let numbers = |text: &str| -> Option<Vec<u32>> { text.split('.').map(|part| part.parse().ok()).collect() };
    let wanted = numbers(wanted)?;
    let version = |release: &&str| {
        let (version, rest) = release.split_once('+')?;
        let (_, suffix) = rest.split_once('-')?;
        let version = numbers(version)?;
        (suffix == flavour.suffix() && version.starts_with(&wanted)).then_some(version)
    };
    let known = releases.filter(|release| version(release).is_some());
    known.max_by_key(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RELEASES: [&str; 6] = [
        "7.2.12+deb13-amd64",
        "7.2.9+deb13-amd64",
        "7.2.12+deb13-rt-amd64",
        "7.10.1+deb13-cloud-amd64",
        "6.19.14+deb13-amd64",
        "nonsense",
    ];

    #[test]
    fn a_payload_beyond_the_image_is_none() {
        let mut image = vec![0; 2048];
        image[0x1f1] = 1;
        image[0x248..0x24c].copy_from_slice(&8u32.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&20u32.to_le_bytes());
        assert_eq!(payload(&image).map(<[u8]>::len), Some(16));
        image[0x24c..0x250].copy_from_slice(&2000u32.to_le_bytes());
        assert!(payload(&image).is_none() && payload(&image[..100]).is_none());
        image[0x24c..0x250].copy_from_slice(&2u32.to_le_bytes());
        assert!(payload(&image).is_none());
    }

    #[test]
    fn twelve_is_newer_than_nine_and_every_flavour_has_its_own() {
        let newest = |flavour, wanted| newest_of(RELEASES.into_iter(), flavour, wanted);
        assert_eq!(newest(Flavour::Stock, "7"), Some("7.2.12+deb13-amd64"));
        assert_eq!(newest(Flavour::Realtime, "7"), Some("7.2.12+deb13-rt-amd64"));
        assert_eq!(newest(Flavour::Stock, "6.19"), Some("6.19.14+deb13-amd64"));
        assert_eq!(newest(Flavour::Realtime, "6"), None);
        assert_eq!(newest(Flavour::Stock, "seven"), None);
    }
}
