//! The states in which a store may be after a crash, given the acknowledged operations.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use lockstep_fs::record::NamedEntry;
use lockstep_fs::{Store, StoreView};
use lockstep_sim::check::sums;
use lockstep_sim::scenario::dump;
use lockstep_types::{Ino, NodeKind};

use super::workload::{File, Files, STEPS, states};

/// The content of a store, by path. Directories have no bytes.
type Found = BTreeMap<String, Option<Vec<u8>>>;

/// The data that a crash may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// Nothing that was acknowledged.
    Process,
    /// Nothing that was acknowledged as durable.
    Power,
}

/// Returns the content of a store.
fn read_all(store: &Store) -> Found {
    let mut found = Found::new();
    read_directory(store, Ino::ROOT, "", &mut found);
    found
}

fn read_directory(store: &Store, directory: Ino, path: &str, found: &mut Found) {
    for (name, entry) in entries(store, directory) {
        let path = format!("{path}{name}");
        if entry.kind == NodeKind::Directory {
            read_directory(store, entry.ino, &format!("{path}/"), found);
            found.insert(path, None);
        } else {
            found.insert(path, Some(read_file(store, entry.ino)));
        }
    }
}

/// Returns the entries of a directory.
pub fn entries(store: &Store, directory: Ino) -> Vec<(String, NamedEntry)> {
    let mut entries = Vec::new();
    let mut each = |_, entry: NamedEntry| {
        entries.push((
            String::from_utf8_lossy(entry.name.as_bytes()).into_owned(),
            entry,
        ));
        ControlFlow::Continue(())
    };
    store.tree().readdir(directory, 0, &mut each).unwrap();
    // `readdir` returns the newest entry first.
    entries.reverse();
    entries
}

/// Returns the bytes of a file.
pub fn read_file(store: &Store, ino: Ino) -> Vec<u8> {
    let size = usize::try_from(store.tree().getattr(ino).unwrap().size).unwrap();
    let mut bytes = vec![0xee; size + 1];
    let count = store.read(ino, 0, &mut bytes).unwrap();
    bytes.truncate(count);
    assert_eq!(count, size, "{ino} is as long as its attributes say");
    bytes
}

/// Checks a store that was opened after a crash. `acknowledged` is the number of acknowledged
/// steps.
pub fn check(store: &Store, acknowledged: usize, crash: Crash) {
    let found = read_all(store);
    sums::check(store, &dump(store).unwrap()).unwrap();
    let states = states();
    let last = (acknowledged + 1).min(STEPS.len());
    let names_from = match crash {
        Crash::Process => acknowledged,
        Crash::Power => saved(acknowledged, |number| STEPS[number].saves_names()),
    };
    let fits = |files: &Files| {
        files.len() == found.len()
            && files.iter().zip(&found).all(|((path, file), (at, bytes))| {
                let from = match crash {
                    Crash::Process => acknowledged,
                    Crash::Power => content_from(&states, file, acknowledged),
                };
                path == at && content_fits(bytes.as_deref(), file, &states[from..=last])
            })
    };
    let is_known = states[names_from..=last].iter().any(fits);
    let first = |bytes: &Option<Vec<u8>>| {
        bytes
            .as_ref()
            .map(|bytes| (bytes.len(), bytes.first().copied()))
    };
    let shown: Vec<_> = found
        .iter()
        .map(|(path, bytes)| (path, first(bytes)))
        .collect();
    assert!(is_known, "{acknowledged} steps before {crash:?}: {shown:?}");
}

/// Returns the state after the last acknowledged step that saves, or the first state.
fn saved(acknowledged: usize, saves: impl Fn(usize) -> bool) -> usize {
    (0..acknowledged)
        .rev()
        .find(|number| saves(*number))
        .map_or(0, |number| number + 1)
}

/// Returns the first state whose content of the file may be found.
fn content_from(states: &[Files], file: &File, acknowledged: usize) -> usize {
    let is_saved = |number: usize| {
        let mut paths = states[number]
            .iter()
            .filter(|(_, other)| other.made_by == file.made_by);
        paths.any(|(path, _)| STEPS[number].saves_content(path))
    };
    saved(acknowledged, is_saved)
}

/// Returns whether each byte is the byte of some state of the file, and whether the length is
/// between the lengths of these states.
fn content_fits(found: Option<&[u8]>, file: &File, states: &[Files]) -> bool {
    let Some(found) = found else {
        return file.bytes.is_none();
    };
    let of_file = states
        .iter()
        .flat_map(BTreeMap::values)
        .filter(|other| other.made_by == file.made_by);
    let contents: Vec<&[u8]> = of_file.filter_map(|file| file.bytes.as_deref()).collect();
    check_bytes(found, &contents).is_ok()
}

/// Checks that each byte is the byte of some content, and that the length is between the lengths of
/// the contents.
pub fn check_bytes(found: &[u8], contents: &[&[u8]]) -> Result<(), String> {
    let lengths = || contents.iter().map(|content| content.len());
    let (Some(least), Some(most)) = (lengths().min(), lengths().max()) else {
        return Err("there is no such content".to_owned());
    };
    if !(least..=most).contains(&found.len()) {
        let length = found.len();
        return Err(format!("it has {length} bytes, not {least} to {most}"));
    }
    for (at, byte) in found.iter().enumerate() {
        let mut possible = contents
            .iter()
            .map(|content| content.get(at).copied().unwrap_or(0));
        if !possible.any(|possible| possible == *byte) {
            let states = contents.len();
            return Err(format!(
                "byte {at} of it is {byte}, which it was in none of {states} states"
            ));
        }
    }
    Ok(())
}
