//! Name resolution inside one crate: from a path in a module to the module that defines the item.
//!
//! Knows modules, items, `use` with and without renaming, re-exports and globs. It does not know types of expressions:
//! a method call leads nowhere. Paths to other crates resolve to nothing.

use syn::{Item, UseTree, Visibility};

use crate::workspace::Crate;

/// Longest chain of re-exports that is followed: a bound for imports that lead to themselves.
const CHAIN_MAX: usize = 16;

/// The end of a path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resolved {
    /// A module, by its position in the crate.
    Module(usize),
    /// An item: position of the module that defines the item, and the item's name.
    Item(usize, String),
}

/// A name or glob that a `use` brings into its module.
#[derive(Clone, Debug)]
pub struct Import {
    /// The name in the importing module; `None` for a glob.
    pub name: Option<String>,
    pub path: Vec<String>,
    /// `pub use`, or with any other visibility.
    pub is_reexport: bool,
}

#[derive(Default)]
struct Scope {
    items: Vec<String>,
    imports: Vec<Import>,
}

/// All names of one crate.
pub struct Names<'a> {
    krate: &'a Crate,
    scopes: Vec<Scope>,
}

impl<'a> Names<'a> {
    pub fn new(krate: &'a Crate) -> Self {
        let scope = |module: &crate::workspace::Module| {
            let mut scope = Scope::default();
            for item in &module.items {
                match item {
                    Item::Use(it) => scope.imports.extend(imports(it)),
                    _ => scope.items.extend(name_of(item)),
                }
            }
            scope
        };
        let scopes = krate.modules.iter().map(scope).collect();
        Self { krate, scopes }
    }

    /// Where a path leads that stands in a module.
    pub fn resolve(&self, module: usize, path: &[String]) -> Option<Resolved> {
        self.follow(module, path, CHAIN_MAX)
    }

    fn follow(&self, module: usize, path: &[String], chain: usize) -> Option<Resolved> {
        let chain = chain.checked_sub(1)?;
        let (first, mut rest) = path.split_first()?;
        let mut at = match first.as_str() {
            "crate" => Resolved::Module(0),
            "self" => Resolved::Module(module),
            "super" => Resolved::Module(self.krate.modules[module].parent?),
            _ => self.look_up(module, first, rest.is_empty(), chain)?,
        };
        while let Some((name, after)) = rest.split_first() {
            let Resolved::Module(inside) = at else {
                return Some(at);
            };
            at = match name.as_str() {
                "super" => Resolved::Module(self.krate.modules[inside].parent?),
                "self" => Resolved::Module(inside),
                _ => self.look_up(inside, name, after.is_empty(), chain)?,
            };
            rest = after;
        }
        Some(at)
    }

    /// A name in a module. The last name of a path is rather an item than a module, any other rather a module.
    fn look_up(&self, module: usize, name: &str, is_last: bool, chain: usize) -> Option<Resolved> {
        let child = self.krate.modules[module].children.get(name).copied();
        if let (Some(child), false) = (child, is_last) {
            return Some(Resolved::Module(child));
        }
        let scope = &self.scopes[module];
        if scope.items.iter().any(|it| it == name) {
            return Some(Resolved::Item(module, name.to_owned()));
        }
        let named = scope
            .imports
            .iter()
            .filter(|it| it.name.as_deref() == Some(name));
        let mut found: Vec<Resolved> = named
            .filter_map(|it| self.follow(module, &it.path, chain))
            .collect();
        // A module and a function of one name come in by one `use`.
        found.sort_by_key(|it| matches!(it, Resolved::Module(_)) == is_last);
        let found = found.into_iter().next().or(child.map(Resolved::Module));
        found.or_else(|| self.look_in_globs(module, name, is_last, chain))
    }

    fn look_in_globs(
        &self,
        module: usize,
        name: &str,
        is_last: bool,
        chain: usize,
    ) -> Option<Resolved> {
        let chain = chain.checked_sub(1)?;
        let globs = self.scopes[module]
            .imports
            .iter()
            .filter(|it| it.name.is_none());
        globs
            .filter_map(|it| self.follow(module, &it.path, chain))
            .find_map(|target| match target {
                Resolved::Module(from) if from != module => {
                    self.look_up(from, name, is_last, chain)
                }
                _ => None,
            })
    }
}

/// The names and globs of a `use`.
pub fn imports(item: &syn::ItemUse) -> Vec<Import> {
    let mut found = Vec::new();
    if item.leading_colon.is_none() {
        flatten(&item.tree, &mut Vec::new(), &mut found);
    }
    let is_reexport = !matches!(item.vis, Visibility::Inherited);
    for import in &mut found {
        import.is_reexport = is_reexport;
    }
    found
}

fn flatten(tree: &UseTree, before: &mut Vec<String>, found: &mut Vec<Import>) {
    let mut add = |name: Option<String>, path: Vec<String>| {
        found.push(Import {
            name,
            path,
            is_reexport: false,
        });
    };
    let with = |name: &syn::Ident| [before.clone(), vec![name.to_string()]].concat();
    match tree {
        UseTree::Path(it) => {
            before.push(it.ident.to_string());
            flatten(&it.tree, before, found);
            before.pop();
        }
        UseTree::Name(it) if it.ident == "self" => add(before.last().cloned(), before.clone()),
        UseTree::Name(it) => add(Some(it.ident.to_string()), with(&it.ident)),
        UseTree::Rename(it) if it.ident == "self" => {
            add(Some(it.rename.to_string()), before.clone());
        }
        UseTree::Rename(it) => add(Some(it.rename.to_string()), with(&it.ident)),
        UseTree::Glob(_) => add(None, before.clone()),
        UseTree::Group(it) => {
            for inner in &it.items {
                flatten(inner, before, found);
            }
        }
    }
}

/// The name that an item defines in its module.
pub fn name_of(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(it) => &it.ident,
        Item::Enum(it) => &it.ident,
        Item::Fn(it) => &it.sig.ident,
        Item::Macro(it) => it.ident.as_ref()?,
        Item::Static(it) => &it.ident,
        Item::Struct(it) => &it.ident,
        Item::Trait(it) => &it.ident,
        Item::Type(it) => &it.ident,
        Item::Union(it) => &it.ident,
        _ => return None,
    };
    Some(name.to_string())
}

/// The names of a path: `a::b` of `a::b::<C>`.
pub fn names_of(path: &syn::Path) -> Vec<String> {
    path.segments
        .iter()
        .map(|it| it.ident.to_string())
        .collect()
}

/// The items by name, of all modules of a crate: module and item.
pub fn all_items(krate: &Crate) -> impl Iterator<Item = (usize, &Item)> {
    let modules = krate.modules.iter().enumerate();
    modules.flat_map(|(position, module)| module.items.iter().map(move |item| (position, item)))
}
