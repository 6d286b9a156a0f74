//! Rules: lengths of functions and files, methods and fields of types.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Fields, ImplItem, Item, Type};

use crate::Finding;
use crate::names::{Names, Resolved, all_items, names_of};
use crate::workspace::{Crate, Workspace, folder_of};

/// Most lines of a function, from `fn` to the closing brace.
const FUNCTION_LINES_MAX: usize = 64;
/// Most lines of a file, with its tests.
const FILE_LINES_MAX: usize = 620;
/// Most files directly in one folder, without those of tests.
const FOLDER_FILES_MAX: usize = 20;
/// Most inherent methods of a type, over all files of its crate.
const METHODS_MAX: usize = 50;
/// Most fields of a struct or of a variant.
const FIELDS_MAX: usize = 12;
/// Types with a form that is given from outside, each with its crate, the number of its fields and the reason.
const GIVEN_FORMS: &[(&str, &str, usize, &str)] = &[(
    "types",
    "Attr",
    13,
    "the attributes that `stat` returns are one list, and each of them is named there",
)];

/// Files of any crate, tests included, that are too long.
pub fn check_files(workspace: &Workspace) -> Vec<Finding> {
    let lines = workspace
        .texts
        .iter()
        .map(|(path, text)| (path, text.lines().count()));
    let long = lines.filter(|(_, lines)| *lines > FILE_LINES_MAX);
    long.map(|(path, lines)| {
        Finding::new(
            folder_of(path),
            format!("{path}: {lines} lines, at most {FILE_LINES_MAX}"),
        )
    })
    .collect()
}

/// Folders of the product and of the simulator with too many files. Files of tests do not count.
pub fn check_folders(workspace: &Workspace) -> Vec<Finding> {
    let simulator = workspace.crates.iter().filter(|it| it.folder == "sim");
    let mut folders: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    for krate in workspace.product().chain(simulator) {
        for module in krate.modules.iter().filter(|it| krate.has_own_file(it)) {
            let (folder, file) = module.file.rsplit_once('/').unwrap_or_default();
            folders
                .entry((&krate.folder, folder))
                .or_default()
                .insert(file);
        }
    }
    let full = folders.iter().filter(|it| it.1.len() > FOLDER_FILES_MAX);
    full.map(|((folder, path), files)| {
        let number = files.len();
        Finding::new(
            folder,
            format!("{path}: {number} files, at most {FOLDER_FILES_MAX}"),
        )
    })
    .collect()
}

/// Functions of the product that are too long.
pub fn check_functions(workspace: &Workspace) -> Vec<Finding> {
    let mut found = Vec::new();
    for krate in workspace.product() {
        for (position, item) in all_items(krate) {
            let mut visitor = Functions { long: Vec::new() };
            visitor.visit_item(item);
            let file = &krate.modules[position].file;
            found.extend(visitor.long.into_iter().map(|(name, line, lines)| {
                let text =
                    format!("{file}:{line} fn {name}: {lines} lines, at most {FUNCTION_LINES_MAX}");
                Finding::new(&krate.folder, text)
            }));
        }
    }
    found
}

struct Functions {
    /// Name, first line, number of lines.
    long: Vec<(String, usize, usize)>,
}

impl Functions {
    fn measure(&mut self, signature: &syn::Signature, end: Span) {
        let line = signature.span().start().line;
        let lines = end.end().line - line + 1;
        if lines > FUNCTION_LINES_MAX {
            self.long.push((signature.ident.to_string(), line, lines));
        }
    }
}

impl<'ast> Visit<'ast> for Functions {
    fn visit_item_fn(&mut self, it: &'ast syn::ItemFn) {
        self.measure(&it.sig, it.block.span());
        visit::visit_item_fn(self, it);
    }

    fn visit_impl_item_fn(&mut self, it: &'ast syn::ImplItemFn) {
        self.measure(&it.sig, it.block.span());
        visit::visit_impl_item_fn(self, it);
    }

    fn visit_trait_item_fn(&mut self, it: &'ast syn::TraitItemFn) {
        if let Some(block) = &it.default {
            self.measure(&it.sig, block.span());
        }
        visit::visit_trait_item_fn(self, it);
    }
}

/// Types of the product with too many methods or fields.
pub fn check_types(workspace: &Workspace) -> Vec<Finding> {
    let crates = workspace.product();
    crates
        .flat_map(|it| [many_methods(it), many_fields(it)].concat())
        .collect()
}

fn many_methods(krate: &Crate) -> Vec<Finding> {
    let names = Names::new(krate);
    let mut methods: BTreeMap<(usize, String), BTreeMap<&str, usize>> = BTreeMap::new();
    for (position, item) in all_items(krate) {
        let Item::Impl(block) = item else { continue };
        let (None, Type::Path(own)) = (&block.trait_, &*block.self_ty) else {
            continue;
        };
        let path = names_of(&own.path);
        let key = match names.resolve(position, &path) {
            Some(Resolved::Item(module, name)) => (module, name),
            _ => (position, path.concat()),
        };
        let number = block
            .items
            .iter()
            .filter(|it| matches!(it, ImplItem::Fn(_)))
            .count();
        let file = krate.modules[position].file.as_str();
        *methods.entry(key).or_default().entry(file).or_default() += number;
    }
    let total = |files: &BTreeMap<&str, usize>| files.values().sum::<usize>();
    let large = methods
        .iter()
        .filter(|(_, files)| total(files) > METHODS_MAX);
    large
        .map(|((module, name), files)| {
            let file = &krate.modules[*module].file;
            let places: Vec<String> = files
                .iter()
                .map(|(file, number)| format!("{file} {number}"))
                .collect();
            let (total, places) = (total(files), places.join(", "));
            let text = format!("{file} {name}: {total} methods, at most {METHODS_MAX}: {places}");
            Finding::new(&krate.folder, text)
        })
        .collect()
}

fn many_fields(krate: &Crate) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut measure = |position: usize, name: String, fields: &Fields| {
        let mut given = GIVEN_FORMS.iter();
        let given = given.find(|it| (it.0, it.1) == (&krate.folder, &name));
        let most = given.map_or(FIELDS_MAX, |it| it.2);
        if fields.len() > most {
            let (file, number) = (&krate.modules[position].file, fields.len());
            let text = format!("{file} {name}: {number} fields, at most {most}");
            found.push(Finding::new(&krate.folder, text));
        }
    };
    for (position, item) in all_items(krate) {
        match item {
            Item::Struct(it) => measure(position, it.ident.to_string(), &it.fields),
            Item::Enum(it) => {
                for variant in &it.variants {
                    let name = format!("{}::{}", it.ident, variant.ident);
                    measure(position, name, &variant.fields);
                }
            }
            _ => {}
        }
    }
    found
}
