// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The results that the repository keeps: their pages are those that the lab writes, and they stay small.

#[cfg(test)]
mod results {
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::process::Command;

    /// In bytes; of all, of one archive of raw data, and of one plot.
    const MOST: u64 = 20_000_000;
    const MOST_RAW: u64 = 1_000_000;
    const MOST_PLOT: u64 = 30_000;
    const MOST_FILES: usize = 300;

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
    }

    /// With their sizes.
    fn files(folder: &Path, found: &mut Vec<(PathBuf, u64)>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                files(&path, found);
            } else {
                let size = path.metadata().unwrap().len();
                found.push((path, size));
            }
        }
    }

    #[test]
    fn pages_are_those_that_the_lab_writes() {
        let lab = env!("CARGO_BIN_EXE_giveway-lab");
        let output = Command::new(lab)
            .args(["results", "--check"])
            .current_dir(root())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "`giveway-lab results` writes them:\n{said}");
    }

    #[test]
    fn results_stay_small() {
        let mut found = Vec::new();
        files(&root().join("bench/results"), &mut found);
        let all: u64 = found.iter().map(|(_, size)| size).sum();
        assert!(found.len() < MOST_FILES, "{} files", found.len());
        assert!(all < MOST, "{all} bytes");
        for (path, size) in &found {
            let most = match path.extension().and_then(|extension| extension.to_str()) {
                Some("xz") => MOST_RAW,
                Some("svg") => MOST_PLOT,
                _ => MOST_RAW,
            };
            assert!(*size <= most, "{}: {size} bytes", path.display());
        }
    }

    #[test]
    fn a_folder_has_a_result_a_page_and_nothing_unknown() {
        for entry in fs::read_dir(root().join("bench/results")).unwrap() {
            let folder = entry.unwrap().path();
            if folder.is_file() {
                assert_eq!(folder.file_name().unwrap(), "README.md");
                continue;
            }
            let mut found = Vec::new();
            files(&folder, &mut found);
            let mut names: Vec<_> = found
                .iter()
                .map(|(path, _)| path.strip_prefix(&folder).unwrap().to_string_lossy().into_owned())
                .collect();
            names.sort();
            let known = ["README.md", "plot.svg", "raw.tar.xz", "result.json"];
            assert!(
                names.iter().all(|name| known.contains(&name.as_str())),
                "{}: {names:?}",
                folder.display()
            );
            assert!(
                names.contains(&"README.md".to_owned()) && names.contains(&"result.json".to_owned()),
                "{}",
                folder.display()
            );
        }
    }
}
