//! `lockstep snapshot rollback`: brings the files of a datastore, or of one directory, back to a snapshot.

use std::fs::{File, OpenOptions, TryLockError};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::{Context, Result, bail};
use clap::Args;
use lockstep_driver::report::{DiffBegin, DiffItem, DiffPart, DiffQuestion, SnapshotCommand};
use lockstep_rollback::{
    FileChange, FileDifference, RollbackPlaces, RollbackSummary, check, roll_back,
};
use lockstep_types::Timestamp;
use lockstepfs::control::{ControlClient, ControlError};

use crate::cli::arguments::RunningNodeArgs;
use crate::cli::terminal::{bytes, count, path_bytes, say, say_json, warn};

/// Bring the files back to a snapshot
///
/// Makes a snapshot of this moment first, so nothing is lost. Then changes what differs from SNAPSHOT, by ordinary calls on the mount: files that
/// are there keep their inodes, get back the bytes that differ, and stay open; files that are gone are made anew; files that are new are removed.
/// It takes as long as the changes since the snapshot.
///
/// Run it on the primary, as root. Stop the programs that use the files first: they would see old and new files together.
/// A rollback that is killed has done a part; run it again.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct RollbackArgs {
    /// Name of the datastore
    datastore: String,

    /// Name of the snapshot
    snapshot: String,

    /// Bring back only this directory, with its content; relative to the mount directory
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,

    #[command(flatten)]
    node: RunningNodeArgs,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  lockstep snapshot rollback data before-upgrade
  lockstep snapshot rollback data before-upgrade --directory sites/shop
  lockstep snapshot diff data before-upgrade             what a rollback would change

Exit codes: 0 done; 2 could not be done, or not to its end.";

/// The hold that keeps both snapshots of a rollback until its end.
const HOLD: &str = "rollback";

pub(super) fn run(args: &RollbackArgs) -> Result<ExitCode> {
    let socket = args.node.socket()?;
    let mut node = ControlClient::connect(&socket)?;
    let _alone = lock(&socket)?;
    let mount = mount_of(&mut node, &args.datastore)?;
    let snapshots = mount.join(".lockstep/snapshots");
    let directory = relative(args.directory.as_deref(), &mount)?;
    // Refuses an unknown snapshot, and a place, before another snapshot is made.
    ask(&mut node, args, None, Some(1), &mut |_| Ok(()))?;
    let places = RollbackPlaces {
        mount: &mount,
        snapshot: &snapshots.join(&args.snapshot),
        directory: directory.as_os_str().as_bytes(),
    };
    check(places)?;
    let safety = make_safety(&mut node, args)?;
    let mut held = Held {
        node: &mut node,
        datastore: &args.datastore,
        snapshots: [&args.snapshot, &safety],
    };
    held.hold()?;
    let done = differences(held.node, args, &safety)
        .and_then(|differences| Ok(roll_back(places, &snapshots.join(&safety), &differences)?));
    let released = held.release();
    let done = done.with_context(|| {
        format!(
            "the rollback is not complete: run it again; the state from before it is the snapshot {safety}"
        )
    })?;
    released?;
    report(args, &safety, done)?;
    Ok(ExitCode::SUCCESS)
}

/// Keeps other rollbacks by this node out, as long as the file is open.
fn lock(socket: &Path) -> Result<File> {
    let mut path = socket.as_os_str().to_owned();
    path.push(".rollback");
    let mut options = OpenOptions::new();
    let options = options.write(true).create(true).truncate(false).mode(0o600);
    let opened = options.open(&path);
    let file = opened.with_context(|| format!("cannot open {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            bail!("another rollback by this node runs\n  cure: wait for its end")
        }
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("cannot lock {}", path.display()))
        }
    }
}

/// Makes the snapshot of the state before the rollback. Returns its name.
fn make_safety(node: &mut ControlClient, args: &RollbackArgs) -> Result<String> {
    let taken = node.snapshots(&args.datastore, &SnapshotCommand::List)?;
    let taken: Vec<_> = taken.into_iter().map(|it| it.name).collect();
    let safety = safety_name(SystemTime::now(), &taken);
    let create = SnapshotCommand::Create {
        name: safety.clone(),
        // The programs are stopped, so there is none to freeze.
        hooks: false,
    };
    node.snapshots(&args.datastore, &create)?;
    Ok(safety)
}

/// The snapshots of a rollback, which nothing may delete meanwhile.
struct Held<'a> {
    node: &'a mut ControlClient,
    datastore: &'a str,
    snapshots: [&'a str; 2],
}

impl Held<'_> {
    fn hold(&mut self) -> Result<()> {
        let listed = self
            .node
            .snapshots(self.datastore, &SnapshotCommand::List)?;
        for name in self.snapshots {
            let named = listed.iter().find(|it| it.name == name);
            // That of a rollback that was killed.
            if named.is_some_and(|it| it.holds.iter().any(|hold| hold == HOLD)) {
                continue;
            }
            let command = SnapshotCommand::Hold {
                name: name.to_owned(),
                hold: HOLD.to_owned(),
            };
            self.node.snapshots(self.datastore, &command)?;
        }
        Ok(())
    }

    /// Also takes the holds off that a killed rollback has left.
    fn release(&mut self) -> Result<()> {
        let listed = self
            .node
            .snapshots(self.datastore, &SnapshotCommand::List)?;
        for snapshot in listed {
            if snapshot.holds.iter().any(|hold| hold == HOLD) {
                let command = SnapshotCommand::Release {
                    name: snapshot.name,
                    hold: HOLD.to_owned(),
                };
                self.node.snapshots(self.datastore, &command)?;
            }
        }
        Ok(())
    }
}

/// All differences between the snapshot and the state before the rollback.
fn differences(
    node: &mut ControlClient,
    args: &RollbackArgs,
    safety: &str,
) -> Result<Vec<FileDifference>> {
    let (mut differences, mut unknown) = (Vec::new(), None);
    let mut take = |part| {
        if let DiffPart::Page { items, .. } = part {
            for item in &items {
                match difference(item) {
                    Some(difference) => differences.push(difference),
                    None => unknown = Some(item.change.clone()),
                }
            }
        }
        Ok(())
    };
    ask(node, args, Some(safety), None, &mut take)?;
    match unknown {
        None => Ok(differences),
        Some(change) => bail!(
            "the node tells of a change {change:?} that this program does not know\n  \
             cure: use the `lockstep` of the same version as the node"
        ),
    }
}

type Take<'a> = dyn FnMut(DiffPart) -> Result<(), ControlError> + 'a;

/// Asks for the differences between the snapshot and another one, or the present.
fn ask(
    node: &mut ControlClient,
    args: &RollbackArgs,
    to: Option<&str>,
    entries_max: Option<u64>,
    take: &mut Take<'_>,
) -> Result<(), ControlError> {
    let question = DiffQuestion {
        begin: DiffBegin::Moments {
            from: args.snapshot.clone(),
            to: to.map(str::to_owned),
        },
        ranges: to.is_some(),
        entries_max,
        accepts_torn: false,
    };
    node.snapshot_diff(&args.datastore, &question, take)
}

/// The mount of a datastore that this node serves.
fn mount_of(node: &mut ControlClient, datastore: &str) -> Result<PathBuf> {
    let status = node.status()?;
    let found = status
        .datastores
        .iter()
        .find(|it| it.settings.name == datastore);
    let Some(found) = found else {
        bail!("the node has no datastore named {datastore}");
    };
    match &found.settings.mount {
        Some(mount) => Ok(PathBuf::from(mount)),
        None => bail!(
            "{datastore} is not mounted on this server\n  cure: run the rollback on the primary, with the datastore mounted"
        ),
    }
}

/// A directory as a path from the root of the mount.
fn relative(directory: Option<&Path>, mount: &Path) -> Result<PathBuf> {
    let Some(directory) = directory else {
        return Ok(PathBuf::new());
    };
    let inside = directory.strip_prefix(mount).unwrap_or(directory);
    let mut relative = PathBuf::new();
    for part in inside.components() {
        match part {
            Component::Normal(name) => relative.push(name),
            Component::CurDir => {}
            Component::RootDir | Component::ParentDir | Component::Prefix(_) => bail!(
                "{} is not below {}\n  cure: name a directory of the datastore, such as sites/shop",
                directory.display(),
                mount.display()
            ),
        }
    }
    Ok(relative)
}

/// The name of the snapshot that is made before a rollback: none of those that are taken.
fn safety_name(now: SystemTime, taken: &[String]) -> String {
    let mut name = format!("before-rollback-{}", Timestamp::from(now).utc());
    while taken.contains(&name) {
        name.push('+');
    }
    name
}

/// The difference that an item tells; `None` for one of a newer node.
fn difference(item: &DiffItem) -> Option<FileDifference> {
    let change = match &*item.change {
        "created" => FileChange::Created,
        "deleted" => FileChange::Deleted,
        "renamed" => FileChange::Renamed,
        "linked" => FileChange::Linked,
        "unlinked" => FileChange::Unlinked,
        "changed" => FileChange::Changed,
        _ => return None,
    };
    let range = |range: &lockstep_driver::report::DiffBytes| -> Range<u64> {
        range.offset..range.offset.saturating_add(range.length)
    };
    Some(FileDifference {
        change,
        path: path_bytes(&item.path, item.path_hex.as_deref()),
        old_path: item
            .old_path
            .as_deref()
            .map(|old| path_bytes(old, item.old_path_hex.as_deref())),
        ino: item.inode,
        is_directory: item.kind == "directory",
        flags: item.attributes.iter().any(|it| it == "flags"),
        xattrs: item.xattrs,
        ranges: item.ranges.iter().map(range).collect(),
    })
}

fn report(args: &RollbackArgs, safety: &str, done: RollbackSummary) -> Result<()> {
    let RollbackSummary {
        removed,
        restored,
        changed,
        bytes: written,
    } = done;
    if args.json {
        let mut printed = serde_json::to_value(done)?;
        if let Some(keys) = printed.as_object_mut() {
            keys.insert("before".to_owned(), safety.into());
        }
        say_json(&printed)?;
        return Ok(());
    }
    say(&format!(
        "rolled back to {}: {} names removed, {} names restored, {} files and directories changed, {} written\n",
        args.snapshot,
        count(removed),
        count(restored),
        count(changed),
        bytes(written)
    ))?;
    warn(&format!(
        "the state from before is the snapshot {safety}; delete it once you do not need it"
    ));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_named_from_the_mount() {
        let mount = Path::new("/srv/data");
        let relative = |text: &str| relative(Some(Path::new(text)), mount);
        for (text, expected) in [
            ("a/b", "a/b"),
            ("./a/", "a"),
            ("/srv/data/a", "a"),
            ("/srv/data", ""),
            (".", ""),
        ] {
            assert_eq!(relative(text).unwrap(), Path::new(expected), "{text}");
        }
        for outside in ["/etc", "../x", "a/../../b"] {
            assert!(relative(outside).is_err(), "{outside}");
        }
    }

    #[test]
    fn each_rollback_makes_a_snapshot_of_another_name() {
        let mut taken = Vec::new();
        for _ in 0..3 {
            let name = safety_name(SystemTime::UNIX_EPOCH, &taken);
            assert!(!taken.contains(&name) && name.starts_with("before-rollback-1970"));
            taken.push(name);
        }
    }
}
