//! pjdfstest on the adaptor, with the model behind it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

#[path = "model/fs.rs"]
mod model;
#[path = "model/mounted.rs"]
mod mounted;

use std::fs;
use std::process::Command;

use mounted::Fixture;

/// Every feature that Linux has; the two users exist on every Debian.
const CONFIGURATION: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}

[settings]
naptime = 0.01
allow_remount = false

[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
"#;

#[test]
#[ignore = "needs pjdfstest 0.2.2 (cargo install pjdfstest) and seconds"]
fn passes_pjdfstest() {
    let Some(mount) = Fixture::new() else { return };
    // another file system, for what must not cross
    let outside = tempfile::tempdir().unwrap();
    let configuration = outside.path().join("pjdfstest.toml");
    fs::write(&configuration, CONFIGURATION).unwrap();
    let mut pjdfstest = Command::new("pjdfstest");
    pjdfstest.arg("-c").arg(&configuration);
    pjdfstest.arg("-s").arg(outside.path());
    pjdfstest.arg("-p").arg(mount.path(""));
    let output = pjdfstest.output().unwrap();
    let report = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{report}{errors}");
    println!("{}", report.lines().last().unwrap_or_default());
}
