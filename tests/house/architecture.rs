//! Rule: `docs/ARCHITECTURE.md` names each source file of the product, and no file that does not exist.
//!
//! A file is named in backticks by the folder of its crate and its path below `src/`: `driver/peer/dial.rs`, and
//! `src/fuse/reply.rs` for the program. A folder inside a crate, such as `driver/host/`, stands for the files directly in
//! the folder.

use std::collections::BTreeSet;

use crate::Finding;
use crate::workspace::{Workspace, is_rust, split_path};

/// Files that the text does not name, and names in the text without a file.
pub fn check(workspace: &Workspace, text: &str) -> Vec<Finding> {
    let named = names(text);
    let mut found = missing(workspace, &named);
    found.extend(unknown(workspace, &named));
    found
}

/// The words in backticks, outside blocks of code.
fn names(text: &str) -> BTreeSet<&str> {
    let blocks = text.split("```").step_by(2);
    blocks
        .flat_map(|it| it.split('`').skip(1).step_by(2))
        .collect()
}

fn missing(workspace: &Workspace, named: &BTreeSet<&str>) -> Vec<Finding> {
    let mut files = BTreeSet::new();
    for krate in workspace.product() {
        let own = krate.modules.iter().filter(|it| krate.has_own_file(it));
        files.extend(own.map(|it| (&krate.folder, short(&it.file))));
    }
    files.retain(|(_, file)| {
        let folder = file.rsplit_once('/').map(|it| format!("{}/", it.0));
        // The folder of a whole crate would hide each new file of the crate.
        let folder = folder.filter(|it| it.matches('/').count() > 1);
        !named.contains(file.as_str()) && !folder.is_some_and(|it| named.contains(it.as_str()))
    });
    let finding =
        |(folder, file): (&String, String)| Finding::new(folder, format!("`{file}` is not named"));
    files.into_iter().map(finding).collect()
}

fn unknown(workspace: &Workspace, named: &BTreeSet<&str>) -> Vec<Finding> {
    let files: BTreeSet<String> = workspace.texts.keys().map(|it| short(it)).collect();
    let folders: BTreeSet<&str> = files.iter().filter_map(|it| it.split('/').next()).collect();
    let is_folder = |name: &str| {
        let (first, rest) = name.split_once('/').unwrap_or((name, ""));
        rest.ends_with('/') && folders.contains(first)
    };
    let is_wrong = |name: &&&str| {
        is_rust(name) && !files.contains(**name)
            || is_folder(name) && !files.iter().any(|it| it.starts_with(**name))
    };
    let wrong = named.iter().filter(is_wrong);
    let folder = |name: &str| name.split('/').next().unwrap_or(name).to_owned();
    wrong
        .map(|name| Finding::new(&folder(name), format!("`{name}` names no file")))
        .collect()
}

/// The name of a file in the text.
fn short(path: &str) -> String {
    match split_path(path) {
        Some((folder, rest)) => format!("{folder}/{rest}"),
        None => path.strip_prefix("crates/").unwrap_or(path).to_owned(),
    }
}
