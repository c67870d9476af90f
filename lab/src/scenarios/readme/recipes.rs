// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The recipes as README.md has them. Input: the file, as it was when the lab was built. Output: commands and
//! configurations, word for word. A recipe that is new, gone or of another kind is an error: nothing is left out.

use anyhow::{Context, Result, bail, ensure};

const README: &str = include_str!("../../../../README.md");
const INDENT: &str = "    ";

pub struct Recipes {
    /// Without the package's own build.
    pub install: Vec<String>,
    pub laptop: Vec<String>,
    pub rule: String,
    /// The key in `[link]` that lets other kernels than the newest hold a limit.
    pub rate: &'static str,
    /// By which the rule is read.
    pub reload: String,
    pub robot: String,
    pub robot_commands: Vec<String>,
    pub edge: String,
    pub download: String,
}

impl Recipes {
    pub fn read() -> Result<Self> {
        Self::of(README)
    }

    fn of(text: &str) -> Result<Self> {
        let blocks = blocks(section(text, "Four recipes")?);
        ensure!(
            blocks.len() == 5,
            "README.md has {} blocks of recipes, and this scenario runs 5",
            blocks.len()
        );
        let [laptop, rule, robot, edge, download] = [0, 1, 2, 3, 4].map(|number| split(&blocks[number]));
        let install = blocks_of_install(text)?;
        let reload = "sudo giveway reload";
        ensure!(
            text.contains(&format!("`{reload}`")),
            "README.md does not say `{reload}`"
        );
        ensure!(
            laptop.1.is_empty() && rule.0.is_empty() && edge.0.is_empty(),
            "README.md's recipes are of other kinds"
        );
        let [download_line] = &download.0[..] else {
            bail!("README.md's download is not one command");
        };
        let rate = "rate_mbit";
        let hint = format!("`{rate}` in `[link]`");
        ensure!(
            section(text, "Four recipes")?.contains(&hint),
            "README.md does not say {hint}"
        );
        Ok(Self {
            install,
            rate,
            laptop: laptop.0,
            rule: rule.1,
            reload: reload.to_owned(),
            robot: robot.1,
            robot_commands: robot.0,
            edge: edge.1,
            download: download_line.clone(),
        })
    }
}

fn section<'a>(text: &'a str, title: &str) -> Result<&'a str> {
    let after = text.split_once(&format!("\n## {title}\n"));
    let after = after.with_context(|| format!("README.md has no section {title}"))?.1;
    Ok(after.split("\n## ").next().unwrap_or(after))
}

/// Indented lines that follow each other, without their indent.
fn blocks(text: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut current = String::new();
    for line in text.lines().chain(["end"]) {
        match line.strip_prefix(INDENT) {
            Some(rest) => current += &format!("{rest}\n"),
            None if line.is_empty() && !current.is_empty() => current.push('\n'),
            None if current.is_empty() => {}
            None => blocks.push(std::mem::take(&mut current)),
        }
    }
    blocks
}

/// Commands, and the rest, which is configuration.
fn split(block: &str) -> (Vec<String>, String) {
    let is_command = |line: &&str| ["giveway ", "sudo "].iter().any(|word| line.starts_with(word));
    let (commands, rest): (Vec<&str>, Vec<&str>) = block.lines().partition(is_command);
    (commands.into_iter().map(Into::into).collect(), rest.join("\n"))
}

/// All but the package's own build.
fn blocks_of_install(text: &str) -> Result<Vec<String>> {
    let block = blocks(section(text, "Install")?).into_iter().next();
    let (commands, rest) = split(&block.context("README.md has no block in Install")?);
    let is_build = rest.starts_with("make deb ") && rest.lines().count() == 1;
    ensure!(
        is_build,
        "README.md's Install has something else than commands of giveway's: {rest}"
    );
    Ok(commands)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_configurations_are_those_of_the_file() {
        let recipes = Recipes::read().unwrap();
        assert!(
            recipes.install.last().unwrap().starts_with("sudo giveway revert"),
            "{:?}",
            recipes.install
        );
        assert!(recipes.laptop[0].starts_with("giveway exec "), "{:?}", recipes.laptop);
        assert!(recipes.rule.starts_with("[[rule]]\nexe = "), "{}", recipes.rule);
        assert!(
            recipes.robot.contains("[[deadline]]") && !recipes.robot.contains("sudo"),
            "{}",
            recipes.robot
        );
        assert_eq!(recipes.robot_commands.len(), 1);
        assert!(recipes.edge.contains("[[uplink]]"), "{}", recipes.edge);
        assert!(recipes.download.contains(" --down "), "{}", recipes.download);
    }

    #[test]
    fn unknown_recipe_is_an_error() {
        let more = README.replacen("**A robot.**", "    giveway more\n\nand\n\n**A robot.**", 1);
        assert!(Recipes::of(&more).is_err());
    }
}
