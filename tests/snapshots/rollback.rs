//! `lockstep snapshot rollback`: after any changes, and after a rollback that was killed, the files are those of the snapshot.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use lockstep_testbed::chance::Chance;
use lockstep_testbed::{DATASTORE, Node, Pair, operator};
use rustix::fs::{
    CWD, FallocateFlags, FileType, Mode, OFlags, RenameFlags, XattrFlags, fallocate, mknodat,
    renameat_with, setxattr,
};

use super::mount::{assert_copied, fill, shown, start};
use super::{done, list, refused};

/// A program that changes a tree at random.
struct Changer {
    top: PathBuf,
    chance: Chance,
    made: u32,
}

impl Changer {
    /// Every path below the top, the directories among them first or all.
    fn paths(&self, wants_directory: bool) -> Vec<PathBuf> {
        let mut found = vec![self.top.clone()];
        let mut left = vec![self.top.clone()];
        while let Some(directory) = left.pop() {
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                let is_directory = fs::symlink_metadata(&path).unwrap().is_dir();
                if is_directory {
                    left.push(path.clone());
                }
                if is_directory || !wants_directory {
                    found.push(path);
                }
            }
        }
        found.sort();
        found
    }

    fn pick(&mut self, wants_directory: bool) -> PathBuf {
        let paths = self.paths(wants_directory);
        let at = self.chance.within(0..paths.len() as u64);
        paths[usize::try_from(at).unwrap()].clone()
    }

    /// A path that is not there, or at times one that is.
    fn target(&mut self) -> PathBuf {
        if self.chance.within(0..4) == 0 {
            return self.pick(false);
        }
        self.made += 1;
        self.pick(true).join(format!("new{}", self.made))
    }

    /// One change. The system refuses some.
    fn change(&mut self) -> io::Result<()> {
        let (path, target) = (self.pick(false), self.target());
        let offset = self.chance.within(0..300_000);
        let length = 1 + self.chance.within(0..100_000);
        let open = || OpenOptions::new().read(true).write(true).open(&path);
        match self.chance.within(0..15) {
            0 | 1 => {
                let byte = u8::try_from(self.chance.within(0..256)).unwrap();
                open()?.write_all_at(&vec![byte; usize::try_from(length).unwrap()], offset)
            }
            2 => open()?.set_len(offset),
            3 => {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                Ok(fallocate(open()?, flags, offset, length)?)
            }
            4 => {
                // The open of a pipe would wait for a reader.
                let flags = OFlags::NONBLOCK.bits().cast_signed();
                let mut options = OpenOptions::new();
                let options = options.write(true).create(true).truncate(true);
                let file = options.custom_flags(flags).open(target)?;
                file.write_all_at(&vec![1; usize::try_from(length).unwrap()], 0)
            }
            5 => fs::create_dir(target),
            6 | 7 => fs::rename(path, target),
            8 => Ok(renameat_with(
                CWD,
                path,
                CWD,
                target,
                RenameFlags::EXCHANGE,
            )?),
            9 => fs::hard_link(path, target),
            10 => fs::remove_file(path),
            11 if path != self.top => fs::remove_dir_all(path),
            12 => {
                let value = length.to_string();
                Ok(setxattr(
                    path,
                    "user.of",
                    value.as_bytes(),
                    XattrFlags::empty(),
                )?)
            }
            13 => {
                let bits = u32::try_from(self.chance.within(0..0o1000)).unwrap();
                fs::set_permissions(&path, fs::Permissions::from_mode(bits | 0o400))?;
                chown(path, Some(bits), Some(3))
            }
            _ => match self.chance.within(0..3) {
                0 => symlink("somewhere", target),
                1 => Ok(mknodat(CWD, target, FileType::Fifo, Mode::RUSR, 0)?),
                _ => flags("+i", &path),
            },
        }
    }
}

/// Sets or takes a flag.
fn flags(flag: &str, path: &Path) -> io::Result<()> {
    let mut command = Command::new("chattr");
    command
        .arg(flag)
        .arg(path)
        .stderr(Stdio::null())
        .status()
        .map(drop)
}

fn rollback(node: &Node, args: &[&str]) -> Command {
    let mut command = Command::new(lockstep_testbed::program());
    command.args(["snapshot", "rollback", DATASTORE]).args(args);
    command.arg("--control").arg(node.control());
    command
}

#[track_caller]
fn rolled_back(node: &Node, args: &[&str]) -> String {
    let output = rollback(node, args).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}");
    String::from_utf8(output.stdout).unwrap()
}

/// Deletes all snapshots but one.
fn delete_others(pair: &Pair, but: &str) {
    for (name, _, state) in list(&pair.primary) {
        if name != but && state != "deleting" {
            done(&pair.primary, &["delete", DATASTORE, &name]);
        }
    }
}

#[test]
fn a_rollback_brings_everything_back_whatever_has_changed() {
    const ROUNDS: u64 = 12;
    let Some(mut pair) = start() else { return };
    let mount = pair.mount();
    fill(&mount);
    let (mut seen, mut chance) = (0, Chance::of_run());
    for round in 0..ROUNDS {
        let mut changer = Changer {
            top: mount.clone(),
            chance: chance.fork(),
            made: u32::try_from(round * 10_000).unwrap(),
        };
        // The first rounds give the snapshot a tree of all kinds.
        (0..60).for_each(|_| drop(changer.change()));
        let name = format!("round {round}");
        done(&pair.primary, &["create", DATASTORE, &name]);
        let before = shown(&mount.join(".lockstep/snapshots").join(&name));
        let made = (0..120).filter(|_| changer.change().is_ok()).count();
        seen += made;
        if round % 3 == 2 {
            let killed = rollback(&pair.primary, &[&name]).spawn().unwrap();
            sleep(Duration::from_millis(changer.chance.within(0..30)));
            let mut killed = killed;
            killed.kill().unwrap();
            killed.wait().unwrap();
            // A snapshot of the mixture is one like any other, with all that the rollback has set aside.
            done(&pair.primary, &["create", DATASTORE, "mixture"]);
            let mixture = shown(&mount.join(".lockstep/snapshots/mixture"));
            rolled_back(&pair.primary, &[&name]);
            assert_copied(&shown(&mount), &before);
            rolled_back(&pair.primary, &["mixture"]);
            assert_copied(&shown(&mount), &mixture);
        }
        rolled_back(&pair.primary, &[&name]);
        assert_copied(&shown(&mount), &before);
        delete_others(&pair, "");
    }
    println!("{seen} changes");
    operator::assert_identical(&pair.primary);
    pair.stop();
}

/// The pages of the difference end anywhere, and the command may have few files open.
#[test]
fn a_rollback_of_thousands_of_files_goes_to_its_end() {
    const FILES: u32 = 2600;
    let Some(mut pair) = start() else { return };
    let mount = pair.mount();
    let fill = |directory: &Path| {
        fs::create_dir(directory).unwrap();
        for number in 0..FILES {
            fs::write(directory.join(number.to_string()), number.to_string()).unwrap();
        }
    };
    fill(&mount.join("old"));
    done(&pair.primary, &["create", DATASTORE, "one"]);
    let before = shown(&mount);
    fs::remove_dir_all(mount.join("old")).unwrap();
    fill(&mount.join("new"));
    let mut command = rollback(&pair.primary, &["one"]);
    let program = command.get_program().to_owned();
    let mut limited = Command::new("prlimit");
    limited
        .arg("--nofile=100")
        .arg(program)
        .args(command.get_args());
    command = limited;
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}");
    assert_copied(&shown(&mount), &before);
    pair.stop();
}

#[test]
fn a_file_that_lives_keeps_its_inode_and_stays_open() {
    let Some(mut pair) = start() else { return };
    let mount = pair.mount();
    fill(&mount);
    done(&pair.primary, &["create", DATASTORE, "one"]);
    let file = mount.join("d/file");
    let (open, number) = (
        File::open(&file).unwrap(),
        fs::metadata(&file).unwrap().ino(),
    );
    fs::rename(&file, mount.join("elsewhere")).unwrap();
    let write = OpenOptions::new().write(true).open(mount.join("elsewhere"));
    write.unwrap().write_all_at(b"changed", 100_000).unwrap();
    let told = rolled_back(&pair.primary, &["one"]);
    assert!(
        told.starts_with("rolled back to one: 1 names removed, 1 names restored"),
        "{told}"
    );
    assert_eq!(fs::metadata(&file).unwrap().ino(), number);
    let mut bytes = [0; 7];
    open.read_exact_at(&mut bytes, 100_000).unwrap();
    assert_eq!(bytes, [7; 7]);
    pair.stop();
}

#[test]
fn a_rollback_of_a_directory_leaves_the_rest_alone() {
    let Some(mut pair) = start() else { return };
    let mount = pair.mount();
    fill(&mount);
    fs::create_dir(mount.join("other")).unwrap();
    fs::write(mount.join("other/file"), "old").unwrap();
    done(&pair.primary, &["create", DATASTORE, "one"]);
    let before = shown(&mount.join("d"));
    fs::write(mount.join("other/file"), "new").unwrap();
    fs::remove_dir_all(mount.join("d")).unwrap();
    let other = shown(&mount.join("other"));
    let root = fs::metadata(&mount).unwrap().mtime_nsec();
    let text = rollback(&pair.primary, &["one", "--directory", "../d"])
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&text.stderr).contains("is not below"));
    rolled_back(&pair.primary, &["one", "--directory", "d"]);
    assert_copied(&shown(&mount.join("d")), &before);
    assert!(shown(&mount.join("other")) == other);
    // Directories outside keep the times that they had.
    assert_eq!(fs::metadata(&mount).unwrap().mtime_nsec(), root);

    // A file that has crossed the border of the directory needs a decision.
    fs::rename(mount.join("d/pointer"), mount.join("pointer")).unwrap();
    done(&pair.primary, &["delete", DATASTORE, "one"]);
    done(&pair.primary, &["create", DATASTORE, "two"]);
    fs::rename(mount.join("pointer"), mount.join("d/pointer")).unwrap();
    let output = rollback(&pair.primary, &["two", "--directory", "d"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("roll back a directory above both"), "{text}");
    assert!(mount.join("d/pointer").is_symlink());

    fs::rename(mount.join("d"), mount.join("elsewhere")).unwrap();
    let cases = [
        ("d", "was moved or replaced"),
        ("elsewhere", "no directory elsewhere"),
    ];
    for (directory, why) in cases {
        let mut command = rollback(&pair.primary, &["two", "--directory", directory]);
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(text.contains(why), "{text}");
    }
    // A refusal makes no snapshot: there is the one of the rollback that was done, and of the one that was refused for its files.
    let safeties = list(&pair.primary).into_iter();
    assert_eq!(
        safeties
            .filter(|it| it.0.starts_with("before-rollback"))
            .count(),
        2
    );

    let text = String::from_utf8(rollback(&pair.primary, &["none"]).output().unwrap().stderr);
    assert!(text.unwrap().contains("no snapshot"));
    let text = refused(&pair.secondary, &["rollback", DATASTORE, "two"]);
    assert!(text.contains("ask the primary"), "{text}");
    pair.stop();
}
