//! `mount -t fuse.lockstep` with the real mount(8) and umount(8).
//!
//! mount(8) looks for the helper only in `/sbin`: each test has a mount namespace of its own, in which an
//! overlay adds the helper to that directory. The machine itself does not change, and all mounts end
//! with the namespace.
//!
//! Only mount(8) starts a node here, as the helper asks. So the testbed starts none.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;
use std::os::unix::fs::symlink;
use std::process::{Command, Output};

use lockstep_testbed::can_mount;
use tempfile::TempDir;

/// A datastore without a peer, and a directory with the helper.
struct Site {
    directory: TempDir,
}

impl Site {
    fn new() -> Option<Self> {
        if !can_mount() {
            return None;
        }
        let site = Self {
            directory: tempfile::tempdir().unwrap(),
        };
        for name in ["sbin", "mnt"] {
            fs::create_dir(site.path(name)).unwrap();
        }
        let helper = site.path("sbin/mount.fuse.lockstep");
        symlink(env!("CARGO_BIN_EXE_lockstep"), helper).unwrap();
        let at = site.directory.path().display();
        let config = format!(
            "[node]\nname = \"a\"\ncontrol = \"{at}/a.sock\"\n[[datastore]]\nname = \"data\"\n\
             uuid = \"6f0e2f5e-58b6-4c3b-8a55-6c4a36c3a001\"\nstore = \"{at}/store\"\n\
             mount = \"{at}/mnt\"\nrole = \"primary\"\n"
        );
        fs::write(site.path("node.toml"), config).unwrap();
        fs::write(
            site.path("fstab"),
            format!("data {at}/mnt fuse.lockstep config={at}/node.toml,log={at}/log,_netdev,nofail 0 0\n"),
        )
        .unwrap();
        Some(site)
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    /// Runs a script in a mount namespace in which mount(8) finds the helper. The function `wait_end` of the script
    /// waits until the node has ended. Processes that the script leaves running are killed.
    fn run(&self, script: &str) -> Output {
        let at = self.directory.path().display();
        let prepared = format!(
            "cd {at}
             mount -t overlay overlay -o lowerdir={at}/sbin:/usr/sbin /usr/sbin
             lockstep() {{ {} \"$@\"; }}
             pid_of() {{ lockstep status --json --config node.toml | sed -n 's/.*\"pid\": *\\([0-9]*\\).*/\\1/p' | head -1; }}
             wait_end() {{ for i in $(seq 600); do [ -e a.sock ] || ! tail -n 1 log | grep -q stopped || return 0; sleep 0.1; done; return 1; }}
             refuse() {{ if \"$@\"; then echo \"succeeded: $*\" >&2; exit 1; fi; }}
             leave() {{ pid=$(pid_of 2>/dev/null); [ -z \"$pid\" ] || kill -9 $pid; }}
             trap leave EXIT
             [ -e store/format.json ] || lockstep create-store data --config node.toml
             {script}",
            env!("CARGO_BIN_EXE_lockstep")
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-ec", &prepared]);
        command.output().unwrap()
    }

    fn expect(&self, script: &str) -> String {
        let output = self.run(script);
        let errors = String::from_utf8_lossy(&output.stderr);
        let log = fs::read_to_string(self.path("log")).unwrap_or_default();
        assert!(output.status.success(), "{script}\n{errors}\n{log}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

#[test]
fn mount_and_umount_start_and_stop_a_node() {
    let Some(site) = Site::new() else {
        return;
    };
    site.expect(
        "mount -t fuse.lockstep lockstep:data $PWD/mnt -o config=$PWD/node.toml,log=$PWD/log
         findmnt -n -o SOURCE,FSTYPE mnt | grep -q 'lockstep:data *fuse.lockstep'
         echo kept > mnt/f
         cp /bin/true mnt/p; chown 1:1 mnt/p; chmod 4755 mnt/p; mknod mnt/null c 1 3; echo x > mnt/null
         umount mnt
         wait_end
         grep -q stopped log; refuse grep -q ERROR log
         test -z \"$(ls -A mnt)\"
         mount -t fuse.lockstep data $PWD/mnt -o config=$PWD/node.toml,log=$PWD/log
         test $(cat mnt/f) = kept
         umount mnt
         mount -t fuse.lockstep data $PWD/mnt -o config=$PWD/node.toml,log=$PWD/log
         umount mnt
         wait_end",
    );
}

/// `umount` returns before its node has stopped, so a mount that follows at once waits for the node.
#[test]
fn a_mount_may_follow_an_unmount_at_once() {
    let Some(site) = Site::new() else {
        return;
    };
    site.expect(
        "mount -T fstab $PWD/mnt
         for i in $(seq 20); do
             echo $i > mnt/f
             umount mnt
             mount -T fstab $PWD/mnt
             test $(cat mnt/f) = $i
         done
         umount mnt
         wait_end
         test $(grep -c stopped log) = 21; refuse grep -q ERROR log",
    );
}

#[test]
fn fstab_options_and_remounts_count() {
    let Some(site) = Site::new() else {
        return;
    };
    site.expect(
        "mount -T fstab $PWD/mnt
         options() { findmnt -n -o VFS-OPTIONS mnt; }
         options | grep -q noatime; options | grep -vq nosuid; options | grep -q rw
         echo x > mnt/f
         mount -T fstab -o remount,ro,nosuid,nodev $PWD/mnt
         options | grep -q ro,nosuid,nodev
         refuse touch mnt/f
         mount -T fstab -o remount,rw $PWD/mnt
         touch mnt/f
         umount mnt
         wait_end",
    );
}

#[test]
fn a_failed_mount_has_the_exit_code_and_the_reason_of_mount() {
    let Some(site) = Site::new() else {
        return;
    };
    let refused = |arguments: &str, cause: &str| {
        let script = format!("mount -t fuse.lockstep {arguments}");
        let output = site.run(&script);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(error.contains(cause), "{script}: {error}");
        output.status.code()
    };
    let config = site.path("node.toml").display().to_string();
    let (mnt, sbin) = (site.path("mnt"), site.path("sbin"));
    let (mnt, sbin) = (mnt.display(), sbin.display());
    let code = refused(
        &format!("other {mnt} -o config={config}"),
        "there is no datastore",
    );
    assert_eq!(code, Some(32));
    let code = refused(&format!("data {sbin} -o config={config}"), "not on");
    assert_eq!(code, Some(32));
    let code = refused(
        &format!("data {mnt} -o config={config},quota"),
        "unknown mount option",
    );
    assert_eq!(code, Some(1));
}
