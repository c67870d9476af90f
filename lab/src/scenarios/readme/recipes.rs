// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The recipes as README.md has them. Input: the file, as it was when the lab was built. Output: commands and
//! configurations, word for word. A recipe that is new, gone or of another kind is an error: nothing is left out.

use anyhow::{Context, Result, ensure};

const README: &str = include_str!("../../../../README.md");
const RECIPES: &str = "Three recipes";
const INDENT: &str = "    ";

pub struct Recipes {
    /// Without the package's own build.
    pub install: Vec<String>,
    pub laptop: Vec<String>,
    pub robot: String,
    pub robot_commands: Vec<String>,
    pub edge_commands: Vec<String>,
}

impl Recipes {
    pub fn read() -> Result<Self> {
        Self::of(README)
    }

    fn of(text: &str) -> Result<Self> {
        let blocks = blocks(section(text, RECIPES)?);
        ensure!(
            blocks.len() == 3,
            "README.md has {} blocks of recipes, and this scenario runs 3",
            blocks.len()
        );
        let [laptop, robot, edge] = [0, 1, 2].map(|number| split(&blocks[number]));
        ensure!(
            laptop.0.len() == 3 && laptop.1.is_empty() && !robot.1.is_empty() && edge.1.is_empty(),
            "README.md's recipes are of other kinds"
        );
        Ok(Self {
            install: blocks_of_install(text)?,
            laptop: laptop.0,
            robot: robot.1,
            robot_commands: robot.0,
            edge_commands: edge.0,
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
    (
        commands.into_iter().map(Into::into).collect(),
        rest.join("\n").trim().to_owned(),
    )
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
        assert_eq!(recipes.laptop.len(), 3);
        assert!(recipes.laptop[0].starts_with("giveway exec "), "{:?}", recipes.laptop);
        assert!(recipes.laptop[2].contains(" --down "), "{:?}", recipes.laptop);
        assert!(
            recipes.robot.starts_with("[[deadline]]") && !recipes.robot.contains("sudo"),
            "{}",
            recipes.robot
        );
        assert_eq!((recipes.robot_commands.len(), recipes.edge_commands.len()), (4, 3));
    }

    #[test]
    fn unknown_recipe_is_an_error() {
        let more = README.replacen("**A robot.**", "    giveway more\n\nand\n\n**A robot.**", 1);
        assert!(Recipes::of(&more).is_err());
    }
}
