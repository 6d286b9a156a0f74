//! Rule: `docs/ARCHITECTURE.md` names no file that does not exist.
//!
//! A file is named in backticks by the folder of its crate and its path below `src/`: `driver/peer/dial.rs`, and
//! `src/control/wire.rs` for the program. A folder inside a crate is named with a slash at its end, such as `driver/host/`.

use std::collections::BTreeSet;

use crate::Finding;
use crate::workspace::{Workspace, is_rust, split_path};

/// Names in the text without a file.
pub fn check(workspace: &Workspace, text: &str) -> Vec<Finding> {
    unknown(workspace, &names(text))
}

/// The words in backticks, outside blocks of code.
fn names(text: &str) -> BTreeSet<&str> {
    let blocks = text.split("```").step_by(2);
    blocks
        .flat_map(|it| it.split('`').skip(1).step_by(2))
        .collect()
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

/// The name of a file in documents.
pub fn short(path: &str) -> String {
    match split_path(path) {
        Some((folder, rest)) => format!("{folder}/{rest}"),
        None => path.strip_prefix("crates/").unwrap_or(path).to_owned(),
    }
}
