//! The scripts of docs/operations/backup.md that back a snapshot up, on the server that does not serve.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::thread;
use std::time::Duration;

use lockstep_testbed::{DATASTORE, Pair};

use super::list;
use super::mount::{assert_copied, fill, shown, start};

/// A program that keeps backups.
struct BackupProgram<'a> {
    program: &'a str,
    pair: &'a Pair,
    /// The variables of its repository.
    environment: Vec<(&'a str, String)>,
}

impl BackupProgram<'_> {
    fn run(&self, command: &mut Command) -> Output {
        let home = self.pair.outside("home");
        let command = command.envs(self.environment.clone()).env("HOME", home);
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{}: {text}", self.program);
        output
    }

    /// Runs the script of the page, with the values of this test.
    fn back_up(&self) -> String {
        let page = include_str!("../../docs/operations/backup.md");
        let mut scripts = page.split("```sh\n").skip(1);
        let script = scripts.find(|it| it.contains(&format!("\n{} ", self.program)));
        let script = script.unwrap().split("```").next().unwrap();
        let mount = self.pair.secondary.mount();
        let control = self.pair.primary.control();
        let command = format!(
            "{} snapshot --control {}",
            lockstep_testbed::program(),
            control.display()
        );
        let script = script
            .replace("name=data", &format!("name={DATASTORE}"))
            .replace("mount=/srv/data", &format!("mount={}", mount.display()));
        let order = ["create", "delete"];
        let script = order.iter().fold(script, |script, verb| {
            let options = command.replacen(" --control", &format!(" {verb} --control"), 1);
            script.replace(&format!("lockstep snapshot {verb}"), &options)
        });
        let output = self.run(Command::new("sh").args(["-c", &script]));
        assert!(list(&self.pair.primary).iter().all(|it| it.2 == "deleting"));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

/// Checks that a restored directory is that of the mount.
#[track_caller]
fn assert_restored(pair: &Pair, restored: &Path) {
    let (mut here, mut there) = (shown(&pair.mount()), shown(restored));
    // The directory itself was there before.
    here.remove("");
    there.remove("");
    assert_copied(&there, &here);
}

#[test]
fn restic_backs_a_snapshot_up() {
    let Some(mut pair) = start() else { return };
    fill(&pair.mount());
    let restic = BackupProgram {
        program: "restic",
        pair: &pair,
        environment: vec![
            (
                "RESTIC_REPOSITORY",
                pair.outside("repository").display().to_string(),
            ),
            ("RESTIC_PASSWORD", "secret".to_owned()),
        ],
    };
    restic.run(Command::new("restic").arg("init"));
    restic.back_up();
    fs::write(pair.mount().join("d/file"), "changed").unwrap();
    let told = restic.back_up();
    let files = told
        .lines()
        .find(|line| line.starts_with("Files:"))
        .unwrap();
    assert!(files.contains(" 0 new,"), "{told}");
    assert!(!files.contains(" 0 unmodified"), "{told}");
    let target = pair.outside("restored");
    restic.run(
        Command::new("restic")
            .args(["restore", "latest", "--target"])
            .arg(&target),
    );
    let within = pair.secondary.mount().join(".lockstep/snapshots/backup");
    assert_restored(&pair, &target.join(within.strip_prefix("/").unwrap()));
    pair.stop();
}

#[test]
fn borg_backs_a_snapshot_up() {
    let Some(mut pair) = start() else { return };
    fill(&pair.mount());
    let borg = BackupProgram {
        program: "borg",
        pair: &pair,
        environment: vec![
            (
                "BORG_REPO",
                pair.outside("repository").display().to_string(),
            ),
            ("BORG_PASSPHRASE", "secret".to_owned()),
        ],
    };
    borg.run(Command::new("borg").args(["init", "--encryption", "repokey"]));
    borg.back_up();
    fs::write(pair.mount().join("d/file"), "changed").unwrap();
    // The name of an archive has its second.
    thread::sleep(Duration::from_millis(1100));
    borg.back_up();
    let archives = borg.run(Command::new("borg").args(["list", "--short"]));
    let archives = String::from_utf8_lossy(&archives.stdout).into_owned();
    let last = archives.lines().last().unwrap();
    let target = pair.outside("restored");
    fs::create_dir(&target).unwrap();
    let mut extract = Command::new("borg");
    borg.run(
        extract
            .args(["extract", &format!("::{last}")])
            .current_dir(&target),
    );
    assert_restored(&pair, &target);
    pair.stop();
}
