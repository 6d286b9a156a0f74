//! Rules: the files of a crate use one another in one direction only, and so do the modules inside each module.
//!
//! File A uses file B if A names an item that B defines: in a private `use`, in a path, or in the text of a macro call.
//! `mod` and re-exports are no use. A call of a method is invisible.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::visit::{self, Visit};

use crate::Finding;
use crate::names::{Names, Resolved, imports, names_of};
use crate::workspace::{Crate, Module, Workspace, split_path};

/// For each pair of files of one crate the items that the first uses of the second.
type Uses = BTreeMap<(String, String), BTreeSet<String>>;

/// All circles of files of all crates.
pub fn check(workspace: &Workspace) -> Vec<Finding> {
    let crates = workspace.crates.iter();
    crates
        .flat_map(|krate| circles(krate, "files", &uses(krate)))
        .collect()
}

/// All circles of modules of all crates. A module stands for all files below it, beside the file that declares it.
pub fn check_modules(workspace: &Workspace) -> Vec<Finding> {
    let mut found = Vec::new();
    for krate in &workspace.crates {
        let uses = uses(krate);
        for module in krate.modules.iter().filter(|it| !it.children.is_empty()) {
            found.extend(circles(
                krate,
                "modules",
                &between_children(krate, module, &uses),
            ));
        }
    }
    found
}

/// The uses between the modules that `parent` declares. Its own file stands for itself.
fn between_children(krate: &Crate, parent: &Module, uses: &Uses) -> Uses {
    let mut place: BTreeMap<&str, String> = BTreeMap::new();
    for module in krate.modules.iter().filter(|it| krate.has_own_file(it)) {
        let below = module.path.strip_prefix(parent.path.as_slice());
        let Some(below) = below else { continue };
        let name = below.first().unwrap_or(&module.file);
        place.insert(&module.file, name.clone());
    }
    let mut between = Uses::new();
    for ((from, to), items) in uses {
        if let (Some(from), Some(to)) = (place.get(from.as_str()), place.get(to.as_str()))
            && from != to
        {
            let between = between.entry((from.clone(), to.clone())).or_default();
            between.extend(items.iter().cloned());
        }
    }
    between
}

fn uses(krate: &Crate) -> Uses {
    let names = Names::new(krate);
    let mut uses = Uses::new();
    for (position, module) in krate.modules.iter().enumerate() {
        let mut visitor = Visitor {
            krate,
            names: &names,
            module: position,
            uses: &mut uses,
            locals: BTreeSet::new(),
        };
        for item in &module.items {
            visitor.visit_item(item);
        }
    }
    uses
}

struct Visitor<'a> {
    krate: &'a Crate,
    names: &'a Names<'a>,
    module: usize,
    uses: &'a mut Uses,
    /// Names of parameters and variables of the present function: these hide items of the same name.
    locals: BTreeSet<String>,
}

/// Collects the names that patterns bind.
#[derive(Default)]
struct Bindings(BTreeSet<String>);

impl<'ast> Visit<'ast> for Bindings {
    fn visit_pat_ident(&mut self, it: &'ast syn::PatIdent) {
        self.0.insert(it.ident.to_string());
        visit::visit_pat_ident(self, it);
    }
}

impl Visitor<'_> {
    fn add(&mut self, path: &[String]) {
        if let [name] = path
            && self.locals.contains(name)
        {
            return;
        }
        let Some(Resolved::Item(module, name)) = self.names.resolve(self.module, path) else {
            return;
        };
        let from = &self.krate.modules[self.module].file;
        let to = &self.krate.modules[module].file;
        if from != to {
            let pair = (from.clone(), to.clone());
            self.uses.entry(pair).or_default().insert(name);
        }
    }

    /// Paths in the text of a macro call, which is not parsed. A single name counts if it is a type's or is called.
    fn add_tokens(&mut self, tokens: TokenStream) {
        let mut tokens = tokens.into_iter().peekable();
        let mut path: Vec<String> = Vec::new();
        let mut is_member = false;
        while let Some(token) = tokens.next() {
            match token {
                TokenTree::Ident(name) => {
                    path.push(name.to_string());
                    let goes_on = matches!(tokens.peek(), Some(TokenTree::Punct(it)) if it.as_char() == ':')
                        && {
                            tokens.next();
                            matches!(tokens.peek(), Some(TokenTree::Punct(it)) if it.as_char() == ':')
                        };
                    if goes_on {
                        tokens.next();
                        continue;
                    }
                    let is_call = matches!(tokens.peek(), Some(TokenTree::Group(it)) if it.delimiter() == Delimiter::Parenthesis);
                    let is_type = path[0].starts_with(char::is_uppercase);
                    if !is_member && (path.len() > 1 || is_call || is_type) {
                        self.add(&path);
                    }
                }
                TokenTree::Group(group) => self.add_tokens(group.stream()),
                TokenTree::Punct(it) => {
                    is_member = it.as_char() == '.';
                    path.clear();
                    continue;
                }
                TokenTree::Literal(_) => {}
            }
            is_member = false;
            path.clear();
        }
    }
}

impl<'ast> Visit<'ast> for Visitor<'_> {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        let mut bindings = Bindings::default();
        bindings.visit_item_fn(item);
        let outer = std::mem::replace(&mut self.locals, bindings.0);
        visit::visit_item_fn(self, item);
        self.locals = outer;
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        let mut bindings = Bindings::default();
        bindings.visit_impl_item_fn(item);
        let outer = std::mem::replace(&mut self.locals, bindings.0);
        visit::visit_impl_item_fn(self, item);
        self.locals = outer;
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        let mut bindings = Bindings::default();
        bindings.visit_trait_item_fn(item);
        let outer = std::mem::replace(&mut self.locals, bindings.0);
        visit::visit_trait_item_fn(self, item);
        self.locals = outer;
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        for import in imports(item) {
            if !import.is_reexport {
                self.add(&import.path);
            }
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            self.add(&names_of(path));
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.visit_path(&call.path);
        self.add_tokens(call.tokens.clone());
    }

    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}

    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}
}

fn circles(krate: &Crate, kind: &str, uses: &Uses) -> Vec<Finding> {
    let reached: BTreeMap<&String, BTreeSet<&String>> = uses
        .keys()
        .map(|(from, _)| (from, reach(from, uses)))
        .collect();
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for (&file, after) in &reached {
        let is_mutual = |it: &&String| reached.get(*it).is_some_and(|back| back.contains(file));
        let circle: BTreeSet<&String> = after.iter().copied().filter(is_mutual).collect();
        if circle.len() > 1 && seen.insert(circle.clone()) {
            found.push(Finding::new(&krate.folder, describe(kind, &circle, uses)));
        }
    }
    found
}

/// All files that a file uses, directly or by others.
fn reach<'a>(file: &'a String, uses: &'a Uses) -> BTreeSet<&'a String> {
    let mut reached = BTreeSet::new();
    let mut open = vec![file];
    while let Some(from) = open.pop() {
        for (_, to) in uses.keys().filter(|(it, _)| it == from) {
            if reached.insert(to) {
                open.push(to);
            }
        }
    }
    reached
}

fn used(from: &str, to: &str, items: &str) -> String {
    format!("\n        {from} uses {to}: {items}")
}

fn describe(kind: &str, circle: &BTreeSet<&String>, uses: &Uses) -> String {
    let short = |file: &String| split_path(file).map_or(file.as_str(), |it| it.1).to_owned();
    let files: Vec<String> = circle.iter().copied().map(short).collect();
    let mut text = format!("circle of {} {kind}: {}", files.len(), files.join(", "));
    for ((from, to), items) in uses {
        if circle.contains(from) && circle.contains(to) {
            let items: Vec<&str> = items.iter().map(String::as_str).collect();
            text.push_str(&used(&short(from), &short(to), &items.join(", ")));
        }
    }
    text
}
