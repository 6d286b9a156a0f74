//! The choice of a client's next operation. The mix decides the kind. The expected state decides
//! the rest.

use std::collections::BTreeMap;

use lockstep_types::limits::BLOCK_BYTES;
use lockstep_types::{
    AllocateMode, FileName, Ino, MetaRequest, NodeKind, RenameMode, Timestamp, XattrMode,
};

use super::client_model::{ClientModel, Known, Place};
use super::options::Options;
use crate::op::{Mark, Op, WriteOp};
use crate::random::Random;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Names of extended attributes.
const XATTRS: [&[u8]; 3] = [b"user.a", b"user.b", b"user.count"];
/// Permission bits of requests. The set-id bits are cleared when the owner changes.
const MODES: [u32; 6] = [0o600, 0o644, 0o755, 0o700, 0o444, 0o4755];

/// The frequency of a kind of operation, and the function that makes such an operation.
type Kind<'a> = (u64, fn(&mut RequestChoice<'a>) -> Op);

/// All inputs of the choice of one operation.
pub(super) struct RequestChoice<'a> {
    pub options: &'a Options,
    pub random: &'a mut Random,
    pub model: &'a mut ClientModel,
    pub marks: &'a mut BTreeMap<Ino, u8>,
    pub client: u32,
    pub spare: Ino,
}

impl<'a> RequestChoice<'a> {
    /// Chooses the operation.
    pub fn make(mut self) -> Op {
        if let Some(place) = self.model.taken.take() {
            return lookup(place);
        }
        let (own, shared) = (name(&format!("c{}", self.client)), name("shared"));
        for home in [own, shared] {
            if self.model.at(Ino::ROOT, &home).is_none() {
                return self.create((Ino::ROOT, home), NodeKind::Directory);
            }
        }
        let mix = self.options.mix;
        let kinds: [Kind<'a>; 11] = [
            (mix.write, Self::write),
            (mix.read, Self::read),
            (mix.sync, Self::sync),
            (mix.space, Self::space),
            (mix.make, Self::new_node),
            (mix.link, Self::link),
            (mix.remove, Self::remove),
            (mix.rename, Self::rename),
            (mix.attributes, Self::attributes),
            (mix.xattrs, Self::xattr),
            (mix.look, Self::look),
        ];
        let sum: u64 = kinds.iter().map(|kind| kind.0).sum();
        let mut left = self.random.below(sum.max(1));
        for (share, choose) in kinds {
            match left.checked_sub(share) {
                Some(rest) => left = rest,
                None => return choose(&mut self),
            }
        }
        self.look()
    }

    /// Chooses the directory to work in: mostly the shared directory or the client's own, sometimes
    /// a directory below it.
    fn directory(&mut self) -> Ino {
        let home = if self.random.percent(self.options.shared_percent) {
            name("shared")
        } else {
            name(&format!("c{}", self.client))
        };
        let Some(home) = self.model.at(Ino::ROOT, &home) else {
            return Ino::ROOT;
        };
        let below = self
            .known(|(parent, _), known| *parent == home.ino && known.kind == NodeKind::Directory);
        match below {
            Some((_, below)) if self.random.percent(25) => below.ino,
            _ => home.ino,
        }
    }

    /// Chooses a place in a directory: one of the names used in it, whether taken or free.
    fn place(&mut self) -> Place {
        let directory = self.directory();
        let shared = self.model.at(Ino::ROOT, &name("shared"));
        let bound = if shared.is_some_and(|shared| shared.ino == directory) {
            self.options.shared_names
        } else {
            self.options.own_names
        };
        let number = self.random.below(bound.max(1));
        (directory, name(&format!("n{number}")))
    }

    /// Chooses a place with an expected inode that fits. Returns `None` if nothing fits.
    fn known(&mut self, fits: impl Fn(&Place, &Known) -> bool) -> Option<(Place, Known)> {
        let fitting: Vec<_> = self
            .model
            .places
            .iter()
            .filter(|(place, known)| fits(place, known))
            .collect();
        if fitting.is_empty() {
            return None;
        }
        let (place, known) = self.random.pick(&fitting);
        Some(((*place).clone(), **known))
    }

    /// Chooses a regular file. The file is in the shared directory as often as the options say.
    fn file(&mut self) -> Option<Known> {
        let directory = self.directory();
        let is_file = |known: &Known| known.kind == NodeKind::File;
        let here = self.known(|(parent, _), known| *parent == directory && is_file(known));
        let found = here.or_else(|| self.known(|_, known| is_file(known)));
        found.map(|(_, known)| known)
    }

    /// Chooses any inode below the root.
    fn inode(&mut self) -> Option<Ino> {
        let directory = self.directory();
        let here = self.known(|(parent, _), _| *parent == directory);
        here.map(|(_, known)| known.ino)
    }

    /// Chooses an offset and a length. In half of the cases both are whole blocks.
    fn range(&mut self, length_max: u64) -> (u64, u64) {
        let bound = self.options.file_bytes_max;
        let (offset, length) = if self.random.percent(50) {
            let blocks = (length_max / BLOCK).max(1);
            let length = (1 + self.random.below(blocks)) * BLOCK;
            (self.random.below(bound.div_ceil(BLOCK)) * BLOCK, length)
        } else {
            let length = 1 + self.random.below(length_max.max(1));
            (self.random.below(bound), length)
        };
        (offset, length.min(length_max).min(bound - offset).max(1))
    }

    fn write(&mut self) -> Op {
        let Some(file) = self.file() else {
            return self.make_file();
        };
        let Some(mark) = self.next_mark(file.ino) else {
            return self.read();
        };
        let (mut offset, length) = self.range(self.options.write_bytes_max);
        if self.random.percent(25) {
            let gap = if self.random.percent(50) {
                0
            } else {
                3 * BLOCK
            };
            offset = file.size + self.random.below(gap + 1);
        }
        offset = offset.min(self.options.file_bytes_max - length);
        Op::Write(WriteOp {
            ino: file.ino,
            mark,
            offset,
            length,
            durable: self.random.percent(self.options.durable_percent),
        })
    }

    /// Returns a mark that no write of the file has had. Returns `None` when all marks are used up.
    fn next_mark(&mut self, ino: Ino) -> Option<Mark> {
        let last = self.marks.entry(ino).or_insert(0);
        let next = last.checked_add(1)?;
        *last = next;
        Mark::new(next)
    }

    fn read(&mut self) -> Op {
        let Some(file) = self.file() else {
            return self.look();
        };
        let (offset, length) = if self.random.percent(30) {
            (0, self.options.file_bytes_max)
        } else {
            self.range(self.options.write_bytes_max)
        };
        Op::Read {
            ino: file.ino,
            offset,
            length,
        }
    }

    fn sync(&mut self) -> Op {
        let known = self.file().map(|file| file.ino);
        let ino = known.unwrap_or_else(|| self.directory());
        Op::Sync { ino }
    }

    fn space(&mut self) -> Op {
        let Some(Known { ino, .. }) = self.file() else {
            return self.make_file();
        };
        let (offset, length) = self.range(self.options.write_bytes_max);
        let request = if self.random.percent(50) {
            MetaRequest::Truncate {
                ino,
                size: if self.random.percent(20) { 0 } else { offset },
                drop_set_id: false,
            }
        } else {
            MetaRequest::Allocate {
                ino,
                offset,
                length,
                mode: *self.random.pick(&[
                    AllocateMode::Allocate,
                    AllocateMode::AllocateKeepSize,
                    AllocateMode::PunchHole,
                    AllocateMode::ZeroRange,
                    AllocateMode::ZeroRangeKeepSize,
                ]),
            }
        };
        Op::Change(request)
    }

    fn make_file(&mut self) -> Op {
        let place = self.place();
        self.create(place, NodeKind::File)
    }

    fn new_node(&mut self) -> Op {
        let place = self.place();
        let kind = match self.random.below(10) {
            0..6 => NodeKind::File,
            6..8 => NodeKind::Directory,
            8 => NodeKind::Symlink,
            _ => *self.random.pick(&[NodeKind::Fifo, NodeKind::CharDevice]),
        };
        self.create(place, kind)
    }

    fn create(&mut self, (parent, name): Place, kind: NodeKind) -> Op {
        let is_device = kind == NodeKind::CharDevice;
        let target = match kind {
            NodeKind::Symlink => format!("to/{}", self.spare).into_bytes(),
            _ => Vec::new(),
        };
        let creation = MetaRequest::creation(parent, name, self.spare, kind)
            .mode(*self.random.pick(&MODES))
            .umask(0o022)
            .owner(self.client, self.client)
            .rdev(if is_device { 0x0103 } else { 0 })
            .target(target);
        Op::Change(creation.request())
    }

    fn link(&mut self) -> Op {
        let (parent, name) = self.place();
        match self.file() {
            Some(Known { ino, .. }) => Op::Change(MetaRequest::Link { ino, parent, name }),
            None => self.make_file(),
        }
    }

    fn remove(&mut self) -> Op {
        let (parent, name) = self.place();
        let known = self.model.at(parent, &name);
        let is_directory = known.is_some_and(|known| known.kind == NodeKind::Directory);
        // In a few cases, use the wrong operation, which the file system must refuse.
        let wrong = self.random.percent(5);
        Op::Change(if is_directory == wrong {
            MetaRequest::Unlink { parent, name }
        } else {
            MetaRequest::Rmdir { parent, name }
        })
    }

    fn rename(&mut self) -> Op {
        let (parent, name) = self.place();
        let (new_parent, new_name) = self.place();
        let mode = match self.random.below(10) {
            0..6 => RenameMode::Replace,
            6..8 => RenameMode::NoReplace,
            _ => RenameMode::Exchange,
        };
        Op::Change(MetaRequest::Rename {
            parent,
            name,
            new_parent,
            new_name,
            mode,
        })
    }

    fn attributes(&mut self) -> Op {
        let Some(ino) = self.inode() else {
            return self.make_file();
        };
        let what = self.random.below(3);
        let time = Timestamp {
            secs: 1_000_000 + i64::from(self.client),
            nanos: 0,
        };
        let mode = *self.random.pick(&MODES);
        let owner = u32::try_from(self.random.below(5)).unwrap_or(0);
        Op::Change(MetaRequest::SetAttr {
            ino,
            mode: (what == 0).then_some(mode),
            uid: (what == 1).then_some(owner),
            gid: (what == 1).then_some(owner),
            atime: (what == 2).then_some(time),
            mtime: (what == 2).then_some(time),
        })
    }

    fn xattr(&mut self) -> Op {
        let Some(ino) = self.inode() else {
            return self.make_file();
        };
        let name = self.random.pick(&XATTRS).to_vec();
        match self.random.below(10) {
            0..2 => Op::Change(MetaRequest::RemoveXattr { ino, name }),
            2..4 => Op::GetXattr { ino, name },
            _ => Op::Change(MetaRequest::SetXattr {
                ino,
                name,
                value: self.random.any().to_string().into_bytes(),
                mode: *self.random.pick(&[
                    XattrMode::Any,
                    XattrMode::Any,
                    XattrMode::Create,
                    XattrMode::Replace,
                ]),
            }),
        }
    }

    fn look(&mut self) -> Op {
        let what = self.random.below(10);
        match self.known(|_, _| true) {
            Some((_, known)) if what < 4 => Op::GetAttr { ino: known.ino },
            Some((_, known)) if what == 4 && known.kind == NodeKind::Symlink => {
                Op::ReadLink { ino: known.ino }
            }
            _ if what < 6 => Op::ReadDir {
                directory: self.directory(),
            },
            _ => lookup(self.place()),
        }
    }
}

fn lookup((parent, name): Place) -> Op {
    Op::Lookup { parent, name }
}

/// Makes a name of plain letters and digits.
fn name(text: &str) -> FileName {
    FileName::new(text.as_bytes())
        .unwrap_or_else(|_| unreachable!("letters and digits make a name"))
}
