//! Exports to a destination that cannot hold every name and every file. The destination gets the rest, and
//! the export reports each loss.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use lockstep_fs::export::{ExportSummary, Lost, export};
use lockstep_types::{Ino, NodeKind};

use crate::export::{Filler, is_root};
use crate::narrow::{FILE_BYTES_MAX, Narrow};

/// The reports of an export, and the destination.
struct Exported {
    narrow: Narrow,
    summary: ExportSummary,
    reports: Vec<Lost>,
    manifest: String,
}

impl Exported {
    fn of(fill: impl FnOnce(&mut Filler)) -> Self {
        let temp = tempfile::tempdir().unwrap();
        let mut filler = Filler::new(temp.path().join("store"));
        fill(&mut filler);
        filler.store.close().unwrap();
        let (narrow, list) = (Narrow::mount(), temp.path().join("list"));
        let mut reports = Vec::new();
        let mut report = |lost: &Lost| reports.push(lost.clone());
        let dest = narrow.root().join("out");
        let summary = export(&filler.dir, &dest, Some(&list), &mut report).unwrap();
        // The destination keeps no owners and permissions. Those losses are checked elsewhere.
        reports.retain(|lost| !lost.what.contains("owner") && !lost.what.contains("permission"));
        let manifest = fs::read_to_string(list).unwrap();
        Self {
            narrow,
            summary,
            reports,
            manifest,
        }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.narrow.holds().join("out").join(name)
    }

    /// The files below the root, sorted.
    fn names(&self) -> Vec<String> {
        let mut names = Vec::new();
        let mut left = vec![self.path("")];
        while let Some(at) = left.pop() {
            for entry in fs::read_dir(at).unwrap() {
                let path = entry.unwrap().path();
                let name = path.strip_prefix(self.path("")).unwrap();
                names.push(name.to_str().unwrap().to_owned());
                if path.is_dir() {
                    left.push(path);
                }
            }
        }
        names.sort();
        names
    }

    /// Checks that the export reports exactly these names, each with a cause like this one. The manifest must
    /// have the same reports, and a line for each name.
    fn check_reports(&self, expected: &[(&str, &str, &str)]) {
        let reports: Vec<_> = self
            .reports
            .iter()
            .map(|lost| (&lost.name, &lost.what))
            .collect();
        assert_eq!(reports.len(), expected.len(), "{reports:#?}");
        for (lost, (name, what, cause)) in self.reports.iter().zip(expected) {
            assert_eq!((lost.name.as_str(), lost.what.as_str()), (*name, *what));
            assert!(lost.cause.contains(cause), "{lost:?}");
            let line = format!("\\lost\t{name}\t{what}\t{}", lost.cause);
            assert!(self.manifest.lines().any(|found| found == line), "{line}");
            let begin = format!("{name}\t");
            assert!(self.manifest.lines().any(|line| line.starts_with(&begin)));
        }
    }
}

const FILE: &str = "the file itself";
const DIRECTORY: &str = "the directory itself, and all that is in it";
const SAME: &str = "takes its name for that of another";
const REFUSED: &str = "does not take it";
const LARGE: &str = "takes no file of its size";
const ABOVE: &str = "the directory that it is in could not be made";

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

fn fill_with_names(filler: &mut Filler) {
    let mut file = |parent, name: &str, content: &str| {
        let ino = filler.make(parent, name.as_bytes(), NodeKind::File);
        filler.write(ino, 0, content.as_bytes());
    };
    file(Ino::ROOT, "...", "dots");
    file(Ino::ROOT, "Same", "first");
    file(Ino::ROOT, "same", "second");
    file(Ino::ROOT, "what?", "asked");
    file(Ino::ROOT, "zz", "reached");
    for name in ["Dir", "dir", "over:there"] {
        let directory = filler.make(Ino::ROOT, name.as_bytes(), NodeKind::Directory);
        let inner = filler.make(directory, b"inner", NodeKind::Directory);
        for at in [directory, inner] {
            let ino = filler.make(at, b"file", NodeKind::File);
            filler.write(ino, 0, name.as_bytes());
        }
    }
}

#[test]
fn names_that_the_destination_does_not_take_are_told_and_the_rest_is_there() {
    if !is_root() {
        return; // Mounting needs root.
    }
    let exported = Exported::of(fill_with_names);
    exported.check_reports(&[
        ("...", FILE, REFUSED),
        ("dir", DIRECTORY, SAME),
        ("dir/file", FILE, ABOVE),
        ("dir/inner", FILE, ABOVE),
        ("dir/inner/file", FILE, ABOVE),
        ("over:there", DIRECTORY, REFUSED),
        ("over:there/file", FILE, ABOVE),
        ("over:there/inner", FILE, ABOVE),
        ("over:there/inner/file", FILE, ABOVE),
        ("same", FILE, SAME),
        ("what?", FILE, REFUSED),
    ]);
    let there = [
        "Dir",
        "Dir/file",
        "Dir/inner",
        "Dir/inner/file",
        "Same",
        "zz",
    ];
    assert_eq!(exported.names(), there);
    assert_eq!(read(&exported.path("Same")), "first");
    assert_eq!(read(&exported.path("Dir/inner/file")), "Dir");
    assert_eq!(read(&exported.path("zz")), "reached");
    let summary = exported.summary;
    assert_eq!((summary.names, summary.missing, summary.files), (6, 11, 4));
    assert_eq!(summary.directories, 3);
}

#[test]
fn files_that_are_too_large_for_the_destination_are_told_and_no_part_of_them_is_left() {
    if !is_root() {
        return; // Mounting needs root.
    }
    let exported = Exported::of(|filler| {
        let large = filler.make(Ino::ROOT, b"large", NodeKind::File);
        filler.write(large, FILE_BYTES_MAX - 3, b"four");
        filler.link(large, Ino::ROOT, b"large too");
        let fits = filler.make(Ino::ROOT, b"next", NodeKind::File);
        filler.write(fits, 0, b"fits");
    });
    let (first, second) = ("large", "large too");
    exported.check_reports(&[(first, FILE, LARGE), (second, FILE, LARGE)]);
    assert_eq!(exported.names(), ["next"]);
    let summary = exported.summary;
    assert_eq!((summary.names, summary.missing, summary.bytes), (1, 2, 4));
}

#[test]
fn an_inode_with_several_names_gets_those_that_the_destination_takes() {
    if !is_root() {
        return; // Mounting needs root.
    }
    let exported = Exported::of(|filler| {
        let names: [&[&str]; 3] = [
            &["a1", "a:2", "a3"],
            &["b1", "b2", "b:3"],
            // The last name is given by a rename, and another file has that name already.
            &["Last", "k", "last"],
        ];
        let last = filler.make(Ino::ROOT, b"LAST", NodeKind::File);
        filler.write(last, 0, b"not to be replaced");
        for names in names {
            let ino = filler.make(Ino::ROOT, names[0].as_bytes(), NodeKind::File);
            filler.write(ino, 0, names[0].as_bytes());
            for name in &names[1..] {
                filler.link(ino, Ino::ROOT, name.as_bytes());
            }
        }
    });
    exported.check_reports(&[
        ("Last", FILE, SAME),
        ("a:2", FILE, REFUSED),
        ("b:3", FILE, REFUSED),
        ("last", FILE, SAME),
    ]);
    assert_eq!(exported.names(), ["LAST", "a1", "a3", "b1", "b2", "k"]);
    for (name, content, links) in [
        ("LAST", "not to be replaced", 1),
        ("a3", "a1", 2),
        ("b2", "b1", 2),
        ("k", "Last", 1),
    ] {
        let path = exported.path(name);
        assert_eq!(
            (read(&path).as_str(), path.metadata().unwrap().nlink()),
            (content, links)
        );
    }
    assert_eq!(exported.summary.names, 6);
}
