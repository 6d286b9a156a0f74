//! The program under test, and whether this machine can mount.

use std::path::Path;
use std::sync::LazyLock;

/// The file of the program `lockstep` that Cargo has built for this test.
static PROGRAM: LazyLock<String> = LazyLock::new(|| {
    // DIRECTORY/deps/TEST, beside DIRECTORY/lockstep.
    let test = std::env::current_exe().unwrap();
    let directory = test.parent().and_then(Path::parent).unwrap();
    let program = directory.join("lockstep");
    assert!(program.exists(), "{} is not built", program.display());
    program.to_str().unwrap().to_owned()
});

/// Returns the file of the program under test.
pub fn program() -> &'static str {
    &PROGRAM
}

/// Returns whether this machine can mount. Prints the reason if it cannot.
pub fn can_mount() -> bool {
    let can_mount = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
    if !can_mount {
        eprintln!("skipped: needs root and /dev/fuse");
    }
    can_mount
}
