//! A node whose store bears the mark of a disk that failed, as an operator meets it: what it says, what
//! it serves, and what `lockstep clear-poison` does. The mark is put there by hand; what puts it there
//! is tested with disks that fail in `crates/sim`.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::process::Command;

use lockstepfs::datastore::Cleared;

use crate::nodes::{DATASTORE, PROGRAM, Pair, Which, await_that};

const REASON: &str = "cannot sync content/00/07: Input/output error (os error 5)";

/// Runs a command on a node's configuration: exit code, output, errors.
fn lockstep(pair: &Pair, which: Which, arguments: &[&str]) -> (Option<i32>, String, String) {
    let node = match which {
        Which::Primary => &pair.primary,
        Which::Secondary => &pair.secondary,
    };
    let mut command = Command::new(PROGRAM);
    command.args(arguments).arg("--config").arg(node.config());
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

fn mark_of(pair: &Pair, which: Which) -> PathBuf {
    let node = match which {
        Which::Primary => &pair.primary,
        Which::Secondary => &pair.secondary,
    };
    node.store().join("poisoned.json")
}

/// Stops a node, marks its store, and starts it again.
fn poison(pair: &mut Pair, which: Which) {
    pair.node_mut(which).stop();
    let text = format!("{{\"reason\": \"{REASON}\", \"time\": \"2025-11-20T21:46:00Z\"}}");
    fs::write(mark_of(pair, which), text).unwrap();
    pair.node_mut(which).start();
    await_that("the node to say what is wrong", || {
        let status = pair.node_mut(which).status();
        status.is_some_and(|status| status.poisoned.is_some())
    });
    let (code, said, _) = lockstep(pair, which, &["status"]);
    assert_eq!(code, Some(1), "{said}");
    for part in ["POISONED", "2025-11-20T21:46:00Z", REASON, "clear-poison"] {
        assert!(said.contains(part), "{part} is not in:\n{said}");
    }
    // Not while it runs.
    let (code, _, error) = clear(pair, which, &["--accept-loss"]);
    assert_eq!(code, Some(2));
    assert!(error.contains("in use by another node process"), "{error}");
}

fn clear(pair: &Pair, which: Which, more: &[&str]) -> (Option<i32>, String, String) {
    lockstep(
        pair,
        which,
        &[&["clear-poison", DATASTORE][..], more].concat(),
    )
}

/// The secondary: left behind until it is cleared, then made equal.
pub fn of_the_secondary(pair: &mut Pair) {
    let file = pair.mount().join("file");
    fs::write(&file, b"before").unwrap();
    poison(pair, Which::Secondary);
    pair.await_status("goes on alone", |status| {
        let reason = status.reason.clone().unwrap_or_default();
        status.state == "out of sync" && reason.contains("the secondary's disk failed at 2025")
    });
    write_synced(&file, b"alone");
    pair.secondary.stop();
    let (code, printed, error) = clear(pair, Which::Secondary, &["--json"]);
    assert_eq!(code, Some(0), "{error}");
    let cleared: Cleared = serde_json::from_str(&printed).unwrap();
    assert!(cleared.cache_dropped && cleared.failure.reason == REASON);
    assert!(!mark_of(pair, Which::Secondary).exists());
    let (code, _, error) = clear(pair, Which::Secondary, &[]);
    assert_eq!(code, Some(1));
    assert!(error.contains("is not poisoned"), "{error}");
    pair.secondary.start();
    pair.await_in_sync();
    let (code, said, error) = lockstep(pair, Which::Primary, &["verify", DATASTORE]);
    assert_eq!(code, Some(0), "{said}{error}");
}

/// The primary: reads only, until somebody says that its disk may count.
pub fn of_the_primary(pair: &mut Pair) {
    let file = pair.mount().join("file");
    write_synced(&file, b"known");
    poison(pair, Which::Primary);
    assert_eq!(fs::read(&file).unwrap(), b"known");
    let is_refused = |outcome: std::io::Result<()>| {
        let error = outcome.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(5), "{error}");
    };
    is_refused(fs::write(pair.mount().join("more"), b"x"));
    let opened = OpenOptions::new().write(true).open(&file).unwrap();
    is_refused((&opened).write_all(b"other"));
    is_refused(opened.sync_all());
    drop(opened);
    assert_eq!(
        fs::metadata(pair.mount().join("more")).unwrap_err().kind(),
        ErrorKind::NotFound
    );
    await_that("the secondary to hear of it", || {
        let status = pair.secondary.status().unwrap();
        let reason = status.reason.unwrap_or_default();
        !status.in_sync && reason.contains("the primary's disk failed at 2025")
    });
    pair.primary.stop();
    let (code, _, error) = clear(pair, Which::Primary, &[]);
    assert_eq!(code, Some(2));
    assert!(
        error.contains("--accept-loss") && error.contains("cure:"),
        "{error}"
    );
    assert!(mark_of(pair, Which::Primary).exists());
    let (code, said, error) = clear(pair, Which::Primary, &["--accept-loss"]);
    assert_eq!(code, Some(0), "{error}");
    for part in ["can be used again", REASON, "the secondary is made equal"] {
        assert!(said.contains(part), "{part} is not in:\n{said}");
    }
    pair.primary.start();
    pair.await_in_sync();
    assert_eq!(fs::read(&file).unwrap(), b"known");
    write_synced(&file, b"again");
}

fn write_synced(path: &std::path::Path, bytes: &[u8]) {
    let mut file = fs::File::create(path).unwrap();
    file.write_all(bytes).unwrap();
    file.sync_all().unwrap();
}
