// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A tutorial's text. In: Markdown. Out: the commands in its `console` blocks, each with the lines that the page promises
//! below it, and whether what was printed keeps the promise. It runs nothing.

const PROMPTS: [&str; 2] = ["# ", "$ "];
/// For any text within a line; alone, for any lines.
const ANYTHING: &str = "...";
const EXIT_CODE: &str = "# exit code ";

pub struct Step {
    pub command: String,
    /// None: whatever it prints.
    pub promised: Vec<String>,
    pub exit_code: i32,
}

pub fn steps(page: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut in_block = false;
    // The word at which the here-document of the latest command ends.
    let mut document: Option<String> = None;
    for line in page.lines() {
        if !in_block {
            in_block = line == "```console";
        } else if let Some(end) = &document {
            let step = steps.last_mut().expect("a here-document belongs to a command");
            step.command += &format!("\n{line}");
            if line == end {
                document = None;
            }
        } else if line == "```" {
            in_block = false;
        } else if let Some(command) = PROMPTS.iter().find_map(|prompt| line.strip_prefix(prompt)) {
            document = end_of_document(command);
            let exit_code = command.split_once(EXIT_CODE).map_or("0", |(_, code)| code);
            steps.push(Step {
                command: command.to_owned(),
                promised: Vec::new(),
                exit_code: exit_code.trim().parse().expect("an exit code"),
            });
        } else {
            let step = steps.last_mut().expect("a block begins with a command");
            step.promised.push(line.to_owned());
        }
    }
    assert!(!in_block, "a block does not end");
    steps
}

fn end_of_document(command: &str) -> Option<String> {
    let word = command.split_once("<<")?.1.trim_start_matches('\'');
    Some(word.chars().take_while(char::is_ascii_alphanumeric).collect())
}

pub fn keeps(promised: &[String], printed: &[&str]) -> bool {
    let Some((first, promised_after)) = promised.split_first() else {
        return printed.is_empty();
    };
    if first == ANYTHING {
        return (0..=printed.len()).any(|from| keeps(promised_after, &printed[from..]));
    }
    let Some((line, printed_after)) = printed.split_first() else {
        return false;
    };
    is_like(first, line.trim_end()) && keeps(promised_after, printed_after)
}

fn is_like(pattern: &str, line: &str) -> bool {
    let Some((before, after)) = pattern.split_once(ANYTHING) else {
        return pattern == line;
    };
    let Some(rest) = line.strip_prefix(before) else {
        return false;
    };
    let mut starts = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
    starts.any(|start| is_like(after, &rest[start..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "text\n```console\n# cat >file <<'END'\n# not a command\nEND\n# false  # exit code 1\n$ uptime\nup ...\n```\n# text\n";

    #[test]
    fn commands_have_their_documents_promises_and_exit_codes() {
        let steps = steps(PAGE);
        let commands: Vec<_> = steps.iter().map(|step| step.command.as_str()).collect();
        assert_eq!(
            commands,
            [
                "cat >file <<'END'\n# not a command\nEND",
                "false  # exit code 1",
                "uptime"
            ]
        );
        assert_eq!(steps.iter().map(|step| step.exit_code).collect::<Vec<_>>(), [0, 1, 0]);
        assert!(steps[0].promised.is_empty() && steps[1].promised.is_empty());
        assert_eq!(steps[2].promised, ["up ..."]);
    }

    #[test]
    fn an_ellipsis_stands_for_text_in_a_line_or_for_lines() {
        let keeps = |promised: &str, printed: &[&str]| {
            let promised: Vec<_> = promised.lines().map(str::to_owned).collect();
            keeps(&promised, printed)
        };
        assert!(keeps("0... s", &["0.02 s"]) && !keeps("0... s", &["1.02 s"]));
        assert!(keeps("...\nb\n...", &["a", "b"]) && !keeps("...\nb\n...", &["a", "c"]));
        assert!(keeps("a", &["a  "]) && !keeps("a", &["a", "b"]) && !keeps("a", &[]));
        assert!(keeps("...a...b", &["xaxab"]) && !keeps("...a...b", &["xabx"]));
    }
}
