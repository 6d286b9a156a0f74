//! Rules: files, headings and tests that documents, comments and messages name exist, and some pages stay short.
//!
//! A name of a source file may leave out the beginning of its path: `driver/peer/dial.rs`, or `dial.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::Finding;
use crate::architecture::short;
use crate::workspace::{Workspace, is_rust, split_path};

/// Most words of pages that are to be read at one sitting. Blocks of code do not count.
const WORDS_MAX: &[(&str, usize)] = &[
    ("README.md", 1_200),
    ("CHANGELOG.md", 600),
    ("docs/ARCHITECTURE.md", 2_500),
    ("docs/testing.md", 1_700),
];

/// All documents of the repository, by path.
pub type Documents = BTreeMap<String, String>;

/// Reads the documents below `root`.
pub fn documents(root: &Path) -> Documents {
    let mut found = Documents::new();
    for file in ["README.md", "CHANGELOG.md", "CONTRIBUTING.md"] {
        found.insert(
            file.to_owned(),
            fs::read_to_string(root.join(file)).unwrap(),
        );
    }
    add_documents(root, "docs", &mut found);
    found
}

fn add_documents(root: &Path, folder: &str, found: &mut Documents) {
    for entry in fs::read_dir(root.join(folder)).unwrap() {
        let entry = entry.unwrap();
        let path = format!("{folder}/{}", entry.file_name().to_str().unwrap());
        if entry.file_type().unwrap().is_dir() {
            add_documents(root, &path, found);
        } else if is_document(&path) {
            found.insert(path, fs::read_to_string(entry.path()).unwrap());
        }
    }
}

fn is_document(path: &str) -> bool {
    Path::new(path).extension().is_some_and(|it| it == "md")
}

/// Links of documents to a file or a heading that does not exist.
pub fn check_links(documents: &Documents, exists: &dyn Fn(&str) -> bool) -> Vec<Finding> {
    let mut found = Vec::new();
    for (file, text) in documents {
        let folder = file.rsplit_once('/').map_or("", |it| it.0);
        for link in links(text).filter(|it| !it.contains("://")) {
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if path.is_empty() {
                file.clone()
            } else {
                joined(folder, path)
            };
            let has_anchor = |it: &String| anchor.is_empty() || anchors(it).contains(anchor);
            if !exists(&target) || !documents.get(&target).is_none_or(has_anchor) {
                found.push(Finding::new("docs", format!("{file}: no target of {link}")));
            }
        }
    }
    found
}

/// The targets of links, outside blocks of code.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let blocks = text.split("```").step_by(2);
    let starts = blocks.flat_map(|it| it.split("](").skip(1));
    starts.filter_map(|it| it.split_once(')').map(|it| it.0))
}

/// The path of a link in a document of a folder.
fn joined(folder: &str, path: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|it| !it.is_empty()).collect();
    for part in path.split('/').filter(|it| !it.is_empty()) {
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            name => parts.push(name),
        }
    }
    parts.join("/")
}

fn headings(text: &str) -> impl Iterator<Item = &str> {
    let blocks = text.split("```").step_by(2);
    let lines = blocks.flat_map(str::lines).filter(|it| it.starts_with('#'));
    lines.map(|it| it.trim_start_matches('#').trim())
}

/// The names under which links reach the headings of a document.
fn anchors(text: &str) -> BTreeSet<String> {
    let is_kept = |it: &char| it.is_alphanumeric() || matches!(it, '-' | '_' | ' ');
    let name = |it: &str| it.chars().filter(is_kept).collect::<String>();
    let names = headings(text).map(|it| name(it).to_lowercase().replace(' ', "-"));
    names.collect()
}

/// Names in comments, messages and documents of files that do not exist.
pub fn check_names(workspace: &Workspace, documents: &Documents) -> Vec<Finding> {
    let sources = workspace.texts.keys().map(|it| short(it));
    let sources = sources.chain(workspace.texts.keys().cloned());
    let mut files = BTreeSet::new();
    for file in sources.chain(documents.keys().cloned()) {
        let parts = file
            .match_indices('/')
            .map(|(at, _)| file[at + 1..].to_owned());
        files.extend(parts.collect::<Vec<_>>());
        files.insert(file);
    }
    let mut found = BTreeSet::new();
    let mut look = |place: &str, text: &str| {
        for name in file_names(text).filter(|it| !files.contains(*it)) {
            found.insert((place.to_owned(), name.to_owned()));
        }
    };
    for (place, text) in documents {
        look(place, text);
    }
    // The examples of these tests name files that do not exist.
    for (place, text) in workspace
        .texts
        .iter()
        .filter(|it| !it.0.starts_with("tests/house"))
    {
        for line in text.lines() {
            let comment = line.split_once("//").map(|it| it.1);
            if let Some(comment) = comment {
                look(place, comment);
            }
        }
        let messages = text.split_whitespace().filter(|it| it.contains("docs/"));
        messages.for_each(|it| look(place, it));
    }
    let finding = |(place, name): (String, String)| {
        let folder = split_path(&place).map_or("docs", |it| it.0);
        Finding::new(
            folder,
            format!("{place} names {name}, and no such file exists"),
        )
    };
    found.into_iter().map(finding).collect()
}

/// The names of Rust files and documents in a text. Names with a placeholder, a list or another place than this
/// repository are left out.
fn file_names(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|it: char| it.is_whitespace() || "`\"'()[]|,;:\\<>“”".contains(it));
    let words = words.map(|it| it.trim_end_matches(['.', '?', '!']));
    let words = words.map(|it| it.split('#').next().unwrap_or(it).trim_start_matches("../"));
    words.filter(|it| {
        (is_rust(it) || is_document(it))
            && !it.contains(['{', '}', '*', '…', '$'])
            && !it.starts_with(['/', '.'])
    })
}

/// Pages that are too long.
pub fn check_words(documents: &Documents) -> Vec<Finding> {
    let words = |text: &str| {
        let blocks = text.split("```").step_by(2);
        let lines = blocks
            .flat_map(str::lines)
            .filter(|it| !it.starts_with("    "));
        let words = lines.flat_map(str::split_whitespace);
        words
            .filter(|it| it.contains(char::is_alphanumeric))
            .count()
    };
    let limits = WORDS_MAX
        .iter()
        .map(|&(page, most)| (page, most, words(&documents[page])));
    let long = limits.filter(|(_, most, words)| words > most);
    long.map(|(page, most, words)| {
        Finding::new("docs", format!("{page}: {words} words, at most {most}"))
    })
    .collect()
}

/// Tests that documents cite and that do not exist. A name of five words or more, in backticks, is that of a test.
pub fn check_tests(workspace: &Workspace, documents: &Documents) -> Vec<Finding> {
    let is_cited = |it: &&str| {
        let is_name = it
            .chars()
            .all(|it| it.is_ascii_lowercase() || it.is_ascii_digit() || it == '_');
        is_name && !it.starts_with('_') && it.matches('_').count() >= 4
    };
    let mut found = Vec::new();
    for (place, text) in documents {
        let blocks = text.split("```").step_by(2);
        let quoted = blocks.flat_map(|it| it.split('`').skip(1).step_by(2));
        for name in quoted.filter(is_cited) {
            let function = format!("fn {name}(");
            if !workspace.texts.values().any(|it| it.contains(&function)) {
                found.push(Finding::new(
                    "docs",
                    format!("{place} cites {name}, and no such test exists"),
                ));
            }
        }
    }
    found
}

/// Headings that messages and comments cite (`"A disk hangs" in docs/operations/disks.md`) and that do not exist.
pub fn check_headings(workspace: &Workspace, documents: &Documents) -> Vec<Finding> {
    let mut found = Vec::new();
    for (place, text) in workspace
        .texts
        .iter()
        .filter(|it| !it.0.starts_with("tests/house"))
    {
        // A text of several lines ends each line with a backslash.
        let words: Vec<&str> = text.split_whitespace().filter(|it| *it != "\\").collect();
        let flat = words.join(" ").replace("\\\"", "\"").replace("\\ ", " ");
        for (at, _) in flat.match_indices("\" in docs/") {
            let (before, after) = flat.split_at(at);
            let heading = before.rsplit('"').next().unwrap_or_default();
            let document = file_names(&after[5..]).next().unwrap_or_default();
            let text = documents.get(document).map_or("", String::as_str);
            if !headings(text).any(|it| it.replace('`', "").ends_with(&heading.replace('`', ""))) {
                let finding =
                    format!("{place} cites {heading:?}, and {document} has no such heading");
                found.push(Finding::new("docs", finding));
            }
        }
    }
    found
}
