//! `lockstep verify --offline`: the stores of two stopped nodes, and their manifests.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)] // tests may panic

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use lockstep_testbed::{DATASTORE, NodeEnvironment, PATIENT, Pair, Which, can_mount};
use serde_json::Value;

lockstep_testbed::network_process!();

fn lockstep(arguments: &[&str], paths: &[&Path]) -> Output {
    let mut command = Command::new(lockstep_testbed::program());
    command.args(arguments).args(paths).output().unwrap()
}

/// The exit code and the report of a comparison.
fn compare(copies: [&Path; 2]) -> (Option<i32>, Value) {
    let output = lockstep(&["verify", "--json", "--offline"], &copies);
    let report = serde_json::from_slice(&output.stdout).unwrap_or_default();
    (output.status.code(), report)
}

/// The complaint of a comparison that cannot be made.
fn refused(copies: [&Path; 2]) -> String {
    let output = lockstep(&["verify", "--offline"], &copies);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn fill(mount: &Path) {
    fs::create_dir_all(mount.join("a/b")).unwrap();
    fs::write(mount.join("a/b/small"), b"bytes").unwrap();
    fs::write(mount.join("a b"), vec![7; 300_000]).unwrap();
    symlink("a/b", mount.join("link\n")).unwrap();
    let sparse = File::create(mount.join("sparse")).unwrap();
    sparse.set_len(64 << 20).unwrap();
    sparse.write_all_at(b"end", (64 << 20) - 3).unwrap();
}

/// The content file in a store that has these bytes.
fn content_file(store: &Path, bytes: &[u8]) -> PathBuf {
    let mut directories = vec![store.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else if fs::read(&path).is_ok_and(|found| found == bytes) {
                return path;
            }
        }
    }
    panic!("no content in {}", store.display());
}

#[test]
fn stopped_stores_and_their_manifests_are_compared_without_nodes() {
    if !can_mount() {
        return;
    }
    let environments = [NodeEnvironment::default(), NodeEnvironment::default()];
    let mut pair = Pair::prepare(PATIENT, environments);
    pair.start();
    fill(&pair.mount());
    pair.await_in_sync();
    let [a, b] =
        [Which::Primary, Which::Secondary].map(|which| pair.node(which).store().to_owned());
    let in_use = refused([&a, &b]);
    assert!(
        in_use.contains("is in use: stop its node first"),
        "{in_use}"
    );
    pair.stop();

    let (code, report) = compare([&a, &b]);
    assert_eq!(
        (code, &report["identical"]),
        (Some(0), &Value::Bool(true)),
        "{report}"
    );
    // The root, two directories, three files, a link and the names that the test bed has made.
    assert!(report["inodes_compared"].as_u64() >= Some(7), "{report}");
    assert!(
        report["bytes_compared"].as_u64() > Some(64 << 20),
        "{report}"
    );

    let [of_a, of_b] = [Which::Primary, Which::Secondary].map(|which| {
        let node = pair.node(which);
        let manifest = pair.outside(&format!("manifest-{which:?}"));
        let arguments = ["export", DATASTORE, "--config"];
        let config = node.config();
        let made = lockstep(&arguments, &[&config, Path::new("--manifest"), &manifest]);
        assert!(made.status.success(), "{made:?}");
        manifest
    });
    assert_eq!(compare([&of_a, &of_b]).0, Some(0));
    assert_eq!(compare([&a, &of_b]).0, Some(0));

    // One bit on one disk.
    let flipped = content_file(&b, b"bytes");
    let file = OpenOptions::new().write(true).open(&flipped).unwrap();
    file.write_all_at(b"c", 0).unwrap();
    for copies in [[&of_a, &b], [&a, &b]] {
        let (code, report) = compare(copies.map(PathBuf::as_path));
        assert_eq!(
            (code, &report["differences_total"]),
            (Some(1), &Value::from(1))
        );
        let difference = &report["differences"][0];
        assert_eq!(difference["path"], "a/b/small");
        let what = difference["what"].as_str().unwrap();
        assert!(what.starts_with("content is "), "{what}");
    }
    a_copy_that_may_be_old_is_named(&a, &b);
    names_that_one_copy_lacks(&of_a, &of_b);
    files_that_are_no_manifests(&of_a);
}

/// A store that does not say that its copy is in sync.
fn a_copy_that_may_be_old_is_named(whole: &Path, copy: &Path) {
    let warnings = || {
        let output = lockstep(&["verify", "--offline"], &[whole, copy]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert_eq!(warnings(), "");
    fs::remove_file(copy.join("role.json")).unwrap();
    let warning = format!(
        "WARNING: {}: this copy is marked out of sync",
        copy.display()
    );
    let said = warnings();
    assert!(
        said.starts_with(&warning) && said.lines().count() == 1,
        "{said}"
    );
}

/// Both ends of a manifest, and a name in its middle.
fn names_that_one_copy_lacks(whole: &Path, beside: &Path) {
    let text = fs::read_to_string(whole).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    for without in [2, lines.len() / 2, lines.len() - 1] {
        let path = lines[without].split('\t').next().unwrap();
        let left: Vec<&str> = [&lines[..without], &lines[without + 1..]].concat();
        fs::write(beside, left.join("\n") + "\n").unwrap();
        for (copies, only) in [([whole, beside], whole), ([beside, whole], whole)] {
            let (code, report) = compare(copies);
            assert_eq!(
                (code, &report["differences_total"]),
                (Some(1), &Value::from(1))
            );
            let difference = &report["differences"][0];
            assert_eq!(difference["path"], path);
            let expected = format!("exists in {} only", only.display());
            assert_eq!(difference["what"], expected);
        }
    }
}

fn files_that_are_no_manifests(manifest: &Path) {
    let text = fs::read_to_string(manifest).unwrap();
    let other = manifest.with_extension("other");
    let lines: Vec<&str> = text.lines().collect();
    let swapped = [&lines[..2], &[lines[3], lines[2]], &lines[4..]].concat();
    for (wrong, line) in [
        (String::new(), ""),
        (lines[0].to_owned() + "\n", ""),
        (text.replacen("# path", "path", 1), ""),
        (text[..text.len() - 20].to_owned(), "(line "),
        (swapped.join("\n"), "(line 4)"),
    ] {
        fs::write(&other, wrong).unwrap();
        for copies in [[manifest, &other], [&other, manifest]] {
            let complaint = refused(copies);
            assert!(complaint.contains("is no complete manifest"), "{complaint}");
            assert!(complaint.contains(line), "{complaint}");
        }
    }
    let missing = refused([manifest, Path::new("/missing")]);
    assert!(
        missing.contains("cannot read /missing: No such file"),
        "{missing}"
    );
}
