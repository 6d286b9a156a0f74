//! Rule: no test is written where `scripts/test` runs none: in the examples of documentation, and in targets that their
//! package leaves out with `test = false`.

use std::fs;
use std::path::Path;

use syn::visit::Visit;

use crate::Finding;
use crate::workspace::{Workspace, folder_of, split_path};

/// Words behind the beginning of a block with which rustdoc does not run the block.
const NOT_RUN: &[&str] = &["text", "toml", "sh", "console"];

/// Blocks of code in comments of documentation that rustdoc would run.
pub fn check_documentation(workspace: &Workspace) -> Vec<Finding> {
    let mut found = Vec::new();
    for (file, text) in &workspace.texts {
        let lines = text.lines().enumerate();
        let fences = lines.filter_map(|(number, line)| Some((number + 1, fence(line)?)));
        // Every second fence ends a block.
        for (number, language) in fences.step_by(2) {
            if !NOT_RUN.contains(&language) {
                let text = format!(
                    "{file}:{number}: rustdoc would run this block; name its language, or write a test"
                );
                found.push(Finding::new(folder_of(file), text));
            }
        }
    }
    found
}

/// The words behind a fence of a block in a comment of documentation.
fn fence(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let comment = line
        .strip_prefix("///")
        .or_else(|| line.strip_prefix("//!"))?;
    Some(comment.trim_start().strip_prefix("```")?.trim())
}

/// Returns whether a manifest leaves a target out of the tests.
pub fn leaves_out(manifest: &str) -> bool {
    manifest.lines().any(|it| it == "test = false")
}

/// Tests in the folder `src` of packages that leave a target out of the tests: the folders are `untested`.
pub fn check_targets(workspace: &Workspace, untested: &[String]) -> Vec<Finding> {
    let mut found = Vec::new();
    for (file, text) in &workspace.texts {
        let Some((folder, _)) = split_path(file) else {
            continue;
        };
        if untested.iter().any(|it| it == folder) && has_tests(text) {
            let text = format!("{file}: the package has `test = false`, so this test does not run");
            found.push(Finding::new(folder, text));
        }
    }
    found
}

/// Returns whether a source has tests of its own. Those that its macros write belong to other crates.
fn has_tests(source: &str) -> bool {
    let mut tests = Tests::default();
    tests.visit_file(&syn::parse_file(source).unwrap());
    tests.found
}

/// Looks for tests.
#[derive(Default)]
struct Tests {
    found: bool,
}

impl<'ast> Visit<'ast> for Tests {
    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.found |= function.attrs.iter().any(|it| it.path().is_ident("test"));
    }
}

/// Folders of the packages below `root` that leave a target out of the tests.
pub fn untested(root: &Path) -> Vec<String> {
    let folders = fs::read_dir(root.join("crates")).unwrap();
    folders
        .map(|it| it.unwrap())
        .filter(|it| leaves_out(&fs::read_to_string(it.path().join("Cargo.toml")).unwrap()))
        .map(|it| it.file_name().into_string().unwrap())
        .collect()
}
