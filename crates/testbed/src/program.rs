//! The program under test, and whether this machine can mount.

use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

/// The user id and the group id of `nobody`.
const NOBODY: &str = "65534";

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

/// The number in an environment variable, or else the default; `None` if this machine cannot mount.
pub fn repetitions(variable: &str, default: u64) -> Option<u64> {
    if !can_mount() {
        return None;
    }
    let given = std::env::var(variable);
    Some(given.map_or(default, |text| text.parse().expect(variable)))
}

/// A command that runs its arguments as the user and the group `nobody`.
pub fn as_nobody() -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]);
    command
}
