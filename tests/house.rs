//! The house rules of the code: the size of types, functions, files and folders, no circle of files or modules, no text as
//! an error, one type for each name, no word that was given up. Documents and comments name files and headings that exist,
//! and `docs/modules.md` lists the files as they are.
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
#[path = "house/surface.rs"]
mod surface;
#[path = "house/untested.rs"]
mod untested;
#[path = "house/without_tests.rs"]
mod without_tests;
#[path = "house/words.rs"]
mod words;
#[path = "house/workspace.rs"]
mod workspace;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::LazyLock;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use workspace::Workspace;

/// Places that break a rule and are being repaired, as the beginnings of findings. No entry may be added.
const STILL_OPEN: &[&str] = &[];

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

/// A look at the workspace.
type Look = Box<dyn FnOnce(&Workspace) + Send>;

/// The thread that holds the workspace: parsed sources belong to one thread.
static LOOKS: LazyLock<Sender<Look>> = LazyLock::new(|| {
    let (sender, looks) = channel::<Look>();
    thread::spawn(move || {
        let workspace = Workspace::read(Path::new("."));
        for look in looks {
            // The test whose look has panicked gets no answer, and fails.
            let _ = catch_unwind(AssertUnwindSafe(|| look(&workspace)));
        }
    });
    sender
});

/// Returns what `look` finds in the sources of the repository, which are parsed once for all tests.
fn in_workspace<T: Send + 'static>(look: impl FnOnce(&Workspace) -> T + Send + 'static) -> T {
    let (sender, answer) = channel();
    let look = move |workspace: &Workspace| drop(sender.send(look(workspace)));
    LOOKS.send(Box::new(look)).unwrap();
    answer.recv().expect("the look ends")
}

/// Fails with all findings of a rule in the repository.
fn hold(rule: &str, check: impl FnOnce(&Workspace) -> Vec<Finding> + Send + 'static) {
    let mut found = in_workspace(check);
    found.retain(|it| !STILL_OPEN.iter().any(|open| it.text.starts_with(open)));
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
fn types_have_a_small_surface() {
    let largest = in_workspace(surface::largest);
    hold(&largest, surface::check);
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
fn folders_have_few_files() {
    hold("files of a folder", sizes::check_folders);
}

#[test]
fn files_form_no_circle() {
    hold("circles of files", circles::check);
}

#[test]
fn modules_form_no_circle() {
    hold("circles of modules", circles::check_modules);
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
    hold("links of documents", move |_| {
        paths::check_links(&paths::documents(Path::new(".")), &exists)
    });
}

#[test]
fn named_files_exist() {
    let documents = paths::documents(Path::new("."));
    hold("names of files", move |it| {
        paths::check_names(it, &documents)
    });
}

#[test]
fn pages_to_be_read_at_one_sitting_are_short() {
    hold("words of a page", |_| {
        paths::check_words(&paths::documents(Path::new(".")))
    });
}

#[test]
fn cited_tests_exist() {
    let documents = paths::documents(Path::new("."));
    hold("cited tests", move |it| paths::check_tests(it, &documents));
}

#[test]
fn cited_headings_exist() {
    let documents = paths::documents(Path::new("."));
    hold("cited headings", move |it| {
        paths::check_headings(it, &documents)
    });
}

#[test]
fn words_that_are_gone_stay_away() {
    let documents = paths::documents(Path::new("."));
    hold("words that are gone", move |it| {
        words::check(it, &documents)
    });
}

/// Prints the words that may move to the lists of those that are gone.
#[test]
#[ignore = "a help for the authors of words.rs: run it with --nocapture"]
fn words_that_no_file_has_any_more() {
    let documents = paths::documents(Path::new("."));
    let clean = in_workspace(move |it| words::clean(it, &documents));
    println!("{clean:#?}");
}

#[test]
fn documentation_has_no_code_to_run() {
    hold("code in documentation", untested::check_documentation);
}

#[test]
fn targets_without_tests_have_none() {
    let untested = untested::untested(Path::new("."));
    assert!(!untested.is_empty());
    hold("tests that do not run", move |it| {
        untested::check_targets(it, &untested)
    });
}

#[test]
fn architecture_names_files_that_exist() {
    let text = std::fs::read_to_string("docs/ARCHITECTURE.md").unwrap();
    hold("docs/ARCHITECTURE.md", move |it| {
        architecture::check(it, &text)
    });
}

#[test]
fn modules_open_with_a_head() {
    hold("files without a head", module_list::without_head);
}

#[test]
fn modules_are_listed_as_they_are() {
    let page = in_workspace(module_list::page);
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
