// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where a name is defined: through imports, renames, globs and re-exports.

use super::graph::Arrows;
use super::source::{Module, Path};

#[derive(Clone, Copy)]
enum Found {
    Module(usize),
    /// By the module that defines it.
    Item(usize),
}

pub fn arrows(modules: &[Module]) -> Arrows {
    let names = Names(modules);
    let mut arrows = Arrows::new();
    for (at, module) in modules.iter().enumerate() {
        for path in &module.named {
            // A module by itself is nothing that its file defines; what is named in it is.
            let full = names.in_full(at, path);
            let Some(Found::Item(there)) = names.resolve(at, &full, false, &mut Vec::new()) else {
                continue;
            };
            let (from, to) = (&module.file, &modules[there].file);
            if from != to && !(full[0] == "super" && names.is_parent(to, at)) {
                let of_file = arrows.entry(from.clone()).or_default();
                of_file.entry(to.clone()).or_default().insert(full.join("::"));
            }
        }
    }
    arrows
}

struct Names<'a>(&'a [Module]);

/// Those that are being looked up, so that names which are imported from each other end.
type Asked = Vec<(usize, String)>;

impl Names<'_> {
    fn is_parent(&self, file: &str, mut at: usize) -> bool {
        while let Some(parent) = self.0[at].parent {
            if self.0[parent].file == file {
                return true;
            }
            at = parent;
        }
        false
    }

    /// A path with its first name as the module's own `use` has it.
    fn in_full(&self, at: usize, path: &[String]) -> Path {
        let here = &self.0[at];
        let mut path = path.to_vec();
        // As long as one import builds upon another.
        for _ in 0..8 {
            if path.len() > 1 && path[0] == "self" {
                path.remove(0);
                continue;
            }
            let first = &path[0];
            if here.items.contains_key(first) || here.modules.contains_key(first) {
                break;
            }
            let from_glob = |glob: &&Path| self.in_glob(at, glob, first, false, &mut Vec::new()).is_some();
            let before = match here.uses.get(first) {
                Some(taken) => taken.clone(),
                None => match here.globs.iter().find(from_glob) {
                    Some(glob) => [glob.as_slice(), std::slice::from_ref(first)].concat(),
                    None => break,
                },
            };
            if before[0] == *first {
                break;
            }
            path.splice(..1, before);
        }
        path
    }

    fn resolve(&self, mut at: usize, path: &[String], leads_on: bool, asked: &mut Asked) -> Option<Found> {
        let mut is_ours = false;
        for (index, name) in path.iter().enumerate() {
            let leads_on = leads_on || index + 1 < path.len();
            match name.as_str() {
                "crate" => {
                    while let Some(parent) = self.0[at].parent {
                        at = parent;
                    }
                }
                "self" => {}
                "super" => at = self.0[at].parent?,
                name => match self.member(at, name, leads_on, asked) {
                    Some(Found::Module(module)) => at = module,
                    Some(item) => return Some(item),
                    // A macro makes it.
                    None => return is_ours.then_some(Found::Item(at)),
                },
            }
            is_ours = true;
        }
        Some(Found::Module(at))
    }

    /// Modules and functions may have the same name: what leads on is a module.
    fn member(&self, at: usize, name: &str, leads_on: bool, asked: &mut Asked) -> Option<Found> {
        let module = &self.0[at];
        let item = module.items.contains_key(name).then_some(Found::Item(at));
        let inner = module.modules.get(name).copied().map(Found::Module);
        if let Some(found) = if leads_on { inner.or(item) } else { item.or(inner) } {
            return Some(found);
        }
        let question = (at, name.to_owned());
        if asked.contains(&question) {
            return None;
        }
        asked.push(question);
        let taken = module.uses.get(name);
        let found = taken
            .and_then(|path| self.resolve(at, path, leads_on, asked))
            .or_else(|| {
                let mut globs = module.globs.iter();
                globs.find_map(|glob| self.in_glob(at, glob, name, leads_on, asked))
            });
        asked.pop();
        found
    }

    fn in_glob(&self, at: usize, glob: &[String], name: &str, leads_on: bool, asked: &mut Asked) -> Option<Found> {
        match self.resolve(at, glob, true, asked)? {
            Found::Module(module) => self.member(module, name, leads_on, asked),
            Found::Item(module) => {
                let variants = self.0[module].items.get(&glob[glob.len() - 1])?;
                variants.contains(name).then_some(Found::Item(module))
            }
        }
    }
}
