//! A program on the primary's mount that creates, writes, syncs and reads one file. Each write fills
//! the file with one mark.

use lockstep_sim::history::{Answer, Outcome};
use lockstep_sim::op::{Mark, Op, WriteOp};
use lockstep_sim::scenario::Mount;
use lockstep_types::{Errno, FileName, Ino, MetaRequest, NodeKind};

/// The name of the file.
pub const FILE: &str = "file";
/// The length of each write, and of the file.
const LENGTH: u64 = 5;

// All odd: for an even mark the simulated mount says that more requests wait.
pub const FIRST: Mark = Mark::new(1).unwrap();
pub const OTHER: Mark = Mark::new(3).unwrap();
pub const THIRD: Mark = Mark::new(5).unwrap();
pub const LATER: Mark = Mark::new(7).unwrap();
pub const WRONG: Mark = Mark::new(9).unwrap();

pub fn name(text: &str) -> FileName {
    FileName::new(text.as_bytes()).unwrap()
}

pub fn file(mount: &Mount) -> Result<Ino, Errno> {
    let (parent, name) = (Ino::ROOT, name(FILE));
    match mount.submit(&Op::Lookup { parent, name })? {
        Answer::Attr(attr) => Ok(attr.ino),
        other => panic!("{other:?}"),
    }
}

fn done(outcome: Outcome) -> Result<(), Errno> {
    outcome.map(drop)
}

pub fn create(mount: &Mount, text: &str) -> Result<(), Errno> {
    done(mount.submit(&creation(text, mount.next_ino()?)))
}

/// The creation of a file.
pub fn creation(text: &str, ino: Ino) -> Op {
    Op::Change(
        MetaRequest::creation(Ino::ROOT, name(text), ino, NodeKind::File)
            .mode(0o644)
            .request(),
    )
}

/// Whether a name is there.
pub fn exists(mount: &Mount, text: &str) -> Result<bool, Errno> {
    let (parent, name) = (Ino::ROOT, name(text));
    match mount.submit(&Op::Lookup { parent, name }) {
        Ok(_) => Ok(true),
        Err(Errno::NoEntry) => Ok(false),
        Err(error) => Err(error),
    }
}

pub fn write(mount: &Mount, mark: Mark, durable: bool) -> Result<(), Errno> {
    done(mount.submit(&Op::Write(WriteOp {
        ino: file(mount)?,
        mark,
        offset: 0,
        length: LENGTH,
        durable,
    })))
}

pub fn write_at(mount: &Mount, mark: Mark, offset: u64, length: u64) -> Result<(), Errno> {
    done(mount.submit(&Op::Write(WriteOp {
        ino: file(mount)?,
        mark,
        offset,
        length,
        durable: false,
    })))
}

pub fn sync(mount: &Mount) -> Result<(), Errno> {
    done(mount.submit(&Op::Sync { ino: file(mount)? }))
}

/// Returns the mark of the file's content, or `None` if the content is of no single write.
pub fn read(mount: &Mount) -> Result<Option<Mark>, Errno> {
    let read = mount.submit(&Op::Read {
        ino: file(mount)?,
        offset: 0,
        length: LENGTH,
    })?;
    match read {
        Answer::Data { runs, length } => {
            let [run] = *runs else { return Ok(None) };
            Ok(run.mark.filter(|_| length == LENGTH))
        }
        other => panic!("{other:?}"),
    }
}
