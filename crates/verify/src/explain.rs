//! Names the differences of an inode with different digests.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::time::Duration;

use lockstep_fs::keys;
use lockstep_fs::record::{self, Body, Inode};
use lockstep_repl::core::LockSet;
use lockstep_repl::lock::{LockKey, LockMode};
use lockstep_repl::message::{Request, Response};
use lockstep_resync::pieces::Piece;
use lockstep_resync::{PeerError, ResyncError};
use lockstep_types::limits::BLOCK_BYTES;
use lockstep_types::{Hash128, Ino, NodeKind};

use crate::compare::Comparer;
use crate::digest::{self, CONTENT_BYTES_MAX};
use crate::report::DifferenceKind;
use crate::side::Side;

/// How often an inode that only one node has is looked for. An operation that
/// creates or frees an inode is carried out on the secondary first, and its locks are not on the inode.
const LOOKS: u32 = 5;
/// Time between two looks.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(20);

/// Result of a second look at an inode.
enum SecondLook {
    /// Equal, or gone on both nodes.
    Same,
    /// Only one node has the inode.
    OneSided(Side),
    /// Both nodes have the inode, and the differences were reported.
    Explained,
}

impl Comparer<'_> {
    /// Reports the differences of inodes that still differ on a second look.
    pub(crate) fn explain(&mut self, suspects: BTreeSet<Ino>) -> Result<(), ResyncError> {
        let mut suspects: Vec<Ino> = suspects.into_iter().collect();
        for number in 1..=LOOKS {
            let last = number == LOOKS || self.report.is_full();
            let mut one_sided = Vec::new();
            for ino in suspects {
                match self.look_again(ino)? {
                    SecondLook::OneSided(only) if last => {
                        self.report.add(ino, DifferenceKind::Inode { only });
                    }
                    SecondLook::OneSided(_) => one_sided.push(ino),
                    SecondLook::Same | SecondLook::Explained => {}
                }
            }
            if one_sided.is_empty() {
                break;
            }
            suspects = one_sided;
            self.locks.pause(LOOK_AGAIN_AFTER);
        }
        Ok(())
    }

    fn look_again(&mut self, ino: Ino) -> Result<SecondLook, ResyncError> {
        let mut look = SecondLook::Same;
        let locks = LockSet::from_slice(&[(LockKey::File(ino), LockMode::Exclusive)]);
        self.locks.with_locks(locks, &mut || {
            look = self.look_locked(ino)?;
            Ok(())
        })?;
        Ok(look)
    }

    fn look_locked(&mut self, ino: Ino) -> Result<SecondLook, ResyncError> {
        let here = digest::digest(self.view, ino)?;
        // The first look has noted what the sums say.
        self.take_word();
        let (theirs, _) =
            self.ask_digests(ino.get(), ino.get().saturating_add(1), self.source())?;
        let there = theirs.list.first().map(|(_, digest)| *digest);
        Ok(match (here, there) {
            (Some(_), None) => SecondLook::OneSided(Side::Here),
            (None, Some(_)) => SecondLook::OneSided(Side::There),
            (here, there) if here == there => SecondLook::Same,
            _ => {
                self.explain_locked(ino)?;
                SecondLook::Explained
            }
        })
    }

    fn explain_locked(&mut self, ino: Ino) -> Result<(), ResyncError> {
        if self.report.is_full() {
            self.report.total += 1;
            return Ok(());
        }
        let before = self.report.total;
        self.explain_parts(ino)?;
        if self.report.total == before {
            self.report.add(ino, DifferenceKind::Digest);
        }
        Ok(())
    }

    fn explain_parts(&mut self, ino: Ino) -> Result<(), ResyncError> {
        self.compare_inode(ino)?;
        if !self.compare_table(ino, keys::ENTRIES, "directory entry")? {
            self.compare_table(ino, keys::COOKIES, "place in the directory")?;
        }
        self.compare_table(ino, keys::XATTRS, "extended attribute")?;
        self.compare_table(ino, keys::ORPHANS, "mark of having no name")?;
        self.compare_short(ino)
    }

    fn compare_inode(&mut self, ino: Ino) -> Result<(), ResyncError> {
        let what = "look at an inode";
        let Response::Inspected {
            record,
            content_bytes,
        } = self.peer.ask(Request::Inspect { ino }, &[])?
        else {
            return Err(PeerError::Unexpected { what }.into());
        };
        let there: Option<Inode> = record.as_deref().and_then(record::decode);
        let (Some(here), Some(there)) = (self.view.inode(ino)?, there) else {
            return Err(PeerError::Unexpected { what }.into());
        };
        for (attribute, there) in attributes(&here).into_iter().zip(attributes(&there)) {
            self.compare_attribute(ino, attribute, there.1);
        }
        let ours = self.view.content_bytes(ino)?;
        if here.kind() == NodeKind::File && ours != content_bytes {
            let what = DifferenceKind::ContentLength {
                here: ours,
                there: content_bytes,
            };
            self.report.add(ino, what);
        }
        Ok(())
    }

    fn compare_attribute(&mut self, ino: Ino, (name, here): (&'static str, String), there: String) {
        if here != there {
            self.report
                .add(ino, DifferenceKind::Attribute { name, here, there });
        }
    }

    /// Compares the records of an inode in one table; returns whether a record differs.
    fn compare_table(
        &mut self,
        ino: Ino,
        table: u8,
        kind: &'static str,
    ) -> Result<bool, ResyncError> {
        let before = self.report.total;
        let mut after = Vec::new();
        loop {
            let (theirs, last) = self.ask_records(table, ino, &after)?;
            let until = theirs.keys().next_back().filter(|_| !last).cloned();
            let ours = self.our_records(table, ino, &after, until.as_deref())?;
            for (key, only) in unequal(&ours, &theirs) {
                let name = name_of(table, &key);
                self.report
                    .add(ino, DifferenceKind::Record { kind, name, only });
            }
            match until {
                Some(until) => after = until,
                None => return Ok(self.report.total > before),
            }
        }
    }

    fn ask_records(
        &self,
        table: u8,
        ino: Ino,
        after: &[u8],
    ) -> Result<(BTreeMap<Vec<u8>, Hash128>, bool), ResyncError> {
        let request = Request::Records {
            table,
            ino,
            after: after.to_vec(),
        };
        match self.peer.ask(request, &[])? {
            // Each answer but the last must bring a further key: otherwise the requests would never end.
            Response::Records { records, last }
                if last
                    || records
                        .last()
                        .is_some_and(|(key, _)| key.as_slice() > after) =>
            {
                Ok((records.into_iter().collect(), last))
            }
            _ => Err(PeerError::Unexpected {
                what: "list records",
            }
            .into()),
        }
    }

    fn our_records(
        &self,
        table: u8,
        ino: Ino,
        after: &[u8],
        until: Option<&[u8]>,
    ) -> Result<BTreeMap<Vec<u8>, Hash128>, ResyncError> {
        let mut records = BTreeMap::new();
        self.view
            .each_record(table, ino, after, &mut |key, value| {
                if until.is_some_and(|until| key > until) {
                    return ControlFlow::Break(());
                }
                records.insert(key.to_vec(), Hash128::of(value));
                ControlFlow::Continue(())
            })?;
        Ok(records)
    }

    /// Compares content that is short enough for the digest.
    fn compare_short(&mut self, ino: Ino) -> Result<(), ResyncError> {
        let size = self.view.file_times(ino)?.map_or(0, |facts| facts.size);
        if size == 0 || size > CONTENT_BYTES_MAX {
            return Ok(());
        }
        if self.deep.is_some() {
            self.suspects.done.insert(ino);
            return self.attribute(ino, &(0..size));
        }
        let length = usize::try_from(size).unwrap_or(0);
        let mut data = vec![0; length];
        self.view.read_raw(ino, 0, &mut data)?;
        data.resize(length.next_multiple_of(BLOCK_BYTES), 0);
        let piece = Piece {
            offset: 0,
            length: size,
            hole: false,
        };
        self.compare_piece(ino, &piece, &data)
    }
}

/// The attributes of an inode by name, in the same order for every inode.
fn attributes(inode: &Inode) -> Vec<(&'static str, String)> {
    let (parent, next_cookie, entries) = match &inode.body {
        Body::Directory {
            parent,
            next_cookie,
            entries,
        } => (parent.get(), *next_cookie, *entries),
        _ => (0, 0, 0),
    };
    let target = match &inode.body {
        Body::Symlink { target } => target.escape_ascii().to_string(),
        _ => String::new(),
    };
    let place = inode.named_at.map_or_else(String::new, |at| {
        format!("cookie {} in {}", at.cookie, at.directory)
    });
    let attr = inode.attr(Ino::ROOT);
    vec![
        ("type", format!("{:?}", inode.kind())),
        ("mode", format!("{:o}", inode.bits.mode)),
        ("flags", inode.bits.flags.to_string()),
        ("owner", inode.uid.to_string()),
        ("group", inode.gid.to_string()),
        ("link count", inode.nlink.to_string()),
        ("size", attr.size.to_string()),
        ("device number", attr.rdev.to_string()),
        ("atime", inode.atime.to_string()),
        ("mtime", inode.mtime.to_string()),
        ("ctime", inode.ctime.to_string()),
        ("last operation", inode.osn.to_string()),
        ("parent", parent.to_string()),
        ("next cookie", next_cookie.to_string()),
        ("number of entries", entries.to_string()),
        ("target", target),
        ("place of the last name", place),
    ]
}

/// Keys with different hashes, and keys that only one node has.
fn unequal(
    ours: &BTreeMap<Vec<u8>, Hash128>,
    theirs: &BTreeMap<Vec<u8>, Hash128>,
) -> BTreeMap<Vec<u8>, Option<Side>> {
    let mut unequal = BTreeMap::new();
    for (key, hash) in ours {
        match theirs.get(key) {
            Some(there) if there == hash => {}
            Some(_) => drop(unequal.insert(key.clone(), None)),
            None => drop(unequal.insert(key.clone(), Some(Side::Here))),
        }
    }
    for key in theirs.keys().filter(|key| !ours.contains_key(*key)) {
        unequal.insert(key.clone(), Some(Side::There));
    }
    unequal
}

/// The name of a record for an operator.
fn name_of(table: u8, key: &[u8]) -> String {
    match (table, <[u8; 8]>::try_from(key)) {
        (keys::COOKIES, Ok(cookie)) => u64::from_be_bytes(cookie).to_string(),
        _ => String::from_utf8_lossy(key).into_owned(),
    }
}
