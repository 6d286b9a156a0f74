//! One command that gives names back: it finds what is meant, makes the directories above exist, and goes down into a directory.

use lockstep_fs::StoreView;
use lockstep_fs::view::directory_paths::DirectoryPaths;
use lockstep_types::{Errno, FileName, Ino, MetaRequest, NodeKind};

use super::access::TrashAccess;
use super::tree::{DeletionSpan, TrashTree, Trashed};
use crate::jobs::told_path::told_path;
use crate::ops::meta_pipeline::MetaPipeline;
use crate::ops::own_operation::carry_out;
use crate::report::{CommandFailure, RestoreQuestion, TrashRestored};

/// Most paths of an answer.
const SKIPPED_MAX: usize = 100;

/// Tells mounts of a directory in which an inode has got a name by an operation that no program has asked for, and of the inode.
pub(crate) type TellNamed<'a> = &'a dyn Fn(Ino, Ino);

/// See the head of this file.
pub(super) struct Restoring<'a> {
    trash: TrashAccess<'a>,
    pipeline: &'a MetaPipeline,
    tell: TellNamed<'a>,
    tree: TrashTree,
    done: TrashRestored,
}

/// The subject of a command.
enum RestoreTarget {
    /// An inode in the trash, and the directory of its last name.
    InTrash(Trashed, Ino),
    /// A directory with a name, from which something was deleted.
    Below(Ino),
}

impl<'a> Restoring<'a> {
    /// Reads what is in the trash.
    pub fn begin(
        trash: TrashAccess<'a>,
        pipeline: &'a MetaPipeline,
        tell: TellNamed<'a>,
    ) -> Result<Self, CommandFailure> {
        let tree = TrashTree::read(&trash.engine.store.tree());
        Ok(Self {
            tree: tree.map_err(|error| trash.failed(&error))?,
            trash,
            pipeline,
            tell,
            done: TrashRestored::default(),
        })
    }

    /// Carries the command out.
    pub fn run(mut self, question: &RestoreQuestion) -> Result<TrashRestored, CommandFailure> {
        let span = DeletionSpan {
            before: None,
            since: question.since,
        };
        match self.find(question)? {
            RestoreTarget::Below(directory) if question.to.is_none() => {
                let path = question.path.clone();
                self.restore_below(directory, path.clone(), span)?;
                self.done.path = told_path(&path).0;
            }
            RestoreTarget::Below(_) => {
                return Err(CommandFailure::new(
                    format!("{} is not in the trash", shown(&question.path)),
                    "leave --to out: then what was deleted from the directory comes back into it",
                ));
            }
            RestoreTarget::InTrash(trashed, above) => {
                let (parent, name, path) = self.place(question, &trashed, above)?;
                let done = self.name(trashed.ino, parent, &name);
                done.map_err(|errno| self.not_named(errno, &path))?;
                self.done.path = told_path(&path).0;
                let before = Some(trashed.osn);
                self.restore_below(trashed.ino, path, DeletionSpan { before, ..span })?;
            }
        }
        Ok(self.done)
    }

    /// Finds what a question means.
    fn find(&self, question: &RestoreQuestion) -> Result<RestoreTarget, CommandFailure> {
        if let Some(number) = question.inode {
            return self.find_inode(number);
        }
        let names = names_of(&question.path)?;
        let Some((last, above)) = names.split_last() else {
            return Ok(RestoreTarget::Below(Ino::ROOT));
        };
        let mut directories = vec![Ino::ROOT];
        for name in above {
            let below = directories.iter().flat_map(|directory| {
                let deleted = self.tree.named(*directory, name).map(|it| it.ino);
                self.live(*directory, name).into_iter().chain(deleted)
            });
            directories = below.collect();
        }
        let all = directories
            .iter()
            .flat_map(|above| self.tree.named(*above, last).map(|it| (it, *above)));
        let in_time = all.filter(|(it, _)| question.at.is_none_or(|at| it.secs <= at));
        if let Some((newest, above)) = in_time.max_by_key(|(it, _)| it.osn) {
            return Ok(RestoreTarget::InTrash(newest.clone(), above));
        }
        let mut live = directories
            .iter()
            .filter_map(|above| self.live(*above, last));
        match live.next() {
            Some(directory) if question.at.is_none() => Ok(RestoreTarget::Below(directory)),
            _ => Err(self.unknown(&question.path, question.at.is_some())),
        }
    }

    fn find_inode(&self, number: u64) -> Result<RestoreTarget, CommandFailure> {
        let datastore = self.trash.engine.name();
        let unknown = || {
            CommandFailure::new(
                format!("no inode {number} is in the trash"),
                format!("see the numbers with `lockstep trash list {datastore}`"),
            )
        };
        let ino = Ino::new(number).ok_or_else(unknown)?;
        let mark = self.trash.engine.store.tree().trash_mark(ino);
        let mark = mark.map_err(|error| self.trash.failed(&error))?;
        let mark = mark.ok_or_else(unknown)?;
        let trashed = Trashed {
            ino,
            name: mark.name,
            secs: mark.time.secs,
            osn: mark.osn,
        };
        Ok(RestoreTarget::InTrash(trashed, mark.parent))
    }

    fn unknown(&self, path: &[u8], has_moment: bool) -> CommandFailure {
        let datastore = self.trash.engine.name();
        let when = if has_moment {
            " of that moment or before"
        } else {
            ""
        };
        CommandFailure::new(
            format!("nothing in the trash has the path {}{when}", shown(path)),
            format!(
                "see the paths with `lockstep trash list {datastore}`; what was never in the trash is in a snapshot at most"
            ),
        )
    }

    /// The directory with a name in a directory, unless it is in the trash.
    fn live(&self, directory: Ino, name: &FileName) -> Option<Ino> {
        let found = self
            .trash
            .engine
            .store
            .tree()
            .lookup(directory, name)
            .ok()?;
        (found.kind == NodeKind::Directory).then_some(found.ino)
    }

    /// The directory and the name that an inode is to get, and its path then. The directories above the path of its last name get their own names
    /// back.
    fn place(
        &mut self,
        question: &RestoreQuestion,
        trashed: &Trashed,
        above: Ino,
    ) -> Result<(Ino, FileName, Vec<u8>), CommandFailure> {
        let Some(to) = &question.to else {
            let (parent, mut path) = self.make_live(above)?;
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(trashed.name.as_bytes());
            return Ok((parent, trashed.name.clone(), path));
        };
        let names = names_of(to)?;
        let Some((last, above)) = names.split_last() else {
            return Err(CommandFailure::new(
                "the mount directory is there already",
                "name a path below it",
            ));
        };
        let mut parent = Ino::ROOT;
        for name in above {
            parent = self.live(parent, name).ok_or_else(|| {
                CommandFailure::new(
                    format!("{} has no such directory above it", shown(to)),
                    "make the directory in the mount first",
                )
            })?;
        }
        Ok((parent, last.clone(), to.clone()))
    }

    /// Gives a directory a name again, if it is in the trash, and the directories above it before. If another directory has the name by now, that one takes
    /// its place. Returns the directory and its path.
    fn make_live(&mut self, directory: Ino) -> Result<(Ino, Vec<u8>), CommandFailure> {
        let mut chain = Vec::new();
        let mut top = directory;
        let store = &self.trash.engine.store;
        while let Some(mark) = store
            .tree()
            .trash_mark(top)
            .map_err(|it| self.trash.failed(&it))?
        {
            chain.push((top, mark.name));
            top = mark.parent;
        }
        let mut path = self.path_of(top)?;
        for (ino, name) in chain.into_iter().rev() {
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(name.as_bytes());
            if let Some(other) = self.live(top, &name) {
                top = other;
            } else {
                let done = self.name(ino, top, &name);
                done.map_err(|errno| self.not_named(errno, &path))?;
                top = ino;
            }
        }
        Ok((top, path))
    }

    /// The path of a directory that is not in the trash.
    fn path_of(&self, directory: Ino) -> Result<Vec<u8>, CommandFailure> {
        let tree = self.trash.engine.store.tree();
        let mut paths = DirectoryPaths::default();
        let found = paths.find(&tree, &[directory].into());
        found.map_err(|error| self.trash.failed(&error))?;
        let path = paths.of(directory).map(<[u8]>::to_vec);
        path.ok_or_else(|| {
            CommandFailure::new(
                "the directory of its last name is gone, and is not in the trash",
                "name another place with --to PATH",
            )
        })
    }

    /// Gives what was deleted from a directory its names back, and goes down into the directories among it.
    fn restore_below(
        &mut self,
        directory: Ino,
        path: Vec<u8>,
        span: DeletionSpan,
    ) -> Result<(), CommandFailure> {
        let mut left = vec![(directory, path, span)];
        while let Some((directory, path, span)) = left.pop() {
            for trashed in self.tree.newest_of_each(directory, span) {
                let mut below = path.clone();
                if !below.is_empty() {
                    below.push(b'/');
                }
                below.extend_from_slice(trashed.name.as_bytes());
                match self.name(trashed.ino, directory, &trashed.name) {
                    Ok(()) => {
                        let before = Some(trashed.osn);
                        left.push((trashed.ino, below, DeletionSpan { before, ..span }));
                    }
                    Err(Errno::Exists | Errno::NoData | Errno::Stale) => self.skip(&below),
                    Err(errno) => return Err(self.not_named(errno, &below)),
                }
            }
        }
        Ok(())
    }

    fn skip(&mut self, path: &[u8]) {
        self.done.skipped_total += 1;
        if self.done.skipped.len() < SKIPPED_MAX {
            self.done.skipped.push(told_path(path).0);
        }
    }

    /// Gives an inode a name.
    fn name(&mut self, ino: Ino, parent: Ino, name: &FileName) -> Result<(), Errno> {
        let request = MetaRequest::TrashRestore {
            ino,
            parent,
            name: name.clone(),
        };
        carry_out(request, self.trash.engine, self.pipeline)?;
        self.done.restored += 1;
        (self.tell)(parent, ino);
        Ok(())
    }

    /// Why an inode has not got a path.
    fn not_named(&self, errno: Errno, path: &[u8]) -> CommandFailure {
        let path = shown(path);
        match errno {
            Errno::Exists => CommandFailure::new(
                format!("{path} exists: another file or directory has the name by now"),
                "move that one away first, or name another place with --to PATH",
            ),
            Errno::NoData | Errno::Stale => CommandFailure::new(
                format!("{path} is not in the trash any more"),
                "see `lockstep trash list`",
            ),
            Errno::NoEntry | Errno::NotDirectory => CommandFailure::new(
                format!("the directory above {path} was deleted meanwhile"),
                "give the command again",
            ),
            Errno::NotPermitted => CommandFailure::new(
                format!("the directory above {path} is immutable (`chattr +i`)"),
                "take the flag off, or name another place with --to PATH",
            ),
            _ => self.trash.refused(errno),
        }
    }
}

/// The names of a path.
fn names_of(path: &[u8]) -> Result<Vec<FileName>, CommandFailure> {
    let parts = path.split(|byte| *byte == b'/');
    let parts = parts.filter(|part| !part.is_empty() && *part != b".");
    let names: Result<_, _> = parts.map(FileName::new).collect();
    names.map_err(|_| {
        CommandFailure::new(
            format!("{} is no path below the mount directory", shown(path)),
            "name a path as `lockstep trash list` shows it, without `..`",
        )
    })
}

fn shown(path: &[u8]) -> String {
    format!("{:?}", told_path(path).0)
}
