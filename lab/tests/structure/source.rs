// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A crate's source files as modules: what each of them defines, takes in by `use`, and names anywhere. Code for tests is
//! left out. What macros make is not seen; a macro's arguments are, as the paths among their tokens.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, ForeignItem, Item, Meta, UseTree, Visibility};

/// The segments of `crate::a::Name`.
pub type Path = Vec<String>;

pub struct Module {
    pub file: String,
    pub parent: Option<usize>,
    pub modules: BTreeMap<String, usize>,
    /// With an enum's variants.
    pub items: BTreeMap<String, BTreeSet<String>>,
    pub types: Vec<Type>,
    pub uses: BTreeMap<String, Path>,
    pub globs: Vec<Path>,
    /// What it says, each `use` included.
    pub named: BTreeSet<Path>,
    /// Where the files of its `mod name;` are.
    folder: String,
}

pub struct Type {
    pub name: String,
    /// No `pub` of any kind.
    pub is_private: bool,
}

/// The texts of a crate's files, by their path below `src`.
pub fn files(name: &str) -> BTreeMap<String, String> {
    let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .join(name)
        .join("src");
    let mut files = BTreeMap::new();
    read_below(&source, "", &mut files);
    files
}

fn read_below(folder: &std::path::Path, name: &str, files: &mut BTreeMap<String, String>) {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    for entry in entries {
        let path = entry.expect("an entry").path();
        let name = format!("{name}{}", path.file_name().expect("a name").display());
        if path.is_dir() {
            read_below(&path, &format!("{name}/"), files);
        } else if name.ends_with(".rs") {
            files.insert(name, fs::read_to_string(&path).expect("a file's text"));
        }
    }
}

/// The modules of the crate, or of both, that these files are, by their path below `src`.
pub fn modules(files: &BTreeMap<String, String>) -> Vec<Module> {
    let modules = Vec::new();
    let mut reader = Reader { files, modules, at: 0 };
    for root in ["lib.rs", "main.rs"] {
        if files.contains_key(root) {
            reader.at = reader.begin(root.to_owned(), None, String::new());
            reader.read(root);
        }
    }
    reader.modules
}

struct Reader<'a> {
    files: &'a BTreeMap<String, String>,
    modules: Vec<Module>,
    at: usize,
}

impl Reader<'_> {
    fn here(&mut self) -> &mut Module {
        &mut self.modules[self.at]
    }

    fn begin(&mut self, file: String, parent: Option<usize>, folder: String) -> usize {
        self.modules.push(Module {
            file,
            parent,
            folder,
            modules: BTreeMap::new(),
            items: BTreeMap::new(),
            types: Vec::new(),
            uses: BTreeMap::new(),
            globs: Vec::new(),
            named: BTreeSet::new(),
        });
        self.modules.len() - 1
    }

    fn read(&mut self, file: &str) {
        let parsed = syn::parse_file(&self.files[file]).unwrap_or_else(|error| panic!("{file}: {error}"));
        self.visit_file(&parsed);
    }

    fn define(&mut self, name: &syn::Ident) {
        self.here().items.entry(name.to_string()).or_default();
    }

    fn define_type(&mut self, name: &syn::Ident, visibility: &Visibility) {
        self.define(name);
        self.here().types.push(Type {
            name: name.to_string(),
            is_private: matches!(visibility, Visibility::Inherited),
        });
    }

    fn read_use(&mut self, tree: &UseTree, mut path: Path) {
        match tree {
            UseTree::Path(inner) => {
                path.push(inner.ident.to_string());
                self.read_use(&inner.tree, path);
            }
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.read_use(tree, path.clone())),
            UseTree::Glob(_) => self.here().globs.push(path),
            UseTree::Name(name) => {
                if name.ident != "self" {
                    path.push(name.ident.to_string());
                }
                self.take(path[path.len() - 1].clone(), path);
            }
            UseTree::Rename(renamed) => {
                if renamed.ident != "self" {
                    path.push(renamed.ident.to_string());
                }
                self.take(renamed.rename.to_string(), path);
            }
        }
    }

    fn take(&mut self, name: String, path: Path) {
        self.here().named.insert(path.clone());
        self.here().uses.entry(name).or_insert(path);
    }

    /// The paths among tokens that are no syntax known here.
    fn read_tokens(&mut self, tokens: TokenStream) {
        let (mut path, mut colons, mut after_dot) = (Path::new(), 0, false);
        for token in tokens {
            match &token {
                TokenTree::Ident(_) if after_dot => {}
                TokenTree::Ident(name) => {
                    if colons != 2 {
                        self.name(&mut path);
                    }
                    path.push(name.to_string());
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => {
                    colons += 1;
                    continue;
                }
                TokenTree::Group(group) => self.read_tokens(group.stream()),
                _ => self.name(&mut path),
            }
            colons = 0;
            after_dot = matches!(&token, TokenTree::Punct(punct) if punct.as_char() == '.');
        }
        self.name(&mut path);
    }

    fn name(&mut self, path: &mut Path) {
        if !path.is_empty() {
            self.here().named.insert(std::mem::take(path));
        }
    }

    fn read_module(&mut self, item: &syn::ItemMod) {
        let (outer, name) = (self.at, item.ident.to_string());
        let folder = format!("{}{name}/", self.modules[outer].folder);
        let file = match item.content {
            Some(_) => self.modules[outer].file.clone(),
            None => format!("{}.rs", folder.trim_end_matches('/')),
        };
        assert!(self.files.contains_key(&file), "{file}, a module, is not there");
        self.at = self.begin(file.clone(), Some(outer), folder);
        self.modules[outer].modules.insert(name, self.at);
        match &item.content {
            Some((_, items)) => items.iter().for_each(|item| self.visit_item(item)),
            None => self.read(&file),
        }
        self.at = outer;
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if is_test(attributes(item)) {
            return;
        }
        match item {
            Item::Mod(module) => return self.read_module(module),
            Item::Const(item) => self.define(&item.ident),
            Item::Enum(item) => {
                self.define_type(&item.ident, &item.vis);
                let variants = item.variants.iter().map(|variant| variant.ident.to_string());
                self.here().items.insert(item.ident.to_string(), variants.collect());
            }
            Item::Fn(item) => self.define(&item.sig.ident),
            Item::ForeignMod(block) => {
                for item in &block.items {
                    match item {
                        ForeignItem::Fn(item) => self.define(&item.sig.ident),
                        ForeignItem::Static(item) => self.define(&item.ident),
                        _ => {}
                    }
                }
            }
            Item::Macro(item) => item.ident.iter().for_each(|name| self.define(name)),
            Item::Static(item) => self.define(&item.ident),
            Item::Struct(item) => self.define_type(&item.ident, &item.vis),
            Item::Trait(item) => self.define_type(&item.ident, &item.vis),
            Item::Type(item) => self.define_type(&item.ident, &item.vis),
            Item::Union(item) => self.define_type(&item.ident, &item.vis),
            _ => {}
        }
        visit::visit_item(self, item);
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.read_use(&item.tree, Path::new());
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_test(&item.attrs) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let mut names = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.name(&mut names);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, called: &'ast syn::Macro) {
        self.read_tokens(called.tokens.clone());
        visit::visit_macro(self, called);
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        if let Meta::List(list) = &attribute.meta {
            self.read_tokens(list.tokens.clone());
        }
        visit::visit_attribute(self, attribute);
    }
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) => list.path.is_ident("cfg") && list.tokens.to_string() == "test",
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
