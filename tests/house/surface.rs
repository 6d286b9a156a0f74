//! Rule: the surface of a type is small, wherever its code stands.
//!
//! These belong to a type: its inherent methods, functions of its crate whose first parameter is the type (also behind a
//! reference or an `Arc`), and the methods of its *views*: structs whose first field borrows the type. A type that grows by
//! functions and views is as hard to know as one that grows by methods.

use std::collections::BTreeMap;

use syn::{Fields, FnArg, GenericArgument, ImplItem, Item, PathArguments, Type};

use crate::Finding;
use crate::names::{Names, Resolved, all_items, names_of};
use crate::workspace::{Crate, Workspace};

/// Most functions of a type.
const FUNCTIONS_MAX: usize = 45;
/// Most functions of a façade.
const FACADE_FUNCTIONS_MAX: usize = 60;
/// Façades, each with its crate and the reason why others use so much of it.
const FACADES: &[(&str, &str, &str)] = &[
    ("fs", "Store", "everything that the store of a node can do"),
    (
        "fs",
        "DeltaTracker",
        "the changes of a store, for its driver and for each step of a resync",
    ),
    (
        "driver",
        "Datastore",
        "everything that the program does with a datastore",
    ),
    (
        "repl",
        "Core",
        "the protocol as one state machine, with an event for each function",
    ),
    (
        "fs",
        "PlanDraft",
        "each kind of operation writes its changes into it",
    ),
];
/// The failure shows so many types, as the next ones are about to grow over the limit.
const SHOWN: usize = 10;

/// A type: the module that defines it, and its name.
type Key = (usize, String);

/// The functions of one type.
#[derive(Clone, Debug, Default)]
struct Surface {
    methods: usize,
    functions: usize,
    /// Each view with the number of its methods.
    views: BTreeMap<String, usize>,
}

impl Surface {
    fn total(&self) -> usize {
        self.methods + self.functions + self.views.values().sum::<usize>()
    }

    fn describe(&self) -> String {
        let views: Vec<String> = self
            .views
            .iter()
            .map(|(name, number)| format!(", {number} of the view {name}"))
            .collect();
        let (total, methods, functions, views) =
            (self.total(), self.methods, self.functions, views.concat());
        format!("{total} functions ({methods} methods, {functions} free{views})")
    }
}

/// Types of the product and of the simulator with too many functions.
pub fn check(workspace: &Workspace) -> Vec<Finding> {
    let all = by_size(workspace).into_iter();
    all.filter_map(|(folder, name, it)| {
        let is_facade = FACADES
            .iter()
            .any(|facade| (facade.0, facade.1) == (&folder, &name));
        let most = if is_facade {
            FACADE_FUNCTIONS_MAX
        } else {
            FUNCTIONS_MAX
        };
        let text = format!("{name}: {}, at most {most}", it.describe());
        (it.total() > most).then(|| Finding::new(&folder, text))
    })
    .collect()
}

/// The largest types, for the reader of a failure.
pub fn largest(workspace: &Workspace) -> String {
    let all = by_size(workspace).into_iter().take(SHOWN);
    let lines: Vec<String> = all
        .map(|(folder, name, it)| format!("      {folder} {name}: {}", it.describe()))
        .collect();
    format!("functions of a type; the largest:\n{}\n", lines.join("\n"))
}

fn by_size(workspace: &Workspace) -> Vec<(String, String, Surface)> {
    let simulator = workspace.crates.iter().filter(|it| it.folder == "sim");
    let mut all = Vec::new();
    for krate in workspace.product().chain(simulator) {
        let surfaces = surfaces(krate).into_iter();
        all.extend(surfaces.map(|((_, name), surface)| (krate.folder.clone(), name, surface)));
    }
    all.sort_by_key(|(_, _, surface)| std::cmp::Reverse(surface.total()));
    all
}

fn surfaces(krate: &Crate) -> BTreeMap<Key, Surface> {
    let names = Names::new(krate);
    let mut surfaces: BTreeMap<Key, Surface> = BTreeMap::new();
    let mut borrowed: BTreeMap<Key, Key> = BTreeMap::new();
    for (position, item) in all_items(krate) {
        match item {
            Item::Impl(block) if block.trait_.is_none() => {
                let Some(key) = key_of(&names, position, &block.self_ty) else {
                    continue;
                };
                let methods = block
                    .items
                    .iter()
                    .filter(|it| matches!(it, ImplItem::Fn(_)));
                surfaces.entry(key).or_default().methods += methods.count();
            }
            Item::Fn(function) => {
                let Some(FnArg::Typed(first)) = function.sig.inputs.first() else {
                    continue;
                };
                if let Some(key) = key_of(&names, position, &first.ty) {
                    surfaces.entry(key).or_default().functions += 1;
                }
            }
            Item::Struct(view) => {
                if let Some(key) =
                    first_borrowed(&view.fields).and_then(|it| key_of(&names, position, it))
                {
                    borrowed.insert((position, view.ident.to_string()), key);
                }
            }
            _ => {}
        }
    }
    for (view, owner) in borrowed {
        let methods = surfaces.get(&view).map_or(0, |it| it.methods);
        surfaces
            .entry(owner)
            .or_default()
            .views
            .insert(view.1, methods);
    }
    surfaces
}

/// The type of the first field, if the field is a reference.
fn first_borrowed(fields: &Fields) -> Option<&Type> {
    let first = fields.iter().next()?;
    matches!(first.ty, Type::Reference(_)).then_some(&first.ty)
}

/// The type of the crate behind references and shared pointers.
fn key_of(names: &Names<'_>, module: usize, it: &Type) -> Option<Key> {
    match it {
        Type::Reference(it) => key_of(names, module, &it.elem),
        Type::Path(it) => {
            let last = it.path.segments.last()?;
            if let ("Arc" | "Rc" | "Box", PathArguments::AngleBracketed(inner)) =
                (last.ident.to_string().as_str(), &last.arguments)
                && let Some(GenericArgument::Type(inner)) = inner.args.first()
            {
                return key_of(names, module, inner);
            }
            match names.resolve(module, &names_of(&it.path))? {
                Resolved::Item(module, name) => Some((module, name)),
                Resolved::Module(_) => None,
            }
        }
        _ => None,
    }
}
