//! Seeds between real nodes: a first copy on a disk, and only what differs over the network.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)] // tests may panic

#[path = "json/page.rs"]
mod page;

use std::cell::Cell;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use lockstep_driver::report::{DatastoreStatus, ServiceStatus};
use lockstep_testbed::Which::{self, Primary as A, Secondary as B};
use lockstep_testbed::chance::content;
use lockstep_testbed::operator::{await_status, change, cut, run};
use lockstep_testbed::{IMPATIENT, Node, NodeEnvironment, Pair, Settings, can_mount, program};
use serde_json::Value;

lockstep_testbed::network_process!();

/// A peer that is silent for long is still waited for.
const STEADY: Settings = Settings {
    peer_timeout_ms: 10_000,
    ..IMPATIENT
};
const BLOCK: usize = 4096;
const LARGE_BYTES: usize = 24 << 20;
const SMALL_FILES: usize = 300;

fn prepare(settings: Settings) -> Option<Pair> {
    can_mount().then(|| {
        let environments = [NodeEnvironment::default(), NodeEnvironment::default()];
        Pair::prepare(settings, environments)
    })
}

/// A command with the configuration of a node.
fn command(node: &Node, args: &[&str]) -> Command {
    let mut command = Command::new(program());
    command.args(args).arg("--config").arg(node.config());
    command
}

#[track_caller]
fn done(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn snapshot(node: &Node, name: &str) {
    done(&mut command(node, &["snapshot", "create", "data", name]));
}

fn export(node: &Node, at: &str, seed: &Path) -> Command {
    let mut export = command(node, &["export", "data", "--seed", "--at", at]);
    export.arg(seed);
    export
}

fn import(node: &Node, seed: &Path, options: &[&str]) -> Command {
    let mut import = command(node, &["import", "data", "--json"]);
    import.arg("--seed").arg(seed).args(options);
    import
}

/// Makes a snapshot of the datastore, and a seed of it.
fn make_seed(pair: &Pair, which: Which, name: &str) -> PathBuf {
    let node = pair.node(which);
    snapshot(node, name);
    let seed = pair.outside(name);
    let text = done(&mut export(node, name, &seed));
    assert!(text.starts_with("wrote a seed of "), "{text}");
    seed
}

/// Starts node A, and waits until it serves.
fn serve_alone(pair: &mut Pair) {
    pair.node_mut(A).start();
    await_status(pair.node(A), "node A serves", |status| {
        status.sync.started && status.sync.service == ServiceStatus::Alone
    });
}

/// Kills a command later each time, until one comes to its end. `killed` says after each kill whether the work was done nevertheless.
fn until_done(mut begin: impl FnMut() -> Command, mut killed: impl FnMut() -> bool) -> u32 {
    for kills in 0.. {
        let mut command = begin();
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        std::thread::sleep(Duration::from_millis(5 << (kills / 2)));
        let _gone = child.kill();
        let output = child.wait_with_output().unwrap();
        if output.status.success() {
            return kills;
        }
        assert_eq!(output.status.code(), None, "{output:?}");
        if killed() {
            return kills;
        }
    }
    unreachable!("the loop has no end")
}

/// Fills a directory. Returns a file that has no name any more.
fn fill(top: &Path) -> File {
    fs::write(top.join("large"), content(1, LARGE_BYTES)).unwrap();
    fs::create_dir(top.join("many")).unwrap();
    for file in 0..SMALL_FILES {
        let name = top.join(format!("many/f{file}"));
        fs::write(name, content(file as u64 + 7, file * 40)).unwrap();
    }
    fs::create_dir_all(top.join("gone/deep")).unwrap();
    fs::write(top.join("gone/deep/file"), "gone").unwrap();
    fs::hard_link(top.join("many/f9"), top.join("link")).unwrap();
    symlink("many/f9", top.join("symlink")).unwrap();
    let sparse = File::create(top.join("sparse")).unwrap();
    sparse.write_all_at(b"end", (256 << 20) - 3).unwrap();
    let unlinked = top.join("unlinked");
    fs::write(&unlinked, vec![5; 100_000]).unwrap();
    let open = File::options()
        .read(true)
        .write(true)
        .open(&unlinked)
        .unwrap();
    fs::remove_file(&unlinked).unwrap();
    set_xattr(&top.join("many/f9"), b"before");
    open
}

fn set_xattr(path: &Path, value: &[u8]) {
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(path, "user.note", value, flags).unwrap();
}

/// Changes a little of everything.
fn change_some(top: &Path, unlinked: &File) {
    let large = File::options().write(true).open(top.join("large")).unwrap();
    for number in (0..LARGE_BYTES / BLOCK).step_by(100) {
        let at = (number * BLOCK) as u64;
        large.write_all_at(&[0xa5; BLOCK], at).unwrap();
    }
    fs::write(top.join("many/f1"), "overwritten").unwrap();
    fs::remove_file(top.join("many/f2")).unwrap();
    fs::rename(top.join("many/f3"), top.join("renamed")).unwrap();
    fs::rename(top.join("many/f4"), top.join("many/f5")).unwrap();
    fs::remove_dir_all(top.join("gone")).unwrap();
    fs::create_dir(top.join("new")).unwrap();
    fs::write(top.join("new/file"), content(3, 100_000)).unwrap();
    fs::hard_link(top.join("many/f6"), top.join("new/link")).unwrap();
    fs::remove_file(top.join("link")).unwrap();
    set_xattr(&top.join("many/f9"), b"after");
    set_xattr(&top.join("many/f8"), b"new");
    let sparse = File::options()
        .write(true)
        .open(top.join("sparse"))
        .unwrap();
    sparse.write_all_at(b"middle", 100 << 20).unwrap();
    unlinked.write_all_at(b"still written", 50_000).unwrap();
    unlinked.set_len(70_000).unwrap();
}

/// Starts the secondary, and returns the bytes that pass until the nodes are in sync.
fn bytes_until_in_sync(pair: &mut Pair) -> u64 {
    let before = pair.network.carried();
    pair.node_mut(B).start();
    pair.await_in_sync();
    let carried = pair.network.carried() - before;
    println!("{carried} bytes until the nodes were in sync");
    carried
}

#[track_caller]
fn assert_deeply_identical(pair: &Pair) {
    let verified = run(pair.node(A), "verify", &["--deep"]);
    assert_eq!(
        verified.code,
        Some(0),
        "{}{}",
        verified.output,
        verified.error
    );
    assert!(verified.output.contains("identical"), "{}", verified.output);
}

#[test]
fn only_the_changes_since_the_seed_cross_the_network() {
    let Some(mut pair) = prepare(STEADY) else {
        return;
    };
    serve_alone(&mut pair);
    let unlinked = fill(&pair.mount());
    snapshot(pair.node(A), "before");
    // A name for each attempt: a node may begin an export whose command is gone already.
    let attempt = Cell::new(0);
    let place = || pair.outside(&format!("seed-{}", attempt.get()));
    let kills = until_done(
        || export(pair.node(A), "before", &place()),
        || {
            let is_done = place().exists();
            attempt.set(attempt.get() + u32::from(!is_done));
            is_done
        },
    );
    let seed = place();
    assert!(seed.join("seed.json").exists());
    println!("the export was killed {kills} times");
    change_some(&pair.mount(), &unlinked);

    // The store of the secondary was never made, and is never taken for one before the import has ended.
    let kills = until_done(
        || import(pair.node(B), &seed, &["--copy"]),
        || {
            let store = pair.node(B).store();
            if store.join("import.json").exists() {
                let node = command(pair.node(B), &["node"]).output().unwrap();
                let text = String::from_utf8_lossy(&node.stderr).into_owned();
                assert!(text.contains("the same `lockstep import`"), "{text}");
                return false;
            }
            store.join("format.json").exists()
        },
    );
    println!("the import was killed {kills} times");
    // The remains of killed exports are no seeds.
    for killed in 0..attempt.get() {
        let part = pair.outside(&format!("seed-{killed}.partial"));
        assert!(!part.join("seed.json").exists(), "{killed}");
    }
    let with_seed = bytes_until_in_sync(&mut pair);
    assert_deeply_identical(&pair);
    let status = pair.node(B).status().unwrap();
    assert_eq!(status.sync.copy.seed, None);

    // The same secondary with an empty disk.
    pair.node_mut(B).stop();
    fs::remove_dir_all(pair.node(B).store()).unwrap();
    let without_seed = bytes_until_in_sync(&mut pair);
    assert_deeply_identical(&pair);
    assert!(without_seed > LARGE_BYTES as u64);
    assert!(
        with_seed < without_seed / 10,
        "{with_seed} of {without_seed} bytes"
    );
    drop(unlinked);
}

/// A copy of a seed serves nothing unasked. By force it serves the moment of the seed, also when a resync has begun to change it.
#[test]
fn a_copy_of_a_seed_serves_by_force_only_and_says_of_what_moment_it_is() {
    let slow = Settings {
        resync_bytes_per_second: 1 << 20,
        ..STEADY
    };
    for is_mixed in [false, true] {
        let Some(mut pair) = prepare(if is_mixed { slow } else { STEADY }) else {
            return;
        };
        serve_alone(&mut pair);
        let bytes = content(1, 6 << 20);
        for name in ["a", "b"] {
            fs::write(pair.mount().join(name), &bytes).unwrap();
        }
        let seed = make_seed(&pair, A, "before");
        for name in ["a", "b"] {
            fs::write(pair.mount().join(name), content(2, 6 << 20)).unwrap();
        }
        fs::write(pair.mount().join("later"), "later").unwrap();
        let report = done(&mut import(pair.node(B), &seed, &[]));
        let report: Value = serde_json::from_str(&report).unwrap();
        let mut sections = page::sections();
        let described = sections.find(|section| section.starts_with("`lockstep import "));
        assert_eq!(
            page::keys_of(&report),
            page::described_keys(described.unwrap())
        );
        assert_eq!(
            (&report["snapshot"], &report["went_on"]),
            (&"before".into(), &false.into())
        );
        cut(&pair, !is_mixed);
        pair.node_mut(B).start();
        let wanted =
            |status: &DatastoreStatus| status.sync.started && status.sync.copy.mixed == is_mixed;
        let status = await_status(pair.node(B), "a copy of the seed", wanted);
        assert!(!status.sync.copy.complete && !status.sync.in_sync);
        let found = status.sync.copy.seed.clone().unwrap();
        assert_eq!(report["time"], found.time);
        assert_eq!(report["osn"], found.osn);
        let text = run(pair.node(B), "status", &[]).output;
        assert!(
            text.contains(&format!("made of a seed of {}", found.time)),
            "{text}"
        );
        if is_mixed {
            // Some of the later bytes are there.
            await_status(pair.node(B), "some content", |status| {
                status
                    .resync
                    .as_ref()
                    .is_some_and(|it| it.bytes_sent > 1 << 20)
            });
        }
        pair.node_mut(A).kill();
        lockstep_testbed::operator::await_alone(pair.node(B));
        let refused = run(pair.node(B), "promote", &[]);
        assert_eq!(refused.code, Some(2), "{}", refused.output);
        assert!(
            refused.error.contains("--force-data-loss"),
            "{}",
            refused.error
        );
        let promoted = change(pair.node(B), "promote", &["--force-data-loss"]);
        assert_eq!(promoted.as_of.as_deref(), report["time"].as_str());
        let mount = pair.node(B).mount();
        for name in ["a", "b"] {
            assert!(fs::read(mount.join(name)).unwrap() == bytes, "{name}");
        }
        assert!(!mount.join("later").exists());
        let status = pair.node(B).status().unwrap();
        assert!(status.sync.copy.seed.is_none() && !status.sync.copy.mixed);
    }
}

/// A seed is overwritten only from the store that it is a copy of, and never from one that is older (P17).
#[test]
fn another_or_an_older_primary_does_not_overwrite_a_copy_of_a_seed() {
    let Some(mut pair) = prepare(STEADY) else {
        return;
    };
    serve_alone(&mut pair);
    fs::write(pair.mount().join("file"), "first").unwrap();
    pair.node_mut(A).stop();
    let (store, kept) = (pair.node(A).store().to_owned(), pair.outside("kept"));
    done(Command::new("cp").arg("-a").arg(&store).arg(&kept));
    serve_alone(&mut pair);
    fs::write(pair.mount().join("file"), "second").unwrap();
    let seed = make_seed(&pair, A, "before");
    pair.node_mut(A).stop();
    let newest = pair.outside("newest");
    fs::rename(&store, &newest).unwrap();
    done(&mut import(pair.node(B), &seed, &[]));
    pair.node_mut(B).start();
    for (other, reason) in [
        (None, "a copy of another store"),
        (Some(&kept), "the primary's store is new"),
    ] {
        if let Some(other) = other {
            fs::rename(other, &store).unwrap();
        }
        serve_alone(&mut pair);
        fs::write(pair.mount().join("other"), "other").unwrap();
        if other.is_none() {
            // A new store of the same datastore, which has been carried to a seed of its own.
            make_seed(&pair, A, "own");
        }
        await_status(pair.node(B), reason, |status| {
            let found = status.sync.reason.as_deref().unwrap_or_default();
            found.contains(reason)
        });
        pair.node_mut(A).stop();
        fs::remove_dir_all(&store).unwrap();
    }
    // The primary that it is a copy of.
    fs::rename(&newest, &store).unwrap();
    pair.node_mut(A).start();
    pair.await_in_sync();
    assert_deeply_identical(&pair);
    assert_eq!(fs::read(pair.mount().join("file")).unwrap(), b"second");
}

/// The primary's store is put back to a moment before the seed: its changes since are in the seed alone.
#[test]
fn a_primary_that_is_older_than_the_seed_does_not_overwrite_a_copy_of_it() {
    let Some(mut pair) = prepare(STEADY) else {
        return;
    };
    pair.start();
    fs::write(pair.mount().join("file"), "first").unwrap();
    pair.stop();
    let (store, kept) = (pair.node(A).store().to_owned(), pair.outside("kept"));
    done(Command::new("cp").arg("-a").arg(&store).arg(&kept));
    // The recovery after the start has a name that the older store does not know.
    pair.start();
    fs::write(pair.mount().join("file"), "second").unwrap();
    let seed = make_seed(&pair, A, "before");
    pair.stop();
    fs::remove_dir_all(&store).unwrap();
    fs::rename(&kept, &store).unwrap();
    fs::remove_dir_all(pair.node(B).store()).unwrap();
    done(&mut import(pair.node(B), &seed, &[]));
    pair.node_mut(B).start();
    pair.node_mut(A).start();
    await_status(pair.node(B), "node B refuses node A", |status| {
        let found = status.sync.reason.as_deref().unwrap_or_default();
        found.contains("the primary's store is an older copy")
    });
}

/// The commands of the page, as they are printed there.
#[test]
fn the_commands_of_the_page_bring_a_copy_over() {
    let Some(mut pair) = prepare(STEADY) else {
        return;
    };
    serve_alone(&mut pair);
    fs::write(pair.mount().join("file"), content(1, 100_000)).unwrap();
    let page = include_str!("../docs/operations/seed.md");
    let mut lines = page
        .lines()
        .filter_map(|line| line.strip_prefix("    sudo "));
    let disk = pair.outside("disk");
    fs::create_dir(&disk).unwrap();
    let mut execute = |pair: &Pair, which: Which| {
        let line = lines.next().unwrap().strip_prefix("lockstep ").unwrap();
        let line = line.replace("/mnt/disk", disk.to_str().unwrap());
        let words: Vec<&str> = line.split(' ').collect();
        done(&mut command(pair.node(which), &words))
    };
    execute(&pair, A);
    assert!(execute(&pair, A).starts_with("wrote a seed of 1 files"));
    let imported = execute(&pair, B);
    assert!(
        imported.contains("a copy of the seed of seed, "),
        "{imported}"
    );
    assert_eq!(lines.next(), Some("systemctl start lockstep"));
    pair.node_mut(B).start();
    pair.await_in_sync();
    let line = lines.next().unwrap();
    assert_eq!(line, "lockstep snapshot delete data seed");
    done(&mut command(
        pair.node(A),
        &["snapshot", "delete", "data", "seed"],
    ));
    assert!(lines.next().is_none(), "each command of the page was run");
}

/// A disk of a pair is replaced after a failover: the seed of the node that led before is good, and so is the role in the configuration.
#[test]
fn a_replaced_disk_takes_a_seed_from_before_a_failover() {
    let Some(mut pair) = prepare(STEADY) else {
        return;
    };
    pair.start();
    fs::write(pair.mount().join("file"), content(1, 1 << 20)).unwrap();
    let seed = make_seed(&pair, A, "before");
    let moved = change(pair.node(A), "failover", &[]);
    assert_eq!(moved.generation, 2);
    lockstep_testbed::operator::await_in_sync(&mut pair, B, 2);
    pair.node_mut(A).kill();
    fs::remove_dir_all(pair.node(A).store()).unwrap();
    let mount = pair.node(B).mount();
    lockstep_testbed::await_that("node B serves alone", || {
        fs::write(mount.join("alone"), "alone").is_ok()
    });
    let report = done(&mut import(pair.node(A), &seed, &["--move"]));
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["way"], "move");
    assert_eq!(fs::read_dir(&seed).unwrap().count(), 0);
    pair.node_mut(A).start();
    lockstep_testbed::operator::await_in_sync(&mut pair, B, 2);
    let verified = run(pair.node(B), "verify", &["--deep"]);
    assert_eq!(
        verified.code,
        Some(0),
        "{}{}",
        verified.output,
        verified.error
    );
    let again = import(pair.node(A), &seed, &[]).output().unwrap();
    let again = (
        again.status.code(),
        String::from_utf8(again.stderr).unwrap(),
    );
    assert!(
        again.0 == Some(2) && again.1.contains("in use"),
        "{again:?}"
    );
}
