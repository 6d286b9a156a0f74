//! Listings of directories for the kernel: names, or names with attributes.
//!
//! `.` has the cookie 1 and `..` the cookie 2; all other cookies come from the service. The service lists the
//! newest entry first, so a listing never meets an entry that was made after the listing had begun. A listing
//! needs no state: directories are not opened.

use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;

use fuser::{Generation, INodeNo, ReplyDirectory, ReplyDirectoryPlus};
use lockstep_driver::client::{DirEntry, FileService};
use lockstep_types::{Attr, Errno, Ino};

use super::attributes::{file_attr, file_type, ino};
use super::reply::OF_PRESENT;
use crate::admission::context::Context;
use crate::admission::refuse::Refuse;

const DOT: u64 = 1;
const DOT_DOT: u64 = 2;

/// Entries in one batch of a listing with attributes. The attributes are read after the batch, so that no
/// lock of the directory is held meanwhile. A reply of the usual 32 KiB holds about 190 entries.
const BATCH: usize = 96;

/// Breaks off the listing when the reply is full.
fn until_full(full: bool) -> ControlFlow<()> {
    if full {
        ControlFlow::Break(())
    } else {
        ControlFlow::Continue(())
    }
}

/// The service's position for a position of the kernel.
fn service_cookie(offset: u64) -> u64 {
    if offset <= DOT_DOT { 0 } else { offset }
}

/// Answers with names, starting after `offset`.
pub(crate) fn names(
    service: &dyn FileService,
    node: INodeNo,
    offset: u64,
    mut reply: ReplyDirectory,
) {
    let filled = ino(node).and_then(|directory| fill(service, directory, offset, &mut reply));
    match filled {
        Ok(()) => reply.ok(),
        Err(errno) => reply.refuse(errno),
    }
}

/// Answers with names and attributes, starting after `offset`.
pub(crate) fn names_with_attributes(
    context: &Context,
    node: INodeNo,
    offset: u64,
    mut reply: ReplyDirectoryPlus,
) {
    let filled = ino(node).and_then(|directory| fill_plus(context, directory, offset, &mut reply));
    match filled {
        Ok(()) => reply.ok(),
        Err(errno) => reply.refuse(errno),
    }
}

fn fill(
    service: &dyn FileService,
    directory: Ino,
    offset: u64,
    reply: &mut ReplyDirectory,
) -> Result<(), Errno> {
    for (attr, cookie, name) in dots(service, directory, offset)? {
        let full = reply.add(INodeNo(attr.ino.get()), cookie, file_type(attr.kind), name);
        if full {
            return Ok(());
        }
    }
    let mut add = |entry: DirEntry| {
        let name = OsStr::from_bytes(entry.name.as_bytes());
        let node = INodeNo(entry.ino.get());
        until_full(reply.add(node, entry.cookie, file_type(entry.kind), name))
    };
    service.readdir(directory, service_cookie(offset), &mut add)
}

fn fill_plus(
    context: &Context,
    directory: Ino,
    offset: u64,
    reply: &mut ReplyDirectoryPlus,
) -> Result<(), Errno> {
    let dots = dots(&*context.service, directory, offset)?;
    let mut reply = PlusReply::new(context, directory, reply);
    for (attr, cookie, name) in dots {
        // The kernel counts no reference for `.` and `..`.
        if reply
            .add(&attr, OF_PRESENT, cookie, OsStr::new(name))
            .is_break()
        {
            return Ok(());
        }
    }
    let mut after = service_cookie(offset);
    loop {
        let batch = fetch(&*context.service, directory, after)?;
        for entry in &batch {
            if reply.plus(entry)?.is_break() {
                return Ok(());
            }
        }
        match batch.last() {
            Some(last) if batch.len() == BATCH => after = last.cookie,
            _ => return Ok(()),
        }
    }
}

/// Returns `.` and `..`, if they come after `offset`.
fn dots(
    service: &dyn FileService,
    directory: Ino,
    offset: u64,
) -> Result<impl Iterator<Item = (Attr, u64, &'static str)>, Errno> {
    let dot = (offset < DOT).then(|| service.getattr(directory));
    let dot_dot = (offset < DOT_DOT).then(|| service.lookup_parent(directory));
    let dot = dot.transpose()?.map(|attr| (attr, DOT, "."));
    let dot_dot = dot_dot.transpose()?.map(|attr| (attr, DOT_DOT, ".."));
    Ok(dot.into_iter().chain(dot_dot))
}

fn fetch(service: &dyn FileService, directory: Ino, after: u64) -> Result<Vec<DirEntry>, Errno> {
    let mut batch = Vec::with_capacity(BATCH);
    let mut keep = |entry| {
        batch.push(entry);
        until_full(batch.len() == BATCH)
    };
    service.readdir(directory, after, &mut keep)?;
    Ok(batch)
}

/// A reply with names and attributes, while it is being filled.
struct PlusReply<'a> {
    context: &'a Context,
    directory: Ino,
    reply: &'a mut ReplyDirectoryPlus,
    is_empty: bool,
}

impl<'a> PlusReply<'a> {
    fn new(context: &'a Context, directory: Ino, reply: &'a mut ReplyDirectoryPlus) -> Self {
        Self {
            context,
            directory,
            reply,
            is_empty: true,
        }
    }

    fn add(
        &mut self,
        attr: &Attr,
        generation: Generation,
        cookie: u64,
        name: &OsStr,
    ) -> ControlFlow<()> {
        let node = INodeNo(attr.ino.get());
        let attr = file_attr(attr);
        let lifetime = self
            .context
            .lifetimes
            .of_new_inode_in(INodeNo(self.directory.get()));
        let added = until_full(
            self.reply
                .add(node, cookie, name, &lifetime, &attr, generation),
        );
        self.is_empty &= added.is_break();
        added
    }

    /// Adds one entry, for which the kernel counts a reference. A removed entry is left out. An entry whose
    /// attributes cannot be read must not be left out, or a program would believe that it was removed: the reply
    /// ends before it. The kernel's next request begins with that entry and gets the error, or asks for names only.
    fn plus(&mut self, entry: &DirEntry) -> Result<ControlFlow<()>, Errno> {
        let service = &self.context.service;
        let attr = service.getattr(entry.ino);
        let found = attr.and_then(|attr| Ok((attr, service.generation(attr.ino)?)));
        let (attr, generation) = match found {
            Ok(found) => found,
            Err(Errno::Stale | Errno::NoEntry) => return Ok(ControlFlow::Continue(())),
            Err(_) if !self.is_empty => return Ok(ControlFlow::Break(())),
            Err(errno) => return Err(errno),
        };
        self.context.remember(attr.ino);
        let name = OsStr::from_bytes(entry.name.as_bytes());
        let added = self.add(&attr, Generation(generation), entry.cookie, name);
        if added.is_break() {
            self.context.forget(attr.ino, 1);
        }
        Ok(added)
    }
}
