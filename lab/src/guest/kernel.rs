// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A kernel built by Debian: the newest 7.x of its stable release's backports, or the release's own. Input: the
//! machine's apt, for the mirror and the checksums. Output: a cached kernel image and the modules that the lab loads,
//! as an initrd archive. Installs nothing; apt's own lists and settings stay unchanged.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;

use super::architecture::Architecture;
use super::modules;
use crate::process::run;

/// What the indexes are signed with.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// The magic bytes of compressed files, and the program that unpacks them.
const PACKERS: [(&[u8], &str); 2] = [(&[0x28, 0xb5, 0x2f, 0xfd], "zstd"), (&[0x1f, 0x8b], "gzip")];
/// How long the cached kernel counts as the newest.
const AUTHENTICATED: Duration = Duration::from_secs(24 * 3600);

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq, ValueEnum)]
pub enum Flavour {
    /// The newest 7.x of Debian 13's backports
    Stock,
    /// The same with PREEMPT_RT
    #[value(name = "rt")]
    Realtime,
    /// Debian 13's own (6.12)
    #[value(name = "debian-13")]
    Debian13,
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
        self.folder.join(modules::file_name())
    }

    fn is_whole(&self) -> bool {
        self.image().exists() && self.modules().exists()
    }
}

/// The newest kernel, from the cache if it was checked within a day. GIVEWAY_LAB_KERNEL asks for the newest whose
/// version begins so, for instance `7.2`; a release has only its own.
pub fn newest(flavour: Flavour, architecture: Architecture, cache: &Path) -> Result<Kernel> {
    let wanted = match flavour {
        Flavour::Debian13 => "6".into(),
        _ => std::env::var("GIVEWAY_LAB_KERNEL").unwrap_or_else(|_| "7".into()),
    };
    let of = match flavour {
        Flavour::Debian13 => "debian-13-",
        _ => "",
    };
    let note = cache.join(format!("newest-{of}{wanted}-{}", flavour.suffix(architecture)));
    let known = fs::read_to_string(&note)
        .ok()
        .map(|release| Kernel::cached(cache, release))
        .filter(|kernel| kernel.is_whole());
    match known {
        Some(kernel) if is_young(&note) => Ok(kernel),
        known => match fetch(flavour, architecture, &wanted, cache) {
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
    age.is_ok_and(|age| age < AUTHENTICATED)
}

impl Kernel {
    fn cached(cache: &Path, release: String) -> Self {
        let folder = cache.join(&release);
        Self { release, folder }
    }
}

impl Flavour {
    /// The suffix of its packages' names.
    fn suffix(self, architecture: Architecture) -> String {
        match self {
            Flavour::Stock | Flavour::Debian13 => architecture.debian().into(),
            Flavour::Realtime => format!("rt-{}", architecture.debian()),
        }
    }

    fn suite(self) -> &'static str {
        match self {
            Flavour::Stock | Flavour::Realtime => "trixie-backports",
            Flavour::Debian13 => "trixie",
        }
    }

    /// The prefixes of its packages' names; the first has the kernel itself. In a release they are one package.
    fn packages(self) -> &'static [&'static str] {
        match self {
            Flavour::Stock | Flavour::Realtime => &["linux-binary-", "linux-modules-"],
            Flavour::Debian13 => &["linux-image-"],
        }
    }
}

fn fetch(flavour: Flavour, architecture: Architecture, wanted: &str, cache: &Path) -> Result<Kernel> {
    let apt = Apt::of_this_machine(flavour.suite(), architecture, cache)?;
    let release = apt.newest(flavour, architecture, wanted)?;
    let kernel = Kernel::cached(cache, release);
    if kernel.is_whole() {
        return Ok(kernel);
    }
    let named = |beginning: &&str| format!("{beginning}{}", kernel.release);
    let packages: Vec<String> = flavour.packages().iter().map(named).collect();
    eprintln!("guest: fetching kernel {}", kernel.release);
    // Whole or not at all: it gets its name at the end.
    let begun = cache.join("fetching");
    if begun.exists() {
        fs::remove_dir_all(&begun)?;
    }
    fs::create_dir_all(&begun)?;
    apt.unpack(&packages, &begun)?;
    let is_there = |path: &PathBuf| path.exists();
    let roots = ["usr/lib", "lib"].map(|lib| begun.join(lib).join("modules").join(&kernel.release));
    let root = roots.into_iter().find(is_there);
    let root = root.context("the kernel's packages have no modules")?;
    let images = [
        root.join("vmlinuz"),
        begun.join("boot").join(format!("vmlinuz-{}", kernel.release)),
    ];
    let packed = images.into_iter().find(is_there);
    unpack_image(
        &packed.context("the kernel's packages have no vmlinuz")?,
        &begun.join("image"),
    )?;
    eprintln!("guest: choosing its modules");
    modules::pack(&root, &kernel.release, &begun.join(modules::file_name()))?;
    for folder in ["usr", "lib", "boot", "etc"].map(|name| begun.join(name)) {
        if folder.exists() {
            fs::remove_dir_all(folder)?;
        }
    }
    if kernel.folder.exists() {
        fs::remove_dir_all(&kernel.folder)?;
    }
    fs::rename(&begun, &kernel.folder)?;
    Ok(kernel)
}

/// An unpacked image saves the emulator two of ten seconds of unpacking. On amd64 it is an ELF file, which QEMU starts
/// by its PVH entry. An image in another format stays as it is.
fn unpack_image(packed: &Path, image: &Path) -> Result<()> {
    let bytes = fs::read(packed).context("cannot read the kernel")?;
    let payload = payload(&bytes).and_then(|payload| {
        let packer = PACKERS.iter().find(|(beginning, _)| payload.starts_with(beginning));
        packer.map(|(_, program)| (*program, payload))
    });
    let Some((program, payload)) = payload else {
        return fs::copy(packed, image).map(drop).context("cannot copy the kernel");
    };
    let file = image.with_extension("packed");
    fs::write(&file, payload)?;
    let mut unpack = Command::new(program);
    unpack
        .arg("-dcq")
        .stdin(fs::File::open(&file)?)
        .stdout(fs::File::create(image)?);
    let status = unpack.status().with_context(|| format!("cannot start `{program}`"))?;
    ensure!(status.success(), "`{program}` cannot unpack the kernel ({status})");
    Ok(fs::remove_file(&file)?)
}

/// The packed kernel within an image: of a bzImage, without the length that ends it (Documentation/arch/x86/boot.rst:
/// setup_sects, payload_offset, payload_length), or of an EFI image (drivers/firmware/efi/libstub/zboot-header.S).
fn payload(image: &[u8]) -> Option<&[u8]> {
    let number = |at: usize| Some(u32::from_le_bytes(image.get(at..at + 4)?.try_into().ok()?) as usize);
    if image.get(4..8) == Some(b"zimg") {
        return image.get(number(8)?..number(8)?.checked_add(number(12)?)?);
    }
    let setup_bytes = (usize::from(*image.get(0x1f1)?) + 1) * 512;
    let from = setup_bytes.checked_add(number(0x248)?)?;
    let to = from.checked_add(number(0x24c)?.checked_sub(4)?)?;
    image.get(from..to)
}

/// apt with its own source and state.
struct Apt {
    suite: &'static str,
    options: Vec<String>,
}

impl Apt {
    fn of_this_machine(suite: &'static str, architecture: Architecture, cache: &Path) -> Result<Self> {
        let debian = architecture.debian();
        let state = cache.join(format!("apt-{suite}-{debian}"));
        fs::create_dir_all(state.join("lists/partial"))?;
        let source = state.join("source.list");
        let line = format!("deb [arch={debian} signed-by={KEYRING}] {} {suite} main\n", mirror()?);
        fs::write(&source, line)?;
        let apt = Self {
            suite,
            options: [
                format!("APT::Architecture={debian}"),
                format!("APT::Architectures={debian}"),
                format!("Dir::Etc::SourceList={}", source.display()),
                "Dir::Etc::SourceParts=-".into(),
                format!("Dir::State::Lists={}", state.join("lists").display()),
                "Dir::Cache::pkgcache=".into(),
                "Dir::Cache::srcpkgcache=".into(),
                // Only root may be able to write to the cache.
                "APT::Sandbox::User=root".into(),
                "APT::Update::Post-Invoke-Success::=true".into(),
            ]
            .into(),
        };
        run(apt.command("apt-get", &["-qq", "update"])).with_context(|| format!("cannot read the index of {suite}"))?;
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

    fn newest(&self, flavour: Flavour, architecture: Architecture, wanted: &str) -> Result<String> {
        let package = flavour.packages()[0];
        let said = run(self.command("apt-cache", &["pkgnames", package]))?.stdout;
        let said = String::from_utf8_lossy(&said);
        let releases = said.lines().filter_map(|name| name.strip_prefix(package));
        let suffix = flavour.suffix(architecture);
        newest_of(releases, &suffix, wanted)
            .map(Into::into)
            .with_context(|| format!("{} has no kernel {wanted} for {suffix}", self.suite))
    }

    fn unpack(&self, packages: &[String], into: &Path) -> Result<()> {
        let mut download = self.command("apt-get", &["-qq", "download"]);
        download.args(packages).current_dir(into);
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
pub fn mirror() -> Result<String> {
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

/// Of those whose names end so.
fn newest_of<'a>(releases: impl Iterator<Item = &'a str>, suffix: &str, wanted: &str) -> Option<&'a str> {
    let numbers = |text: &str| -> Option<Vec<u32>> { text.split('.').map(|part| part.parse().ok()).collect() };
    let wanted = numbers(wanted)?;
    let version = |release: &&str| {
        let (version, rest) = release.split_once('+')?;
        let (_, end) = rest.split_once('-')?;
        let version = numbers(version)?;
        (end == suffix && version.starts_with(&wanted)).then_some(version)
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
        image[4..8].copy_from_slice(b"zimg");
        image[8..12].copy_from_slice(&64u32.to_le_bytes());
        image[12..16].copy_from_slice(&100u32.to_le_bytes());
        assert_eq!(payload(&image).map(<[u8]>::len), Some(100));
        image[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(payload(&image).is_none());
    }

    #[test]
    fn twelve_is_newer_than_nine_and_every_flavour_has_its_own() {
        let newest =
            |flavour: Flavour, wanted| newest_of(RELEASES.into_iter(), &flavour.suffix(Architecture::Amd64), wanted);
        assert_eq!(newest(Flavour::Stock, "7"), Some("7.2.12+deb13-amd64"));
        assert_eq!(newest(Flavour::Realtime, "7"), Some("7.2.12+deb13-rt-amd64"));
        assert_eq!(newest(Flavour::Stock, "6.19"), Some("6.19.14+deb13-amd64"));
        assert_eq!(newest(Flavour::Realtime, "6"), None);
        assert_eq!(newest(Flavour::Debian13, "6"), Some("6.19.14+deb13-amd64"));
        let arm64 = Flavour::Stock.suffix(Architecture::Arm64);
        assert_eq!(newest_of(RELEASES.into_iter(), &arm64, "7"), None);
        assert_eq!(newest(Flavour::Stock, "seven"), None);
    }
}
