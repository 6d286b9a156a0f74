//! `lockstep verify --deep`: bits that have changed on a disk while the kernel has the right ones in its memory, or while it has
//! not; the side that is wrong, and the repair.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)] // tests may panic

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use lockstep_testbed::small_disk::SmallDisk;
use lockstep_testbed::{DATASTORE, NodeEnvironment, PATIENT, Pair, can_mount};
use serde_json::Value;

lockstep_testbed::network_process!();

const BLOCK: usize = 4096;
/// Bytes of the last block of each file.
const TAIL: usize = 100;
/// A file that is compared by the hash of all of it, one that is compared piece by piece, and one that is lost.
const FILES: [(&str, u8, usize); 3] = [("small", 1, 5), ("large", 2, 600), ("lost", 3, 4)];
const SMALL: usize = 0;
const LARGE: usize = 1;
const LOST: usize = 2;

/// The exit code and the report of a comparison.
fn verify(pair: &Pair, options: &[&str]) -> (Option<i32>, Value) {
    let mut command = Command::new(lockstep_testbed::program());
    command.args(["verify", DATASTORE, "--json", "--control"]);
    command.arg(pair.primary.control()).args(options);
    let output = command.output().unwrap();
    let report = serde_json::from_slice(&output.stdout).unwrap_or_default();
    (output.status.code(), report)
}

/// A block whose bytes no other block has.
fn block(seed: u8, number: usize) -> Vec<u8> {
    let mut block = vec![seed; BLOCK];
    block[..8].copy_from_slice(&number.to_le_bytes());
    block
}

fn content((_, seed, blocks): (&str, u8, usize)) -> Vec<u8> {
    let whole = (0..blocks).flat_map(|number| block(seed, number));
    whole
        .chain(block(seed, blocks).into_iter().take(TAIL))
        .collect()
}

/// Two nodes, each with a disk of its own.
struct Disks {
    disks: [SmallDisk; 2],
    pair: Pair,
}

impl Disks {
    /// In sync, with all files.
    fn start() -> Self {
        Self::start_with("")
    }

    /// The same, with a line more for the datastore of both nodes.
    fn start_with(line: &str) -> Self {
        let disks = [SmallDisk::make(), SmallDisk::make()];
        let environments: [NodeEnvironment; 2] = disks.each_ref().map(SmallDisk::environment);
        let mut pair = Pair::prepare(PATIENT, environments);
        for config in [pair.primary.config(), pair.secondary.config()] {
            let text = fs::read_to_string(&config).unwrap();
            let text = text.replacen("on_peer_loss", &format!("{line}\non_peer_loss"), 1);
            fs::write(config, text).unwrap();
        }
        pair.start();
        for file in FILES {
            fs::write(pair.mount().join(file.0), content(file)).unwrap();
        }
        pair.await_in_sync();
        let this = Self { disks, pair };
        let (code, report) = this.deep(&[]);
        assert_eq!(code, Some(0), "{report}");
        assert_eq!(report["unproved_blocks"], 0, "{report}");
        this
    }

    fn deep(&self, options: &[&str]) -> (Option<i32>, Value) {
        verify(&self.pair, &[&["--deep"], options].concat())
    }

    /// Flips a bit of a block of a file on the disk of the primary (0) or the secondary (1).
    fn rot(&self, node: usize, file: usize, number: usize) {
        self.disks[node].rot(&block(FILES[file].1, number));
    }

    /// Whether a program reads the right bytes.
    #[track_caller]
    fn assert_read(&self, file: usize) {
        let read = fs::read(self.pair.mount().join(FILES[file].0)).unwrap();
        assert!(read == content(FILES[file]), "{}", FILES[file].0);
    }

    /// The blocks that each node has kept aside, as inode and number and the word for it.
    fn kept(&self, node: usize) -> BTreeSet<String> {
        let folder = find(&self.disks[node].root(), "bad-blocks").unwrap();
        let entries = fs::read_dir(folder).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names
            .map(|name| name.rsplit_once('-').unwrap().0.to_owned())
            .collect()
    }
}

/// A directory of that name below another one.
fn find(directory: &std::path::Path, name: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(directory).unwrap();
    let mut directories = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir());
    directories.find_map(|path| {
        if path.file_name().is_some_and(|found| found == name) {
            return Some(path);
        }
        find(&path, name)
    })
}

/// The differences in blocks: path, number of the block, verdict, and the wrong node. Sorted.
fn found(report: &Value) -> Vec<(String, usize, String, Option<String>)> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let one = |difference: &Value| {
        let blocks = &difference["blocks"];
        assert_eq!(blocks["length"], BLOCK, "{difference}");
        let offset = usize::try_from(blocks["offset"].as_u64().unwrap()).unwrap();
        (
            text(&difference["path"]).unwrap(),
            offset / BLOCK,
            text(&blocks["verdict"]).unwrap(),
            text(&blocks["wrong_on"]),
        )
    };
    let mut found: Vec<_> = report["differences"]
        .as_array()
        .unwrap()
        .iter()
        .map(one)
        .collect();
    found.sort();
    found
}

fn wrong(file: usize, number: usize, node: &str) -> (String, usize, String, Option<String>) {
    let path = format!("/{}", FILES[file].0);
    (
        path,
        number,
        "wrong_bytes".to_owned(),
        Some(node.to_owned()),
    )
}

#[test]
fn bits_that_have_changed_on_a_disk_are_named_and_healed() {
    if !can_mount() {
        return;
    }
    let mut nodes = Disks::start();
    nodes.rot(0, SMALL, 3);
    nodes.rot(1, SMALL, 1);
    nodes.rot(0, LARGE, 400);
    nodes.rot(1, LARGE, 402);
    nodes.rot(0, LOST, 2);
    nodes.rot(1, LOST, 2);
    let lost = ("/lost".to_owned(), 2, "none_known_right".to_owned(), None);
    let expected = [
        wrong(LARGE, 400, "primary"),
        wrong(LARGE, 402, "secondary"),
        lost.clone(),
        wrong(SMALL, 1, "secondary"),
        wrong(SMALL, 3, "primary"),
    ];

    // The bytes that programs read are in memory, and right on both nodes.
    for options in [&[][..], &["--fast"]] {
        let (code, report) = verify(&nodes.pair, options);
        assert_eq!(code, Some(0), "{report}");
    }
    assert!(
        nodes
            .pair
            .primary
            .status()
            .unwrap()
            .sync
            .copy
            .proved
            .is_some()
    );
    let (code, report) = nodes.deep(&[]);
    assert_eq!((code, &report["healed_total"]), (Some(1), &Value::from(0)));
    assert_eq!(found(&report), expected);

    // One of the wrong blocks of the primary comes into its memory, as a program reads it. The other one stays out.
    nodes.disks[0].forget_cached();
    let read = fs::read(nodes.pair.mount().join("small")).unwrap();
    assert!(read != content(FILES[SMALL]), "the disk is wrong");

    let (code, report) = nodes.deep(&["--repair"]);
    assert_eq!((code, &report["healed_total"]), (Some(1), &Value::from(4)));
    assert_eq!(found(&report), expected);
    assert_eq!(report["kept_in"], ".lockstep/bad-blocks");
    nodes.assert_read(SMALL);
    for disk in &nodes.disks {
        disk.forget_cached();
    }
    nodes.assert_read(SMALL);
    nodes.assert_read(LARGE);
    let (code, report) = nodes.deep(&[]);
    assert_eq!((code, found(&report)), (Some(1), vec![lost]));
    for node in [0, 1] {
        let kept = nodes.kept(node);
        let of = |word: &str| kept.iter().filter(|name| name.ends_with(word)).count();
        assert_eq!(
            (of("wrong"), of("right"), of("undecided")),
            (2, 2, 1),
            "{kept:?}"
        );
    }

    let status = nodes.pair.primary.status().unwrap();
    assert!(status.sync.copy.proved.is_none(), "a difference is left");
    // As the page for operators says: the file is written again from a good source.
    fs::write(nodes.pair.mount().join("lost"), content(FILES[LOST])).unwrap();
    let (code, report) = nodes.deep(&[]);
    assert_eq!(code, Some(0), "{report}");
    let status = nodes.pair.primary.status().unwrap();
    assert!(status.verified.unwrap().identical && status.sync.copy.proved.is_some());
    nodes.pair.end();
}

/// The sums of a file above 104 KiB lie in a file of their own.
#[test]
fn a_bit_that_has_changed_in_a_sum_is_no_reason_to_touch_the_bytes() {
    if !can_mount() {
        return;
    }
    let mut nodes = Disks::start();
    let sums = find(&nodes.disks[1].root(), "sums").unwrap();
    let directories = fs::read_dir(sums)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let inodes: Vec<_> = directories.filter(|path| path.is_dir()).collect();
    let [directory] = &*inodes else {
        panic!("{inodes:?}")
    };
    let file = fs::read_dir(directory)
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    nodes.disks[1].forget_cached();
    let bytes = fs::read(&file).unwrap();
    nodes.disks[1].rot(&bytes[..BLOCK]);
    nodes.disks[1].forget_cached();
    let (code, report) = nodes.deep(&[]);
    // The first sum in this file is that of block 26.
    let expected = (
        "/large".to_owned(),
        26,
        "wrong_sum".to_owned(),
        Some("secondary".to_owned()),
    );
    assert_eq!(
        (code, found(&report)),
        (Some(1), vec![expected.clone()]),
        "{report}"
    );
    let (code, report) = nodes.deep(&["--repair"]);
    assert_eq!(
        (code, found(&report)),
        (Some(0), vec![expected]),
        "{report}"
    );
    let (code, report) = nodes.deep(&[]);
    assert_eq!(
        (code, &report["differences_total"]),
        (Some(0), &Value::from(0))
    );
    nodes.assert_read(LARGE);
    nodes.pair.end();
}

#[test]
fn a_checked_read_gets_the_right_bytes_or_an_error() {
    if !can_mount() {
        return;
    }
    let mut nodes = Disks::start_with("check_reads = true");
    nodes.rot(0, SMALL, 0);
    nodes.rot(0, LARGE, 301);
    // The bytes before the tail are not all asked for.
    nodes.disks[0].forget_cached();
    let file = fs::File::open(nodes.pair.mount().join("large")).unwrap();
    let mut part = [0; 10];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut part, (301 * BLOCK + 20) as u64).unwrap();
    assert_eq!(part, block(FILES[LARGE].1, 301)[20..30]);
    nodes.assert_read(SMALL);
    nodes.assert_read(LARGE);
    nodes.disks[0].forget_cached();
    let (code, report) = nodes.deep(&[]);
    assert_eq!(code, Some(0), "the disk is right again: {report}");
    assert!(nodes.pair.primary.logged().contains("healed from the peer"));

    // Wrong on both nodes.
    nodes.rot(0, LOST, 1);
    nodes.rot(1, LOST, 1);
    nodes.disks[0].forget_cached();
    let read = fs::read(nodes.pair.mount().join("lost"));
    assert_eq!(read.unwrap_err().raw_os_error(), Some(5), "EIO");
    assert!(
        nodes
            .pair
            .primary
            .logged()
            .contains("a read fails: a block does not fit its sum")
    );
    nodes.assert_read(SMALL);
    nodes.pair.end();
}
