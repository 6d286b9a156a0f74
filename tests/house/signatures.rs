//! Rules: no text as an error, and one type to a name.

use std::collections::BTreeMap;

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{GenericArgument, Item, PathArguments, Type};

use crate::Finding;
use crate::names::all_items;
use crate::workspace::Workspace;

/// Names that several types may have, each with its reason.
const SHARED_NAMES: &[(&str, &str)] = &[];

/// Signatures of the product whose error is a text.
pub fn check_errors(workspace: &Workspace) -> Vec<Finding> {
    let mut found = Vec::new();
    for krate in workspace.product() {
        for (position, item) in all_items(krate) {
            let mut visitor = Errors::default();
            visitor.visit_item(item);
            let file = &krate.modules[position].file;
            let text = |(line, name): (usize, String)| {
                format!("{file}:{line} {name}: the error is a text")
            };
            found.extend(
                visitor
                    .found
                    .into_iter()
                    .map(|it| Finding::new(&krate.folder, text(it))),
            );
        }
    }
    found
}

#[derive(Default)]
struct Errors {
    /// Name of the item that the visitor is in, while in its signature.
    signature: Option<String>,
    found: Vec<(usize, String)>,
}

impl Errors {
    fn inside(&mut self, name: String, visit: impl FnOnce(&mut Self)) {
        let outer = self.signature.replace(name);
        visit(self);
        self.signature = outer;
    }
}

impl<'ast> Visit<'ast> for Errors {
    fn visit_signature(&mut self, it: &'ast syn::Signature) {
        self.inside(format!("fn {}", it.ident), |visitor| {
            visit::visit_signature(visitor, it);
        });
    }

    fn visit_item_type(&mut self, it: &'ast syn::ItemType) {
        self.inside(format!("type {}", it.ident), |visitor| {
            visit::visit_item_type(visitor, it);
        });
    }

    fn visit_fields(&mut self, it: &'ast syn::Fields) {
        self.inside("field".to_owned(), |visitor| {
            visit::visit_fields(visitor, it);
        });
    }

    fn visit_impl_item_type(&mut self, it: &'ast syn::ImplItemType) {
        let is_error = it.ident == "Err" || it.ident == "Error";
        if is_error && is_text(&it.ty) {
            self.found
                .push((it.span().start().line, format!("type {}", it.ident)));
        }
    }

    /// Types inside a function are no signature.
    fn visit_block(&mut self, block: &'ast syn::Block) {
        let outer = self.signature.take();
        visit::visit_block(self, block);
        self.signature = outer;
    }

    fn visit_path_segment(&mut self, segment: &'ast syn::PathSegment) {
        if let (Some(name), true) = (&self.signature, is_result_of_text(segment)) {
            self.found.push((segment.span().start().line, name.clone()));
        }
        visit::visit_path_segment(self, segment);
    }
}

fn is_result_of_text(segment: &syn::PathSegment) -> bool {
    let PathArguments::AngleBracketed(arguments) = &segment.arguments else {
        return false;
    };
    let error = arguments.args.iter().nth(1);
    segment.ident == "Result" && matches!(error, Some(GenericArgument::Type(it)) if is_text(it))
}

/// `String`, `str`, and types around one of them.
fn is_text(error: &Type) -> bool {
    match error {
        Type::Reference(it) => is_text(&it.elem),
        Type::Path(it) => it
            .path
            .segments
            .last()
            .is_some_and(|segment| match &segment.arguments {
                PathArguments::AngleBracketed(inner) => inner
                    .args
                    .iter()
                    .any(|it| matches!(it, GenericArgument::Type(it) if is_text(it))),
                _ => segment.ident == "String" || segment.ident == "str",
            }),
        _ => false,
    }
}

/// Names of the product that several types have.
pub fn check_names(workspace: &Workspace) -> Vec<Finding> {
    let mut places: BTreeMap<String, Vec<(&str, String)>> = BTreeMap::new();
    for krate in workspace.product() {
        for (position, item) in all_items(krate) {
            let file = &krate.modules[position].file;
            for (name, line) in types_in(item) {
                places
                    .entry(name)
                    .or_default()
                    .push((&krate.folder, format!("{file}:{line}")));
            }
        }
    }
    places.retain(|name, places| places.len() > 1 && !SHARED_NAMES.iter().any(|it| it.0 == name));
    let text = |name: &str, places: &[(&str, String)]| {
        let files: Vec<&str> = places.iter().map(|it| it.1.as_str()).collect();
        format!("{name}: {} types: {}", files.len(), files.join(", "))
    };
    let finding = |(name, places): (&String, &Vec<(&str, String)>)| {
        let mut folders: Vec<&str> = places.iter().map(|it| it.0).collect();
        folders.dedup();
        Finding::new(&folders.join(" "), text(name, places))
    };
    places.iter().map(finding).collect()
}

/// Names and lines of the types that an item defines, also inside its functions.
fn types_in(item: &Item) -> Vec<(String, usize)> {
    let mut types = Types::default();
    types.visit_item(item);
    types.0
}

#[derive(Default)]
struct Types(Vec<(String, usize)>);

impl<'ast> Visit<'ast> for Types {
    fn visit_item(&mut self, item: &'ast Item) {
        let name = match item {
            Item::Enum(it) => Some(&it.ident),
            Item::Struct(it) => Some(&it.ident),
            Item::Trait(it) => Some(&it.ident),
            Item::Type(it) => Some(&it.ident),
            Item::Union(it) => Some(&it.ident),
            _ => None,
        };
        let place = name.map(|it| (it.to_string(), it.span().start().line));
        self.0.extend(place);
        visit::visit_item(self, item);
    }
}
