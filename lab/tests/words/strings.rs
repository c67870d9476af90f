// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The strings of `engine` and `daemon` that people may read: string literals, and the doc comments that become help (clap) or
//! the documentation of keys (`section!`). Code for tests is left out, and so are recordings, which keep the words that they
//! were made with.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Expr, Item, Lit, Meta};

use super::patterns::findings;

const CRATES: [&str; 2] = ["engine", "daemon"];
/// What clap derives: there a doc comment is help.
const HELP: [&str; 4] = ["Args", "Parser", "Subcommand", "ValueEnum"];

/// By its path below `src`.
type Files = BTreeMap<String, String>;

fn files(name: &str) -> Files {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name).join("src");
    let mut files = Files::new();
    add_below(&folder, "", &mut files);
    files
}

fn add_below(folder: &Path, name: &str, files: &mut Files) {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    for entry in entries {
        let path = entry.expect("an entry").path();
        let name = format!("{name}{}", path.file_name().expect("a name").to_string_lossy());
        if path.is_dir() {
            add_below(&path, &format!("{name}/"), files);
        } else if name.ends_with(".rs") {
            files.insert(name, fs::read_to_string(&path).expect("a file's text"));
        }
    }
}

/// Of a file and what it declares.
#[derive(Default)]
struct Reader {
    texts: Vec<String>,
    /// Modules in files of their own that are built for tests alone.
    test_modules: Vec<String>,
    is_help: bool,
}

impl Reader {
    fn read(text: &str) -> syn::Result<Self> {
        let mut reader = Self::default();
        reader.visit_file(&syn::parse_file(text)?);
        Ok(reader)
    }

    /// The string literals among a macro's tokens. A doc comment there is one, too.
    fn read_tokens(&mut self, tokens: TokenStream) {
        for token in tokens {
            match token {
                TokenTree::Group(group) => self.read_tokens(group.stream()),
                TokenTree::Literal(literal) => {
                    if let Lit::Str(text) = Lit::new(literal) {
                        self.texts.push(text.value());
                    }
                }
                TokenTree::Ident(_) | TokenTree::Punct(_) => {}
            }
        }
    }

    /// Whether its doc comments, and those of its fields, are help.
    fn with_help(&mut self, attributes: &[Attribute], visit: impl FnOnce(&mut Self)) {
        let outer = std::mem::replace(&mut self.is_help, is_help(attributes));
        visit(self);
        self.is_help = outer;
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes = attributes(item);
        if is_test(attributes) {
            if let Item::Mod(module) = item {
                self.test_modules.push(module.ident.to_string());
            }
            return;
        }
        self.with_help(attributes, |reader| visit::visit_item(reader, item));
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_test(&item.attrs) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_lit_str(&mut self, text: &'ast syn::LitStr) {
        self.texts.push(text.value());
    }

    fn visit_macro(&mut self, called: &'ast syn::Macro) {
        self.read_tokens(called.tokens.clone());
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        match &attribute.meta {
            Meta::NameValue(pair) if pair.path.is_ident("doc") => {
                if let (true, Expr::Lit(text)) = (self.is_help, &pair.value)
                    && let Lit::Str(text) = &text.lit
                {
                    self.texts.push(text.value());
                }
            }
            // Of clap and thiserror; what else has strings says nothing to people.
            Meta::List(list) => self.read_tokens(list.tokens.clone()),
            _ => {}
        }
    }
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) => {
            let condition = list.tokens.to_string();
            list.path.is_ident("cfg") && condition.contains("test") && !condition.contains("not")
        }
        _ => false,
    })
}

fn is_help(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) if list.path.is_ident("derive") => {
            let derived = list.tokens.to_string();
            derived.split([',', ' ', ':']).any(|name| HELP.contains(&name))
        }
        _ => false,
    })
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Where the files of its `mod name;` are.
fn folder_of(file: &str) -> String {
    match file {
        "lib.rs" | "main.rs" => String::new(),
        _ => format!("{}/", file.trim_end_matches(".rs")),
    }
}

/// Each text with its file. Help that goes over several lines is one.
fn texts(files: &Files) -> Vec<(String, String)> {
    let mut readers = Vec::new();
    let mut test_modules = Vec::new();
    for (file, text) in files {
        let reader = Reader::read(text).unwrap_or_else(|error| panic!("{file}: {error}"));
        let folder = folder_of(file);
        test_modules.extend(reader.test_modules.iter().map(|name| format!("{folder}{name}")));
        readers.push((file, reader.texts));
    }
    let is_of_tests = |file: &str| {
        test_modules.iter().any(|module| {
            let rest = file.strip_prefix(module.as_str());
            rest.is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
        })
    };
    let shipped = readers.into_iter().filter(|(file, _)| !is_of_tests(file));
    shipped
        .flat_map(|(file, texts)| texts.into_iter().map(move |text| (file.clone(), text)))
        .collect()
}

#[test]
fn strings_of_the_program_say_the_fields_words() {
    let mut problems = Vec::new();
    for name in CRATES {
        for (file, text) in texts(&files(name)) {
            let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
            let start: String = text.chars().take(80).collect();
            let findings = findings(&text);
            problems.extend(
                findings
                    .iter()
                    .map(|finding| format!("{name}/src/{file}: {finding}, in \"{start}\"")),
            );
        }
    }
    assert!(problems.is_empty(), "{}:\n{}", problems.len(), problems.join("\n"));
}

#[test]
fn strings_and_help_are_read_and_tests_and_comments_are_not() {
    let source = r#"
        //! a comment
        /// help of a command
        #[derive(clap::Args)]
        struct Args {
            /// help of an option
            #[arg(value_name = "an argument")]
            a: bool,
        }
        /// a comment
        fn f() {
            let a = "a literal";
            println!("in a macro: {a}");
        }
        section! {
            /// of a key
            Keys {}
        }
        #[cfg(test)]
        mod tests {
            const A: &str = "of a test";
        }
        #[cfg(any(test, feature = "corpus"))]
        mod recordings;
    "#;
    let reader = Reader::read(source).unwrap();
    let mut read: Vec<&str> = reader.texts.iter().map(|text| text.trim()).collect();
    read.sort_unstable();
    assert_eq!(
        read,
        [
            "a literal",
            "an argument",
            "help of a command",
            "help of an option",
            "in a macro: {a}",
            "of a key"
        ]
    );
    assert_eq!(reader.test_modules, ["tests", "recordings"]);
    let files = Files::from([
        ("lib.rs".to_owned(), source.to_owned()),
        (
            "recordings.rs".to_owned(),
            r#"const B: &str = "of a recording";"#.to_owned(),
        ),
        (
            "recordings/more.rs".to_owned(),
            r#"const C: &str = "more of it";"#.to_owned(),
        ),
    ]);
    assert!(texts(&files).iter().all(|(file, _)| file == "lib.rs"));
}
