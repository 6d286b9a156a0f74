//! Full disks: ordinary users fill them through the mount in every possible way, and other programs from outside. The
//! nodes stay in sync, start on a full disk, and let users delete; with free space they continue (rule P20).

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::Output;

use lockstep_testbed::operator::assert_identical;
use lockstep_testbed::small_disk::{DISK_BYTES, SmallDisk};
use lockstep_testbed::{
    IMPATIENT, OUT_OF_SYNC, PATIENT, Pair, Settings, Which, as_nobody, await_that,
};

use crate::check;

/// Inodes of a small disk: so few that a user soon has used them up.
const FILES: &str = "1500";
const FULL: &str = "No space left on device";
/// The content of a file that must be whole afterwards, again and again: no two blocks have the same bytes.
const LINE: &str = "a line of a file that must be whole";
/// Bytes that the user takes from the end of the file that has filled the disk.
const LARGE_CUT: u64 = 6 << 20;
/// The log text of a primary that begins to continue alone.
const LEAVING: &str = "state=\"leaving sync\"";

/// Two nodes, one of them with a small disk, and a user of their mount.
struct Site {
    pair: Pair,
    disk: SmallDisk,
    /// The disk of the other node; only that node uses it.
    _larger: SmallDisk,
    /// How often the primary was alone before the user came.
    alone_before: usize,
}

impl Site {
    fn start(settings: Settings, small: Which) -> Self {
        let disk = SmallDisk::of(DISK_BYTES, &["-N", FILES]);
        let larger = SmallDisk::of(2 * DISK_BYTES, &[]);
        let environments = match small {
            Which::Primary => [disk.environment(), larger.environment()],
            Which::Secondary => [larger.environment(), disk.environment()],
        };
        let mut pair = Pair::prepare(settings, environments);
        pair.start();
        let site = Self {
            alone_before: times_alone(&pair),
            pair,
            disk,
            _larger: larger,
        };
        let above = [site.pair.outside("."), site.pair.outside("primary")];
        for directory in above.into_iter().chain([site.pair.mount()]) {
            fs::set_permissions(directory, Permissions::from_mode(0o755)).unwrap();
        }
        fs::create_dir(site.home()).unwrap();
        fs::set_permissions(site.home(), Permissions::from_mode(0o777)).unwrap();
        site
    }

    /// The user's directory.
    fn home(&self) -> PathBuf {
        self.pair.mount().join("home")
    }

    /// Runs a script as the user. In Debian's `sh` a write of `echo` that finds no space says "I/O error"; `bash` tells the
    /// error. The last inode may be gone before the open, or before the first write of a file.
    fn run(&self, script: &str) -> Output {
        let mut command = as_nobody();
        command.args(["--", "bash", "-c", script]);
        command.current_dir(self.home()).output().unwrap()
    }

    /// Runs a script as the user; it must succeed.
    fn succeed(&self, script: &str) {
        let output = self.run(script);
        assert!(output.status.success(), "{script}: {output:?}");
    }

    /// Runs a script as the user; it must fail because the disk is full. Returns the printed errors.
    fn run_out_of_space(&self, script: &str) -> String {
        let output = self.run(script);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && errors.contains(FULL),
            "{script}: {output:?}"
        );
        errors.into_owned()
    }

    /// Writes lines to a file, in blocks of that size, until the disk is full. Returns the number of acknowledged bytes.
    fn fill_file(&self, name: &str, block: &str) -> u64 {
        let printed = self.run_out_of_space(&write_lines(name, &format!("bs={block}")));
        let mut lines = printed.lines();
        let acknowledged = lines.find_map(|line| line.split_once(" bytes")?.0.parse().ok());
        acknowledged.expect("dd prints the number of bytes")
    }

    /// Checks that a file begins with so many bytes of lines.
    fn check_lines(&self, name: &str, bytes: u64) {
        let found = fs::read(self.home().join(name)).unwrap();
        let acknowledged = found.get(..usize::try_from(bytes).unwrap());
        let acknowledged = acknowledged.unwrap_or_else(|| panic!("{name} is too short"));
        let line = format!("{LINE}\n");
        let is_whole = |piece: &[u8]| line.as_bytes().starts_with(piece);
        let mut pieces = acknowledged.chunks(line.len());
        assert!(pieces.all(is_whole), "{name} is damaged");
    }

    /// Fills the disk in every way that a user has. Returns the number of bytes of lines in the file `large`.
    fn fill_disk(&self) -> u64 {
        // Larger than the disk, so the request reserves nothing.
        self.run_out_of_space("fallocate -l 15T reserved");
        self.run_out_of_space("fallocate -n -l 1200M reserved");
        self.succeed("echo more > note; rm reserved");
        // Many small files use up the inodes.
        self.run_out_of_space("i=0; while echo x > small-$i; do i=$((i+1)); done; false");
        self.succeed("find . -name 'small-*[0-8]' -delete");
        let large = self.fill_file("large", "1M");
        let tail = self.fill_file("tail", "4k");
        self.check_lines("large", large);
        self.check_lines("tail", tail);
        // Names take space, too: their targets have the greatest length.
        self.succeed("rm tail; truncate -s -6M large");
        self.run_out_of_space(
            "target=$(printf '%4000s' | tr ' ' a); i=0; while ln -s $target name-$i; do i=$((i+1)); \
             done; false",
        );
        self.succeed("echo again > note");
        large - LARGE_CUT
    }

    /// Moves the log of a node to the small disk. The node writes there from its next start on.
    fn move_log(&self, which: Which) {
        let log = self.pair.node(which).log();
        let there = self.disk.root().join("node.log");
        fs::rename(&log, self.pair.outside("earlier.log")).unwrap();
        symlink(there, log).unwrap();
    }

    fn was_alone(&self) -> bool {
        times_alone(&self.pair) > self.alone_before
    }

    /// Restarts both nodes while a disk is full.
    fn restart_both(&mut self) {
        self.pair.secondary.kill();
        self.pair.secondary.start();
        self.pair.await_in_sync();
        self.pair.primary.stop();
        self.pair.primary.start();
        self.pair.await_in_sync();
    }

    fn end(mut self) {
        check::at_rest(&mut self.pair);
    }
}

/// A script that writes lines to a file, with these operands of `dd`.
fn write_lines(name: &str, operands: &str) -> String {
    format!("yes '{LINE}' | dd of={name} {operands} iflag=fullblock")
}

/// How often the primary has given the secondary up.
fn times_alone(pair: &Pair) -> usize {
    pair.primary.times_logged(OUT_OF_SYNC) + pair.primary.times_logged(LEAVING)
}

/// Users fill the disk of one node; both nodes are restarted, and users free space.
pub fn users_fill(small: Which) {
    let mut site = Site::start(PATIENT, small);
    let large = site.fill_disk();
    assert_identical(&site.pair.primary);
    assert!(!site.was_alone(), "a user has cost the nodes their sync");
    site.restart_both();
    site.run_out_of_space("dd if=/dev/zero of=more bs=1M");
    site.check_lines("large", large);
    site.succeed("rm -rf large tail more name-* small-*");
    site.succeed("dd if=/dev/zero of=large bs=1M count=50 conv=fsync");
    assert!(!site.was_alone(), "a user has cost the nodes their sync");
    site.end();
}

/// While the secondary is away, users get only as much space as the secondary will have.
pub fn users_fill_while_the_secondary_is_absent() {
    let mut site = Site::start(IMPATIENT, Which::Secondary);
    site.pair.secondary.stop();
    site.pair.await_state("out of sync");
    let large = site.fill_file("large", "1M");
    site.pair.secondary.start();
    site.pair.await_in_sync();
    site.check_lines("large", large);
    site.succeed("rm large");
    site.end();
}

/// Other programs take the whole disk. They also take the space of the reserve as soon as the node uses the reserve. The log of the
/// node lies on that disk, too: a line that finds no space is lost, and the node works on.
pub fn others_fill(small: Which) {
    let mut site = Site::start(PATIENT, small);
    site.move_log(small);
    site.succeed(&write_lines("large", "bs=1M count=20"));
    site.succeed("echo more > note");
    let ballast = site.disk.fill();
    site.pair.node_mut(small).kill();
    site.pair.node_mut(small).start();
    await_that("the mount to be back", || site.home().exists());
    let ballast_again = site.disk.fill_more();
    await_that("a refusal", || {
        let output = site.run("dd if=/dev/zero of=more bs=64k count=1 conv=fsync");
        String::from_utf8_lossy(&output.stderr).contains(FULL)
    });
    site.check_lines("large", 20 << 20);
    site.succeed("rm large note");
    site.pair.node_mut(small).kill();
    drop((ballast, ballast_again));
    site.pair.node_mut(small).start();
    site.pair.await_in_sync();
    site.succeed("dd if=/dev/zero of=large bs=1M count=20 conv=fsync");
    site.end();
}
