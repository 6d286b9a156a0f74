//! `lockstep verify --deep`: a bit that has changed on a disk while the kernel has the right one in its memory.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)] // tests may panic

use std::fs;
use std::process::Command;

use lockstep_testbed::small_disk::SmallDisk;
use lockstep_testbed::{DATASTORE, NodeEnvironment, PATIENT, Pair, can_mount};
use serde_json::Value;

lockstep_testbed::network_process!();

const BLOCK: usize = 4096;
/// A file that is compared by the hash of all of it, and a file that is compared piece by piece.
const FILES: [(&str, u8, usize); 2] = [("small", 1, 5), ("large", 2, 600)];

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

#[test]
fn a_bit_that_has_changed_on_a_disk_only_is_found() {
    if !can_mount() {
        return;
    }
    let disks = [SmallDisk::make(), SmallDisk::make()];
    let environments: [NodeEnvironment; 2] = disks.each_ref().map(SmallDisk::environment);
    let mut pair = Pair::prepare(PATIENT, environments);
    pair.start();
    for (name, seed, blocks) in FILES {
        let content: Vec<u8> = (0..blocks).flat_map(|number| block(seed, number)).collect();
        fs::write(pair.mount().join(name), content).unwrap();
    }
    pair.await_in_sync();
    let (code, report) = verify(&pair, &["--deep"]);
    assert_eq!(code, Some(0), "{report}");
    let flipped = [3, 400];
    for (disk, ((_, seed, _), number)) in disks.iter().zip(FILES.into_iter().zip(flipped)) {
        disk.rot(&block(seed, number));
    }

    // The bytes that programs read are in memory, and right on both nodes.
    let (code, report) = verify(&pair, &[]);
    assert_eq!(code, Some(0), "{report}");
    let (code, report) = verify(&pair, &["--deep"]);
    assert_eq!(
        (code, &report["differences_total"]),
        (Some(1), &Value::from(2))
    );
    let mut found: Vec<_> = report["differences"].as_array().unwrap().iter().collect();
    found.sort_by_key(|difference| difference["path"].as_str());
    for (difference, (name, number)) in found.iter().zip([("/large", 400), ("/small", 3)]) {
        assert_eq!(difference["path"], name);
        let what = format!(
            "content differs in 4096 bytes from byte {} on",
            number * BLOCK
        );
        assert_eq!(difference["what"], what);
    }
    pair.end();
}
