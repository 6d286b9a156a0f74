//! A client that makes, renames and removes names in one directory and keeps account.
//!
//! Invariants: an operation is noted before it is tried and applied to the account only after it has returned. A
//! failed operation has happened once or not at all. The next check finds out, and that result is final; until then
//! the client leaves the names of the operation alone. After a power loss of the primary, the last operations may be
//! undone, down to the ones on stable storage, but an undone operation has no surviving successor.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use lockstep_testbed::chance::Chance;
use rustix::fs::{AtFlags, Mode, OFlags};

use crate::writers::Client;

/// Approximate number of names.
const NAMES: usize = 100;
/// Operations between two syncs.
const SYNC_INTERVAL: u64 = 32;
/// The directory, below the root.
const DIRECTORY: &str = "names";

/// The target of a name. A symbolic link has a target that is never used again.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Thing {
    File,
    Directory,
    Symlink(String),
}

#[derive(Clone, Debug)]
enum Step {
    Make(String, Thing),
    Rename(String, String),
    Remove(String),
}

impl Step {
    fn names(&self) -> Vec<&String> {
        match self {
            Self::Make(name, _) | Self::Remove(name) => vec![name],
            Self::Rename(from, to) => vec![from, to],
        }
    }

    fn concerns(&self, name: &String) -> bool {
        self.names().contains(&name)
    }
}

type Tree = BTreeMap<String, Thing>;

/// A tried operation.
#[derive(Clone)]
struct Tried {
    step: Step,
    acknowledged: bool,
}

/// The client.
pub struct NameChanger {
    chance: Chance,
    directory: Option<OwnedFd>,
    made: u64,
    /// All acknowledged operations.
    tree: Tree,
    /// The operations on stable storage.
    saved: Tree,
    /// The operations tried since, in order: `saved` and the acknowledged ones of these make `tree`.
    since: Vec<Tried>,
    power_lost: bool,
}

impl NameChanger {
    /// Makes its directory below `root`.
    pub fn new(root: &Path, chance: Chance) -> Self {
        fs::create_dir(root.join(DIRECTORY)).unwrap();
        Self {
            chance,
            directory: None,
            made: 0,
            tree: Tree::new(),
            saved: Tree::new(),
            since: Vec::new(),
            power_lost: false,
        }
    }

    fn next(&mut self) -> Step {
        self.made += 1;
        let fresh = format!("{}", self.made);
        let Some(name) = self.some_name() else {
            return Step::Make(fresh, Thing::File);
        };
        if self.tree.len() > NAMES {
            return Step::Remove(name);
        }
        match self.chance.within(0..5) {
            0 => Step::Make(fresh, Thing::File),
            1 => Step::Make(fresh, Thing::Directory),
            2 => Step::Make(fresh, Thing::Symlink(format!("to-{}", self.made))),
            3 => Step::Rename(name, fresh),
            _ => self.replacing(name, fresh),
        }
    }

    /// Renames over a name of the same kind, if there is one.
    fn replacing(&mut self, name: String, fresh: String) -> Step {
        let kind = |thing: &Thing| std::mem::discriminant(thing);
        match self.some_name() {
            Some(other) if other != name && kind(&self.tree[&other]) == kind(&self.tree[&name]) => {
                Step::Rename(name, other)
            }
            _ => Step::Rename(name, fresh),
        }
    }

    fn some_name(&mut self) -> Option<String> {
        let in_doubt = |name: &&String| {
            let mut open = self.since.iter().filter(|tried| !tried.acknowledged);
            open.any(|tried| tried.step.concerns(name))
        };
        let names: Vec<&String> = self.tree.keys().filter(|name| !in_doubt(name)).collect();
        (!names.is_empty()).then(|| (*self.chance.pick(&names)).clone())
    }

    /// Puts all acknowledged operations on stable storage.
    fn sync(&mut self) -> io::Result<()> {
        rustix::fs::fsync(self.directory.as_ref().expect("the client is open"))?;
        self.saved();
        Ok(())
    }

    fn carry_out(&self, step: &Step) -> io::Result<()> {
        let at = self.directory.as_ref().expect("the client is open");
        let mode = Mode::from_raw_mode(0o755);
        match step {
            Step::Make(name, Thing::File) => {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
                drop(rustix::fs::openat(at, name, flags, mode)?);
            }
            Step::Make(name, Thing::Directory) => rustix::fs::mkdirat(at, name, mode)?,
            Step::Make(name, Thing::Symlink(target)) => rustix::fs::symlinkat(target, at, name)?,
            Step::Rename(from, to) => rustix::fs::renameat(at, from, at, to)?,
            Step::Remove(name) => {
                let directory = self.tree[name] == Thing::Directory;
                let flags = if directory {
                    AtFlags::REMOVEDIR
                } else {
                    AtFlags::empty()
                };
                rustix::fs::unlinkat(at, name, flags)?;
            }
        }
        Ok(())
    }
}

fn apply(tree: &mut Tree, step: Step) {
    match step {
        Step::Make(name, thing) => drop(tree.insert(name, thing)),
        Step::Remove(name) => drop(tree.remove(&name)),
        Step::Rename(from, to) => {
            let thing = tree.remove(&from).expect("it was there to be renamed");
            tree.insert(to, thing);
        }
    }
}

impl Client for NameChanger {
    fn name(&self) -> String {
        "the client that changes names".to_owned()
    }

    fn open(&mut self, root: &Path) -> io::Result<()> {
        let path: PathBuf = root.join(DIRECTORY);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        self.directory = Some(rustix::fs::open(path, flags, Mode::empty())?);
        Ok(())
    }

    fn step(&mut self) -> io::Result<()> {
        if self.chance.within(0..SYNC_INTERVAL) == 0 {
            self.sync()?;
        }
        let step = self.next();
        self.since.push(Tried {
            step: step.clone(),
            acknowledged: false,
        });
        self.carry_out(&step)?;
        if let Some(tried) = self.since.last_mut() {
            tried.acknowledged = true;
        }
        apply(&mut self.tree, step);
        Ok(())
    }

    fn close(&mut self) {
        self.directory = None;
    }

    fn saved(&mut self) {
        self.saved.clone_from(&self.tree);
        self.since.retain(|tried| !tried.acknowledged);
    }

    fn power_lost(&mut self) {
        self.power_lost = true;
    }

    fn copy(&self) -> Box<dyn Client> {
        Box::new(Self {
            chance: self.chance.clone(),
            directory: None,
            made: self.made,
            tree: self.tree.clone(),
            saved: self.saved.clone(),
            since: self.since.clone(),
            power_lost: self.power_lost,
        })
    }

    fn check(&mut self, root: &Path) -> Result<(), String> {
        let found = listing(&root.join(DIRECTORY)).map_err(|error| error.to_string())?;
        let all = self.since.len();
        let fewest = if self.power_lost { 0 } else { all };
        for count in (fewest..=all).rev() {
            let (expected, happened) = after(&self.saved, &self.since[..count], &found);
            if expected == found {
                self.since.truncate(count);
                self.settle(found, &happened);
                return Ok(());
            }
        }
        let in_doubt = self.since.iter().filter(|tried| !tried.acknowledged);
        let in_doubt: Vec<&Step> = in_doubt.map(|tried| &tried.step).collect();
        Err(explain(&self.tree, &found, &in_doubt))
    }
}

impl NameChanger {
    /// Takes the found names as final.
    fn settle(&mut self, found: Tree, happened: &[bool]) {
        let mut happened = happened.iter();
        self.since.retain_mut(|tried| {
            tried.acknowledged = *happened.next().expect("there is one for each");
            tried.acknowledged
        });
        self.tree = found;
        self.power_lost = false;
    }
}

/// Returns the tree after the acknowledged operations, and after those other operations that the found names show.
/// Also returns for each operation whether it has happened.
fn after(saved: &Tree, since: &[Tried], found: &Tree) -> (Tree, Vec<bool>) {
    let mut tree = saved.clone();
    for tried in since.iter().filter(|tried| tried.acknowledged) {
        apply(&mut tree, tried.step.clone());
    }
    let mut happened = Vec::new();
    for tried in since {
        let has_happened = tried.acknowledged || would_show(&tree, &tried.step, found);
        if has_happened && !tried.acknowledged {
            apply(&mut tree, tried.step.clone());
        }
        happened.push(has_happened);
    }
    (tree, happened)
}

/// Whether the found names of a step are the ones after the step.
fn would_show(tree: &Tree, step: &Step, found: &Tree) -> bool {
    let mut done = tree.clone();
    apply(&mut done, step.clone());
    let mut names = step.names().into_iter();
    names.all(|name| done.get(name) == found.get(name))
}

fn listing(directory: &Path) -> io::Result<Tree> {
    let mut tree = Tree::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        let thing = if kind.is_symlink() {
            let target = fs::read_link(entry.path())?;
            Thing::Symlink(target.to_string_lossy().into_owned())
        } else if kind.is_dir() {
            Thing::Directory
        } else {
            Thing::File
        };
        tree.insert(entry.file_name().to_string_lossy().into_owned(), thing);
    }
    Ok(tree)
}

fn explain(expected: &Tree, found: &Tree, in_doubt: &[&Step]) -> String {
    let only_in = |one: &Tree, other: &Tree| -> Tree {
        let differs = |(name, thing): &(&String, &Thing)| other.get(*name) != Some(*thing);
        let kept = one.iter().filter(differs);
        kept.map(|(name, thing)| (name.clone(), thing.clone()))
            .collect()
    };
    format!(
        "names lost: {:?}; names that should not be: {:?}; in doubt: {in_doubt:?}",
        only_in(expected, found),
        only_in(found, expected)
    )
}
