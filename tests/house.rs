//! The house rules of the code: the size of types, functions and files, no circle of files, no text as an error, one type
//! for each name; and `docs/modules.md` lists the files as they are.
//!
//! One test checks each rule and prints all findings: `cargo test --test house files_form_no_circle`.
//! `LOCKSTEP_HOUSE_CRATE=driver` limits the findings to one crate, `LOCKSTEP_HOUSE_CRATE=src` to the program. No rule
//! looks at code under `#[cfg(test)]`, except the length of files.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)] // tests may panic

#[path = "house/architecture.rs"]
mod architecture;
#[path = "house/circles.rs"]
mod circles;
#[path = "house/examples.rs"]
mod examples;
#[path = "house/module_list.rs"]
mod module_list;
#[path = "house/names.rs"]
mod names;
#[path = "house/paths.rs"]
mod paths;
#[path = "house/signatures.rs"]
mod signatures;
#[path = "house/sizes.rs"]
mod sizes;
#[path = "house/without_tests.rs"]
mod without_tests;
#[path = "house/workspace.rs"]
mod workspace;

use std::path::Path;

use workspace::Workspace;

/// A place that breaks a rule.
#[derive(Clone, Debug)]
struct Finding {
    /// Folders of the crates that the place concerns.
    folders: String,
    text: String,
}

impl Finding {
    fn new(folders: &str, text: String) -> Self {
        Self {
            folders: folders.to_owned(),
            text,
        }
    }
}

/// Fails with all findings of a rule in the repository.
fn hold(rule: &str, check: impl FnOnce(&Workspace) -> Vec<Finding>) {
    let mut found = check(&Workspace::read(Path::new(".")));
    if let Ok(folder) = std::env::var("LOCKSTEP_HOUSE_CRATE") {
        found.retain(|it| it.folders.split(' ').any(|it| it == folder));
    }
    let list: Vec<String> = found
        .iter()
        .enumerate()
        .map(|(number, it)| format!("{:4}. [{}] {}\n", number + 1, it.folders, it.text))
        .collect();
    assert!(
        found.is_empty(),
        "\n{rule}: {} findings\n{}",
        found.len(),
        list.concat()
    );
}

#[test]
fn types_have_few_methods_and_fields() {
    hold("methods and fields of a type", sizes::check_types);
}

#[test]
fn functions_are_short() {
    hold("lines of a function", sizes::check_functions);
}

#[test]
fn files_are_short() {
    hold("lines of a file", sizes::check_files);
}

#[test]
fn files_form_no_circle() {
    hold("circles of files", circles::check);
}

#[test]
fn errors_are_types() {
    hold("errors that are texts", signatures::check_errors);
}

#[test]
fn each_type_has_its_own_name() {
    hold("names of several types", signatures::check_names);
}

#[test]
fn links_lead_to_headings_that_exist() {
    let exists = |path: &str| Path::new(path).exists();
    hold("links of documents", |_| {
        paths::check_links(&paths::documents(Path::new(".")), &exists)
    });
}

#[test]
fn named_files_exist() {
    let documents = paths::documents(Path::new("."));
    hold("names of files", |it| paths::check_names(it, &documents));
}

#[test]
fn cited_headings_exist() {
    let documents = paths::documents(Path::new("."));
    hold("cited headings", |it| paths::check_headings(it, &documents));
}

#[test]
fn architecture_names_files_that_exist() {
    let text = std::fs::read_to_string("docs/ARCHITECTURE.md").unwrap();
    hold("docs/ARCHITECTURE.md", |it| architecture::check(it, &text));
}

#[test]
fn modules_open_with_a_head() {
    hold("files without a head", module_list::without_head);
}

#[test]
fn modules_are_listed_as_they_are() {
    let page = module_list::page(&Workspace::read(Path::new(".")));
    if std::env::var_os("LOCKSTEP_WRITE_DOCS").is_some() {
        std::fs::write(module_list::PAGE, page).unwrap();
        return;
    }
    let listed = std::fs::read_to_string(module_list::PAGE).unwrap();
    assert!(
        listed == page,
        "{} is behind the code: run this test with LOCKSTEP_WRITE_DOCS=1",
        module_list::PAGE
    );
}
