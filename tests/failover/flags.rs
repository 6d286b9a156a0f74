//! The flags of inodes (`chattr`) are the same on both nodes, by every way on which they come there.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::Command;

use lockstep_testbed::Which::{Primary as A, Secondary as B};
use lockstep_testbed::operator::{assert_identical, await_alone, await_in_sync, cut, fail_over};

use crate::{IMPATIENT, start};

fn chattr(flags: &str, path: &Path) {
    let status = Command::new("chattr").arg(flags).arg(path).status();
    assert!(status.unwrap().success(), "{flags} {}", path.display());
}

/// The letters of the flags of an inode.
fn flags(path: &Path) -> String {
    let listed = Command::new("lsattr").arg("-d").arg(path).output().unwrap();
    let text = String::from_utf8(listed.stdout).unwrap();
    let letters = text.split(' ').next().unwrap();
    letters.chars().filter(|letter| *letter != '-').collect()
}

/// Makes a directory with an immutable file, and a log that only grows.
fn make(directory: &Path) {
    fs::create_dir(directory).unwrap();
    fs::write(directory.join("fixed"), "fixed").unwrap();
    fs::write(directory.join("log"), "first ").unwrap();
    chattr("+id", &directory.join("fixed"));
    chattr("+a", &directory.join("log"));
    chattr("+a", directory);
}

/// Checks that the flags are there and are obeyed, and appends to the log.
fn check(directory: &Path, log: &str) {
    let (fixed, grows) = (directory.join("fixed"), directory.join("log"));
    let found = [&fixed, &grows, &directory.to_owned()].map(|path| flags(path));
    assert_eq!(found, ["id", "a", "a"]);
    assert_eq!(fs::read_to_string(&grows).unwrap(), log);
    fs::write(&fixed, "other").unwrap_err();
    fs::write(&grows, "other").unwrap_err();
    for path in [&fixed, &grows] {
        fs::remove_file(path).unwrap_err();
    }
    let mut appended = OpenOptions::new().append(true).open(&grows).unwrap();
    appended.write_all(b"more ").unwrap();
    assert_eq!(fs::read_to_string(&fixed).unwrap(), "fixed");
}

#[test]
fn flags_hold_on_either_node_and_after_a_resync() {
    let Some(mut pair) = start(IMPATIENT) else {
        return;
    };
    let (on_a, on_b) = (pair.node(A).mount(), pair.node(B).mount());
    make(&on_a.join("mirrored"));
    fs::write(on_a.join("written"), "before").unwrap();
    cut(&pair, true);
    await_alone(pair.node(A));
    make(&on_a.join("resynced"));
    chattr("+i", &on_a.join("written"));
    cut(&pair, false);
    await_in_sync(&mut pair, A, 1);
    fail_over(&mut pair, A, 1);
    for name in ["mirrored", "resynced"] {
        check(&on_b.join(name), "first ");
    }
    fs::write(on_b.join("written"), "after").unwrap_err();
    await_in_sync(&mut pair, B, 2);
    fail_over(&mut pair, B, 2);
    for name in ["mirrored", "resynced"] {
        check(&on_a.join(name), "first more ");
    }
    await_in_sync(&mut pair, A, 3);
    assert_identical(pair.node(A));
}
