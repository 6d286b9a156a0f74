//! `lockstep adopt` before real nodes: the adopted directory is served, mirrored, and there after the death of the primary.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)] // tests may panic

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use lockstep_testbed::Which::{self, Primary as A, Secondary as B};
use lockstep_testbed::operator::{assert_identical, await_status, change};
use lockstep_testbed::{NodeEnvironment, PATIENT, Pair, Settings, can_mount, program};
use serde_json::Value;

lockstep_testbed::network_process!();

/// A peer that is silent for long is still waited for.
const STEADY: Settings = Settings {
    peer_timeout_ms: 10_000,
    ..PATIENT
};
/// Directories of files, and files in each.
const SIZE: (usize, usize) = (12, 40);

fn prepare() -> Option<Pair> {
    can_mount().then(|| {
        Pair::prepare(
            STEADY,
            [NodeEnvironment::default(), NodeEnvironment::default()],
        )
    })
}

fn adoption(pair: &Pair, which: Which, source: &Path, options: &[&str]) -> Command {
    let mut command = Command::new(program());
    command.arg("adopt").arg(source).args(options);
    command.arg("--config").arg(pair.node(which).config());
    command
}

fn adopt(pair: &Pair, which: Which, source: &Path, options: &[&str]) -> Output {
    adoption(pair, which, source, options).output().unwrap()
}

/// The text of a command that fails.
fn refused(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Fills a new directory.
fn fill(top: &Path) {
    fs::create_dir(top).unwrap();
    for directory in 0..SIZE.0 {
        let directory = top.join(format!("d{directory}/e"));
        fs::create_dir_all(&directory).unwrap();
        for file in 0..SIZE.1 {
            let bytes = vec![u8::try_from(file).unwrap(); file * 300];
            fs::write(directory.join(format!("f{file}")), bytes).unwrap();
        }
    }
    fs::hard_link(top.join("d0/e/f9"), top.join("d1/link")).unwrap();
    symlink("d0/e", top.join("symlink\n")).unwrap();
    let sparse = File::create(top.join("sparse")).unwrap();
    sparse.write_all_at(b"end", (64 << 20) - 3).unwrap();
    // The place of the snapshots in a mount.
    fs::create_dir(top.join(".lockstep")).unwrap();
    fs::write(top.join(".lockstep/mine"), "mine").unwrap();
}

/// Names, attributes and bytes of everything in a directory.
fn listed(top: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut left = vec![top.to_owned()];
    while let Some(path) = left.pop() {
        let stat = path.symlink_metadata().unwrap();
        if stat.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|it| it.unwrap().path()));
        }
        let bytes = if stat.is_file() && stat.len() < 1 << 20 {
            fs::read(&path).unwrap()
        } else {
            Vec::new()
        };
        let links = if stat.is_dir() { 0 } else { stat.nlink() };
        let size = if stat.is_dir() { 0 } else { stat.len() };
        let line = format!(
            "{:o} {}:{} {links} {size} {}.{:09} {}.{:09} {:?}",
            stat.mode(),
            stat.uid(),
            stat.gid(),
            stat.mtime(),
            stat.mtime_nsec(),
            stat.ctime(),
            stat.ctime_nsec(),
            lockstep_types::Hash128::of(&bytes),
        );
        found.insert(path.strip_prefix(top).unwrap().to_owned(), line);
    }
    found
}

#[track_caller]
fn assert_same(found: &Path, expected: &BTreeMap<PathBuf, String>) {
    let found = listed(found);
    assert_eq!(found.len(), expected.len());
    for (path, line) in expected {
        assert_eq!(found.get(path), Some(line), "{}", path.display());
    }
}

/// Kills the command at different moments, until one comes to its end.
fn adopt_with_kills(pair: &Pair, source: &Path) -> u32 {
    for kills in 0.. {
        let mut command = adoption(pair, A, source, &["--move", "--json"]);
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        std::thread::sleep(Duration::from_millis(5 << (kills / 2)));
        child.kill().unwrap();
        let output = child.wait_with_output().unwrap();
        let store = pair.node(A).store();
        if output.status.success() {
            let report: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(report["way"], "move");
            assert_eq!(report["not_adopted_total"], 0);
            return kills;
        }
        if store.join("format.json").exists() {
            return kills;
        }
        if store.join("adoption.json").exists() {
            let mut create = Command::new(program());
            create.args(["create-store", "data", "--config"]);
            let made = create.arg(pair.node(A).config()).output().unwrap();
            let text = refused(&made);
            assert!(text.contains("run the same `lockstep adopt`"), "{text}");
        }
    }
    unreachable!("the loop has no end")
}

#[test]
fn an_adopted_directory_is_on_both_nodes_and_outlives_the_primary() {
    let Some(mut pair) = prepare() else {
        return;
    };
    let source = pair.outside("source");
    fill(&source);
    let expected = listed(&source);
    let secondary = refused(&adopt(&pair, B, &source, &[]));
    assert!(
        secondary.contains("cure: adopt on the other"),
        "{secondary}"
    );
    println!("killed {} times", adopt_with_kills(&pair, &source));
    let left = listed(&source);
    assert!(left.keys().all(|path| source.join(path).is_dir()));

    pair.start();
    assert_same(&pair.mount(), &expected);
    assert_identical(pair.node(A));
    fs::write(pair.mount().join("new"), "new").unwrap();
    fs::remove_file(pair.mount().join("new")).unwrap();
    pair.node_mut(A).kill();
    let disconnected = |status: &lockstep_driver::report::DatastoreStatus| {
        status.sync.state == "synced and disconnected"
    };
    await_status(pair.node(B), "B has lost A", disconnected);
    change(pair.node(B), "promote", &[]);
    let mount = pair.node(B).mount();
    let top = Path::new("").to_owned();
    let but_top = |mut listing: BTreeMap<PathBuf, String>| {
        listing.remove(&top);
        listing
    };
    assert_eq!(but_top(listed(&mount)), but_top(expected));
    // A directory of the user's own hides the snapshots until it has another name.
    assert!(!mount.join(".lockstep/snapshots").exists());
    fs::rename(mount.join(".lockstep"), mount.join("own")).unwrap();
    assert!(mount.join("own/mine").exists() && mount.join(".lockstep/snapshots").exists());
}

/// Two nodes that both hold something do not fill each other.
#[test]
fn a_peer_with_content_of_its_own_is_not_overwritten() {
    let Some(mut pair) = prepare() else {
        return;
    };
    let sources = ["of-a", "of-b"].map(|name| pair.outside(name));
    for (which, source) in [A, B].into_iter().zip(&sources) {
        fs::create_dir(source).unwrap();
        fs::write(source.join("file"), format!("{which:?}")).unwrap();
        // An operator who takes each server for the primary.
        let config = pair.node(which).config();
        let text = fs::read_to_string(&config).unwrap();
        let as_primary = text.replace("\"secondary\"", "\"primary\"");
        fs::write(&config, as_primary).unwrap();
        let done = adopt(&pair, which, source, &[]);
        assert!(done.status.success(), "{done:?}");
        fs::write(&config, text).unwrap();
        let again = refused(&adopt(&pair, A, source, &[]));
        assert!(again.contains("only a new store adopts"), "{again}");
    }
    pair.node_mut(B).start();
    pair.node_mut(A).start();
    await_status(pair.node(B), "B refuses A", |status| {
        let reason = status.sync.reason.as_deref().unwrap_or_default();
        reason.contains("the primary's store is new, but the secondary's holds a datastore")
    });
    assert_eq!(fs::read(pair.mount().join("file")).unwrap(), b"Primary");
    pair.stop();
    let out = pair.outside("export");
    let mut export = Command::new(program());
    export.args(["export", "data"]).arg(&out);
    export.arg("--config").arg(pair.node(B).config());
    assert!(export.status().unwrap().success());
    assert_eq!(fs::read(out.join("file")).unwrap(), b"Secondary");
}
