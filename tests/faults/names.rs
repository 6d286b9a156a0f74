//! A client that makes, renames and removes names in one directory and keeps account.
//!
//! Invariants: what is about to be done is noted before it is tried and taken over only after it
//! has returned. An operation that failed has happened once or not at all; which of the two the next
//! check finds out, and that is final. Until then its names are left alone.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags};

use crate::chance::Chance;
use crate::writers::Client;

/// How many names there are about.
const NAMES: usize = 100;
/// The directory, below the root.
const DIRECTORY: &str = "names";

/// What a name leads to: for a symbolic link its target, which is never used again.
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

/// The client.
pub struct NameChanger {
    chance: Chance,
    directory: Option<OwnedFd>,
    made: u64,
    tree: Tree,
    in_doubt: Vec<Step>,
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
            in_doubt: Vec::new(),
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
        let in_doubt = |name: &&String| self.in_doubt.iter().any(|step| step.concerns(name));
        let names: Vec<&String> = self.tree.keys().filter(|name| !in_doubt(name)).collect();
        (!names.is_empty()).then(|| (*self.chance.pick(&names)).clone())
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
        let step = self.next();
        self.in_doubt.push(step.clone());
        self.carry_out(&step)?;
        self.in_doubt.pop();
        apply(&mut self.tree, step);
        Ok(())
    }

    fn close(&mut self) {
        self.directory = None;
    }

    fn check(&mut self, root: &Path) -> Result<(), String> {
        let found = listing(&root.join(DIRECTORY)).map_err(|error| error.to_string())?;
        let mut expected = self.tree.clone();
        for step in &self.in_doubt {
            let mut done = expected.clone();
            apply(&mut done, step.clone());
            if step
                .names()
                .iter()
                .all(|name| done.get(*name) == found.get(*name))
            {
                expected = done;
            }
        }
        if found != expected {
            return Err(explain(&expected, &found, &self.in_doubt));
        }
        self.tree = found;
        self.in_doubt.clear();
        Ok(())
    }
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

fn explain(expected: &Tree, found: &Tree, in_doubt: &[Step]) -> String {
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
