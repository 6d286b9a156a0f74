//! A mount of the model for one test. The mount ends with the test.

#![allow(dead_code)] // No test uses all of it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use lockstep_driver::client::FileService;
use lockstep_mount::{MountOptions, Mounted, Unmounted};
use tempfile::TempDir;

use crate::model::ModelFs;

/// A user who owns no file.
pub const NOBODY: u32 = 65534;

/// Whether this machine lets a test mount; prints the reason if not.
pub fn can_mount() -> bool {
    let allowed = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
    if !allowed {
        eprintln!("skipped: needs root and /dev/fuse");
    }
    allowed
}

/// A mounted service and its mount point.
pub struct Fixture {
    pub model: Arc<ModelFs>,
    mounted: Option<Mounted>,
    directory: TempDir,
}

impl Fixture {
    /// Mounts an empty model, if the machine lets a test mount.
    pub fn new() -> Option<Self> {
        Self::serving(|model| model)
    }

    /// Mounts the service that `wrap` makes of an empty model.
    pub fn serving<S: FileService>(wrap: impl FnOnce(Arc<ModelFs>) -> Arc<S>) -> Option<Self> {
        Self::serving_with(wrap, |_| {})
    }

    /// The same, with other options.
    pub fn serving_with<S: FileService>(
        wrap: impl FnOnce(Arc<ModelFs>) -> Arc<S>,
        adapt: impl FnOnce(&mut MountOptions),
    ) -> Option<Self> {
        if !can_mount() {
            return None;
        }
        let model = Arc::new(ModelFs::default());
        let directory = tempfile::tempdir().unwrap();
        let mut options = MountOptions::new(directory.path(), "model");
        options.grace = Duration::from_millis(200);
        adapt(&mut options);
        let mounted = lockstep_mount::mount(wrap(Arc::clone(&model)), &options).unwrap();
        Some(Self {
            model,
            mounted: Some(mounted),
            directory,
        })
    }

    /// A path in the mount.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The mount.
    pub fn mounted(&self) -> &Mounted {
        self.mounted.as_ref().unwrap()
    }

    /// Unmounts before the end of the test.
    pub fn unmount(&mut self) -> Unmounted {
        self.mounted.take().unwrap().unmount().unwrap()
    }

    /// Runs a shell script in the root of the mount.
    pub fn sh(&self, script: &str) -> Output {
        self.run(&["sh", "-ec", script])
    }

    /// Runs a shell script in the root of the mount, and returns its output. The script must succeed.
    pub fn expect(&self, script: &str) -> String {
        printed(script, self.sh(script))
    }

    /// Runs a successful shell script as a user and group who own no file.
    pub fn expect_as(&self, user: u32, group: u32, script: &str) -> String {
        printed(script, self.sh_as(user, group, script))
    }

    /// Runs a shell script as another user.
    pub fn sh_as(&self, user: u32, group: u32, script: &str) -> Output {
        let user = format!("--reuid={user}");
        let group = format!("--regid={group}");
        self.run(&[
            "setpriv",
            &user,
            &group,
            "--clear-groups",
            "sh",
            "-ec",
            script,
        ])
    }

    fn run(&self, command: &[&str]) -> Output {
        let (program, arguments) = command.split_first().unwrap();
        let mut command = Command::new(program);
        command.args(arguments).current_dir(self.directory.path());
        command.output().unwrap()
    }
}

fn printed(script: &str, output: Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}: {errors}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Makes the kernel forget every unused name and inode, until `forgotten` is true. The kernel tells the mount
/// about it some time later.
pub fn drop_caches_until(forgotten: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
    while !forgotten() {
        assert!(Instant::now() < deadline, "the kernel does not forget");
        thread::sleep(Duration::from_millis(5));
        fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
    }
}
