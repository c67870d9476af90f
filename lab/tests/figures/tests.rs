// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The pages of the repository, and pages that were made wrong.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::expression::{Numbers, evaluate};
use super::page::findings;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("a workspace")
        .to_owned()
}

fn pages() -> Vec<PathBuf> {
    let mut pages: Vec<PathBuf> = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"]
        .map(|name| root().join(name))
        .into();
    pages.retain(|page| page.exists());
    let mut folders = vec![root().join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    pages
}

/// Of the result whose page this is.
fn numbers_of(page: &Path) -> Result<Numbers, String> {
    if page.file_name().is_none_or(|name| name != "README.md") {
        return Err("the target is no result's README.md".into());
    }
    let file = page.with_file_name("result.json");
    let text = fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    let result: Value = serde_json::from_str(&text).map_err(|error| format!("{}: {error}", file.display()))?;
    let mut numbers = Numbers::new();
    let variants = result["variants"].as_object().ok_or("the result has no variants")?;
    for (variant, metrics) in variants {
        for (metric, value) in metrics.as_object().into_iter().flatten() {
            numbers.insert(format!("{variant}.{metric}"), value.as_f64().unwrap_or(f64::NAN));
        }
    }
    Ok(numbers)
}

#[test]
fn each_figure_of_the_docs_is_in_its_result() {
    let mut results: BTreeMap<PathBuf, Result<Numbers, String>> = BTreeMap::new();
    let mut figures = 0;
    let mut wrong = Vec::new();
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        let name = page.strip_prefix(root()).unwrap().display().to_string();
        let folder = page.parent().unwrap().to_owned();
        let (count, found) = findings(&name, &text, |target| {
            let path = folder.join(target);
            results.entry(path.clone()).or_insert_with(|| numbers_of(&path)).clone()
        });
        figures += count;
        wrong.extend(found);
    }
    assert!(figures > 0, "no page has a figure");
    assert!(
        wrong.is_empty(),
        "{} wrong of {figures} figures:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

fn numbers() -> Numbers {
    [
        ("plain/8.goodput_mbit", 10.0),
        ("queue+wake/8.goodput_mbit", 15.04),
        ("20ms/a-1.p50_ms", 1234.5),
        ("x.late", 0.0),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

fn of_page(text: &str) -> Vec<String> {
    findings("page.md", text, |target| match target {
        "../bench/results/x/README.md" => Ok(numbers()),
        other => Err(format!("{other}: there is no such file")),
    })
    .1
}

const TARGET: &str = "../bench/results/x/README.md";

#[test]
fn a_figure_that_the_result_does_not_have_is_told_with_its_page_line_text_and_value() {
    let page = format!(
        "A word.\n\nIt has [51%][more] of it.\n\n[more]: {TARGET} \"100 * queue+wake/8.goodput_mbit / plain/8.goodput_mbit - 100\"\n"
    );
    let found = of_page(&page);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].starts_with("page.md:3: [51%][more]: the result has 50.40"),
        "{found:?}"
    );
    assert!(of_page(&page.replace("51%", "50%")).is_empty());
    assert!(of_page(&page.replace("51%", "50.4%")).is_empty());
    assert_eq!(of_page(&page.replace("51%", "50.5%")).len(), 1);
    assert_eq!(of_page(&page.replace("51%", "half")).len(), 1);
}

#[test]
fn a_figure_in_a_table_and_one_of_thousands_are_read() {
    let page = format!(
        "| a | [1,234.5 ms][p50] | [-0.5][less] |\n\n[p50]: {TARGET} \"20ms/a-1.p50_ms\"\n[less]: {TARGET} \"x.late - 0.5\"\n"
    );
    assert!(of_page(&page).is_empty(), "{:?}", of_page(&page));
    assert_eq!(of_page(&page.replace("1,234.5", "1,234.6")).len(), 1);
    assert_eq!(of_page(&page.replace("[-0.5]", "[0.5]")).len(), 1);
}

#[test]
fn a_definition_without_a_use_and_a_use_without_a_definition_are_told() {
    let unused = of_page(&format!("Text.\n\n[late]: {TARGET} \"x.late\"\n"));
    assert_eq!(unused, ["page.md:3: nothing uses [late]"]);
    let undefined = of_page("It is [0][late].\n");
    assert_eq!(undefined, ["page.md:1: [0][late] has no definition"]);
}

#[test]
fn a_result_or_a_number_that_does_not_exist_is_told() {
    let gone = of_page("[0][late]\n\n[late]: ../bench/results/gone/README.md \"x.late\"\n");
    assert!(gone[0].contains("there is no such file"), "{gone:?}");
    let unknown = of_page(&format!("[0][late]\n\n[late]: {TARGET} \"x.later\"\n"));
    assert!(unknown[0].contains("the result has no `x.later`"), "{unknown:?}");
}

#[test]
fn code_has_no_figures() {
    let page = "```\n[1][no]\n```\n\n`[1][no]`\n\n    [1][no]\n";
    assert!(of_page(page).is_empty(), "{:?}", of_page(page));
}

#[test]
fn expressions_are_what_their_page_says() {
    let of = |text| evaluate(text, &numbers());
    assert_eq!(
        of("2 * (queue+wake/8.goodput_mbit - plain/8.goodput_mbit)"),
        Ok(2.0 * (15.04 - 10.0))
    );
    assert_eq!(of("min(3, max(plain/8.goodput_mbit, 2), 4)"), Ok(3.0));
    assert_eq!(of("median(1, 9, 3)"), Ok(3.0));
    assert_eq!(of("median(1, 9)"), Ok(5.0));
    assert_eq!(of("10 / 4"), Ok(2.5));
    for wrong in [
        "plain/8",
        "plain/8.goodput_mbit/2",
        "1 / 0",
        "x.late / x.late",
        "min(1",
        "2 3",
        "",
    ] {
        assert!(of(wrong).is_err(), "{wrong}: {:?}", of(wrong));
    }
}
