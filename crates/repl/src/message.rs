//! The messages of the data path, as they travel in the headers of frames.
//!
//! Every message carries the watermark of finished writes, so that the ack of the ack costs no message of
//! its own. The bytes of a write travel as the payload of the frame, which the frame's one checksum covers.
//!
//! Invariant: the order of fields and variants is the wire format. A change of the order needs a new
//! [`PROTOCOL_VERSION`]; names are free.

pub use lockstep_delta::{BarrierMessage, BarrierName, Interval, MarkAccount, MarkPage, RegionRun};
use lockstep_paw_saw::InFlightEntry;
use lockstep_roles::RoleOffer;
use lockstep_sums::SumSecret;
use lockstep_types::backing::Room;
use lockstep_types::{
    DatastoreUuid, Errno, Generation, Hash128, Ino, MetaOp, Osn, ResyncStatus, SnapshotId, StoreId,
    SyncId, SyncStanding, Timestamp, WriteVerifier,
};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::checked::{BlockWord, SumsWord};
pub use crate::comparison::{ComparePurpose, ContentSource};
pub use crate::resync_scope::ResyncScope;

/// Version of this vocabulary. Nodes of different versions do not talk.
pub const PROTOCOL_VERSION: u32 = 20;

/// Content of a frame's header.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Envelope {
    /// The datastore; the receiver refuses a message for another datastore.
    pub datastore: DatastoreUuid,
    /// The sender's generation; the receiver refuses any generation but its own. The primary checks the
    /// greeting only: all messages of a connection come from the same process.
    pub generation: Generation,
    /// Every write below this OSN is done on both nodes (the ack of the ack, paper section 4.2).
    /// Zero from a secondary.
    pub done_below: Osn,
    /// The message itself.
    pub message: Message,
}

/// One message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Message {
    /// First message of the primary on a connection.
    Hello(Hello),
    /// The secondary's answer.
    Welcome(Welcome),
    /// The sender does not want the connection and closes it after this message.
    Refuse {
        /// For the operator: cause and cure.
        reason: String,
    },
    /// A write; the payload holds the bytes.
    Write(WriteMessage),
    /// The outcome of a write.
    WriteAck {
        /// The write.
        osn: Osn,
        /// The error, if the write failed.
        failed: Option<Errno>,
    },
    /// A metadata operation to commit and execute.
    Meta {
        /// The operation.
        op: MetaOp,
        /// The previous metadata operation. If the secondary has not committed that operation yet, the
        /// operations came out of order, and the connection is given up (rule P2).
        previous: Osn,
        /// Answer only when the operation is on stable storage.
        durable: bool,
    },
    /// The outcome of a metadata operation.
    MetaAck {
        /// The operation.
        osn: Osn,
        /// Whether the operation was committed; the error, if it was rolled back.
        outcome: Result<(), Errno>,
    },
    /// Make a file, and the names that lead to it, durable.
    Sync {
        /// Number of the request, counted by the primary.
        id: u64,
        /// The file.
        ino: Ino,
    },
    /// The outcome of a sync.
    SyncAck {
        /// Number of the request.
        id: u64,
        /// The error, if the sync failed.
        failed: Option<Errno>,
    },
    /// Asks for a sign of life. Sent when there is nothing else to send.
    Ping {
        /// Time for which the sender's disk has not answered, in milliseconds (rule R12).
        disk_silent_ms: u64,
        /// Progress of the resync of the moment, for the operator of the secondary.
        resync: Option<ResyncStatus>,
    },
    /// The answer to [`Message::Ping`], with the room for clients on the sender's disk.
    Pong {
        /// The room (rule P20).
        room: Room,
        /// Time for which the sender's disk has not answered, in milliseconds (rule R12).
        disk_silent_ms: u64,
    },
    /// A request outside the path of client operations: recovery, resync, verify.
    Request {
        /// Number of the request, counted by the primary.
        id: u64,
        /// The request; the payload holds the bytes, if any.
        request: Request,
    },
    /// The answer to a request.
    Response {
        /// Number of the request.
        id: u64,
        /// The answer, or the reason why there is none.
        response: Result<Response, RequestFailure>,
    },
    /// A sign of life. The primary sends it while a [`Message::Ping`] is on its way; the secondary sends it in answer,
    /// or while a frame takes long to arrive. Unlike [`Message::Pong`] it does not say that earlier messages have
    /// arrived.
    Alive,
    /// Instead of [`Message::Hello`] or [`Message::Welcome`]: the disk of the sender's store has failed. The sender
    /// promises nothing any more and is not in sync (rule P16). The sender closes the connection.
    Poisoned {
        /// For the operator: the failure with its time, and the cure.
        reason: String,
    },
    /// The role exchange of two nodes, before [`Message::Hello`]: the sender offers its record and its copy. Each offer is
    /// answered by the offer of the receiver.
    RoleOffer(RoleOffer),
    /// The secondary stops: the primary need not wait for it (rule R1). The primary closes the connection.
    Stopping,
    /// A word about a barrier, of either node. The word belongs to no connection: it counts whenever it arrives, also twice
    /// (docs/protocol/delta.md).
    Barrier(BarrierMessage),
    /// The primary is about to open this interval, or has it open: what comes later over the connection may belong to it (rule P26).
    Turn(Interval),
    /// The primary is about to change bytes of these regions, and waits for the answer (rule P26).
    Announce {
        /// Number of the announcement, counted by the primary.
        id: u64,
        /// The regions.
        runs: Vec<RegionRun>,
    },
    /// The secondary has marked the regions of an announcement.
    Announced {
        /// Number of the announcement.
        id: u64,
    },
}

impl Message {
    /// The place in its file of the first byte of the payload; zero for a payload that is not bytes of a file.
    pub const fn payload_offset(&self) -> u64 {
        match self {
            Self::Write(write) => write.offset,
            Self::Request {
                request: Request::RecoverRange { offset, .. } | Request::HealBlocks { offset, .. },
                ..
            } => *offset,
            _ => 0,
        }
    }
}

/// Introduction of a primary and its datastore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`PROTOCOL_VERSION`] of the sender.
    pub version: u32,
    /// Whether the primary treats the secondary as in sync.
    pub in_sync: bool,
    /// Whether every answer of the primary is durable: the secondary's committed operations must be durable, too.
    pub durable: bool,
    /// Whether the primary's namespace was ever carried to a secondary. If not, no secondary has any part of it.
    pub was_resynced: bool,
    /// The primary's store (rule P17).
    pub store: StoreId,
    /// The sync that the primary's mark "in sync" concerns, and the name that it proposes for the sync over this connection
    /// (rule P17).
    pub sync: SyncStanding,
    /// The secret of the sums of content (P32); `None` if the primary's disk has no room for it.
    pub sum_secret: Option<SumSecret>,
}

/// Introduction of a secondary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// [`PROTOCOL_VERSION`] of the sender.
    pub version: u32,
    /// Whether the secondary holds a complete copy as of the last disconnect.
    pub in_sync: bool,
    /// The generation in which this copy was last equal to the other one, but for `waiting` and for operations that it
    /// has not applied: the present one of a copy in sync, that of its last term of a deposed primary. In a resync of
    /// everything whose namespace has arrived: the present one; the primary knows which content is not equal (rule P24).
    /// `None` if this copy may differ in anything else.
    pub base: Option<Generation>,
    /// The name of the sync that this copy has got to (rule P17).
    pub sync: Option<SyncId>,
    /// Highest OSN of a metadata operation that the secondary has committed.
    pub applied: Osn,
    /// Executed writes that may not be done on the primary: the secondary's SAW entries, and the PAW entries of a deposed
    /// primary.
    pub waiting: Vec<InFlightEntry>,
    /// The room for clients on the secondary's disk (rule P20).
    pub room: Room,
    /// The barriers that the secondary knows, and its marks since then (rule P29).
    pub marks: MarkAccount,
}

/// A write without its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteMessage {
    /// OSN of the write.
    pub osn: Osn,
    /// The file.
    pub ino: Ino,
    /// First byte.
    pub offset: u64,
    /// Time of the primary's clock: the new mtime and ctime.
    pub time: Timestamp,
    /// Answer only when the write is on stable storage.
    pub durable: bool,
}

/// New size and times of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireFileTimes {
    /// Length in bytes.
    pub size: u64,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Last change of content or attributes.
    pub ctime: Timestamp,
    /// The write that set the times, if writes with lower OSNs may still be under way.
    pub last_write: Option<Osn>,
}

/// A request outside the path of client operations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// Overwrite a range with the payload and take over size and times (distributed recovery).
    RecoverRange {
        /// The file.
        ino: Ino,
        /// First byte of the payload in the file.
        offset: u64,
        /// Size and times of the file.
        times: WireFileTimes,
    },
    /// Recovery is complete: forget the waiting writes that are done on both sides.
    RecoveryDone {
        /// Every write below this OSN is done on both sides.
        below: Osn,
        /// The write verifier of the primary's copy (rule P22).
        verifier: WriteVerifier,
    },
    /// Asks for the marks of the secondary in each interval after a barrier, and for its rest (rule P29).
    Marks {
        /// The barrier.
        since: BarrierName,
        /// How many marks were told before.
        told: u64,
    },
    /// A resync begins: the secondary is out of sync until [`Request::InSync`].
    BeginResync {
        /// Identity of the resync (rule P17).
        sync: SyncId,
        /// The places that the resync looks at.
        scope: ResyncScope,
    },
    /// The next run of records of the namespace; the payload is an encoded chunk.
    ImageChunk,
    /// Asks whether a run of records of the namespace differs from the secondary's. An equal run need not be sent.
    CompareRecords {
        /// The table.
        table: u8,
        /// The key before the run; empty at the start of the table.
        #[serde(with = "serde_bytes")]
        after: Vec<u8>,
        /// The last key of the run; empty at the end of the table.
        #[serde(with = "serde_bytes")]
        last: Vec<u8>,
        /// Hash of the run, as an encoded chunk.
        hash: Hash128,
    },
    /// Records of the namespace that have changed, or may have changed, since they were sent; the payload is an
    /// encoded list.
    ImageChanges,
    /// The whole namespace was sent, except for the last changes: remove leftovers, and make the namespace durable.
    FlushImage,
    /// The namespace is complete.
    EndImage {
        /// OSN of the last metadata operation in the namespace.
        applied: Osn,
        /// All inode numbers that the sender has given out are below this one.
        inos_below: u64,
    },
    /// Take over size and times of files, in the given order, and the bytes that the payload has. The answer has two bits
    /// for each file: whether its content differs, or differed from the bytes; and whether it has no data. A file of which
    /// nothing is told is treated as different.
    SetFiles {
        /// For each file.
        files: Vec<(Ino, WireFileTimes, WireContent)>,
    },
    /// Asks which of the given blocks differ from the secondary's blocks.
    CompareBlocks {
        /// The file.
        ino: Ino,
        /// First byte; a multiple of the block size.
        offset: u64,
        /// Hashes of the blocks from the offset on; zeros fill the last block of the file.
        hashes: Vec<Hash128>,
        /// The use of the answer. In a resync a block in a hole is different, although it reads as zeros.
        purpose: ComparePurpose,
    },
    /// Asks whether any of the given blocks differs from the secondary's blocks, or lies in a hole. The secondary makes void sums of
    /// equal blocks (P32): so the primary does not ask about bytes that a sum of its own calls wrong.
    CompareRun {
        /// The file.
        ino: Ino,
        /// First byte; a multiple of the block size.
        offset: u64,
        /// Number of blocks.
        blocks: u32,
        /// Hash of all blocks from the offset on; zeros fill the last block of the file.
        hash: Hash128,
    },
    /// Asks which blocks of some runs have other sums on the secondary, or lie in a hole. The secondary makes void sums of equal
    /// blocks (P32). A secondary with another secret answers that all blocks are different.
    CompareSums {
        /// The file.
        ino: Ino,
        /// Tells the secret of the sender's sums from another one.
        secret: u64,
        /// For each run its first byte, a multiple of the block size, and its number of blocks.
        runs: Vec<(u64, u32)>,
        /// The sums of the blocks of all runs, in order. Zeros fill the last block of the file.
        sums: Vec<u64>,
    },
    /// Overwrite ranges with the payload, which has the bytes of one after the other.
    WriteBlocks {
        /// The file.
        ino: Ino,
        /// First byte, a multiple of the block size, and number of bytes of each range.
        ranges: Vec<(u64, u32)>,
    },
    /// Asks whether a range differs from zeros. In a resync the secondary makes the range a hole.
    CompareHole {
        /// The file.
        ino: Ino,
        /// First byte.
        offset: u64,
        /// Length in bytes.
        length: u64,
        /// The use of the answer.
        purpose: ComparePurpose,
    },
    /// Reserve space for the ranges. With `zero`, fill the ranges with zeros, too.
    Reserve {
        /// The file.
        ino: Ino,
        /// First byte and number of bytes of each range.
        ranges: Vec<(u64, u64)>,
        /// Whether to fill the ranges with zeros.
        zero: bool,
    },
    /// Asks for one hash of the digests of the first inodes with numbers in a range: as many as both nodes digest at once.
    DigestOfBatch {
        /// First inode number.
        from: u64,
        /// First inode number beyond the range.
        to: u64,
        /// The place from which content is read.
        source: ContentSource,
    },
    /// Asks for the digests of all inodes with numbers in a range.
    Digests {
        /// First inode number.
        from: u64,
        /// First inode number beyond the range.
        to: u64,
        /// The place from which content is read.
        source: ContentSource,
    },
    /// Asks for an inode's record and content length.
    Inspect {
        /// Number of the inode.
        ino: Ino,
    },
    /// Asks for the records of one inode in one table.
    Records {
        /// The table.
        table: u8,
        /// The inode.
        ino: Ino,
        /// The key of the last known record, without the inode number.
        #[serde(with = "serde_bytes")]
        after: Vec<u8>,
    },
    /// The secondary is in sync from now on.
    InSync {
        /// The write verifier of the primary's copy (rule P22).
        verifier: WriteVerifier,
    },
    /// Asks for the room for clients on the secondary's disk, after the removal of unneeded content (rule P20).
    Room {
        /// A change may not fit: while room is short, the secondary gives up copies of changes that were lost.
        for_change: bool,
    },
    /// Asks for the bytes and the sums of blocks, read from the disk.
    InspectBlocks {
        /// The file.
        ino: Ino,
        /// First byte; a multiple of the block size.
        offset: u64,
        /// Number of blocks.
        blocks: u32,
        /// Tells the secret of the sender's sums from another one. Sums with another secret say nothing to each other.
        secret: u64,
    },
    /// Asks for the bytes of blocks, read from the disk.
    ReadBlocks {
        /// The file.
        ino: Ino,
        /// First byte; a multiple of the block size.
        offset: u64,
        /// Number of blocks.
        blocks: u32,
    },
    /// Replace blocks on the disk that do not fit their sums by the payload, which fits them.
    HealBlocks {
        /// The file.
        ino: Ino,
        /// First byte of the payload in the file; a multiple of the block size.
        offset: u64,
    },
    /// Make the sums of blocks anew from the bytes on the disk, which both nodes have.
    RemakeSums {
        /// The file.
        ino: Ino,
        /// First byte; a multiple of the block size.
        offset: u64,
        /// Hashes of the blocks as the sender has them on its disk.
        hashes: Vec<Hash128>,
    },
    /// Keep blocks aside as they are on the disk: no node knows the right ones.
    KeepBlocks {
        /// The file.
        ino: Ino,
        /// First byte; a multiple of the block size.
        offset: u64,
        /// Number of blocks.
        blocks: u32,
    },
    /// Asks for the snapshots of the datastore of which the secondary has bytes (rule P37).
    Snapshots,
    /// Get ready for the values of a snapshot that the secondary lacks.
    BeginArrival {
        /// The snapshot.
        of: SnapshotId,
    },
    /// Asks for values of a snapshot that the primary lacks; the payload is the encoded window, with the place in it.
    ReadArrival,
    /// Put values of a snapshot that the secondary lacks; the payload is an encoded list.
    PutArrival {
        /// The snapshot.
        of: SnapshotId,
    },
    /// All values of a snapshot have come; the payload is the encoded window.
    EndArrival,
}

impl Request {
    /// Whether the request changes a copy that is being resynced. A resync begins with [`Request::BeginResync`], which is none of
    /// them.
    pub const fn is_of_resync(&self) -> bool {
        matches!(
            self,
            Self::ImageChunk
                | Self::CompareRecords { .. }
                | Self::ImageChanges
                | Self::FlushImage
                | Self::EndImage { .. }
                | Self::SetFiles { .. }
                | Self::WriteBlocks { .. }
                | Self::Reserve { .. }
                | Self::CompareHole {
                    purpose: ComparePurpose::Resync,
                    ..
                }
        )
    }
}

/// What [`Request::SetFiles`] tells of the content of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WireContent {
    /// Nothing.
    Untold,
    /// The hash over all bytes.
    Hash(Hash128),
    /// All bytes: the next ones of the payload, as many as the size says.
    Bytes,
}

/// The answer to a [`Request`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Response {
    /// Done.
    Done,
    /// One bit for each block or range of the request, lowest bit first: set if it differs. For [`Request::SetFiles`] two bits
    /// for each file.
    Differing(#[serde(with = "serde_bytes")] Vec<u8>),
    /// One hash of the digests of the inodes of a batch.
    DigestOfBatch {
        /// First inode number beyond the batch.
        to: u64,
        /// The hash.
        hash: Hash128,
        /// The word of the sums about the content.
        sums: SumsWord,
    },
    /// Digests of all inodes in a range of numbers.
    Digests {
        /// First inode number beyond the covered ones; at most the end of the requested range.
        to: u64,
        /// Digests by inode number, in order.
        digests: Vec<(u64, Hash128)>,
        /// The word of the sums about the content.
        sums: SumsWord,
    },
    /// An inode, without its content and without its records in other tables.
    Inspected {
        /// The inode's record with all unflushed size and times, if there is such an inode.
        record: Option<Vec<u8>>,
        /// Length of the content on the disk.
        content_bytes: u64,
    },
    /// Records in the order of their keys.
    Records {
        /// The key without the inode number, and the hash of the value.
        records: Vec<(Vec<u8>, Hash128)>,
        /// Whether these are the last records.
        last: bool,
    },
    /// Room on a disk.
    Room(Room),
    /// As [`Response::Differing`], for content that was read from the disk.
    Checked {
        /// The bits.
        #[serde(with = "serde_bytes")]
        differing: Vec<u8>,
        /// The word of the sums about the content.
        sums: SumsWord,
    },
    /// Blocks and their sums, one after the other.
    Blocks(Vec<BlockWord>),
    /// Marks.
    Marks(MarkPage),
    /// The bytes of blocks.
    Bytes(#[serde(with = "serde_bytes")] Vec<u8>),
    /// Blocks were healed, or their sums made anew, or they were kept aside. Says whether the versions of all blocks are
    /// kept aside: the folder may be full.
    SetAside(bool),
    /// Snapshots, the oldest first.
    Snapshots(Vec<SnapshotId>),
    /// Whether a step of an arrival was done: not if the secondary's list of snapshots has changed.
    Arrived(bool),
}

/// The reason why the secondary did not carry out a request: a text for the primary's operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Error)]
#[error("{0}")]
pub struct RequestFailure(pub String);

/// Bytes that are no message of this vocabulary.
#[derive(Debug, Error)]
pub enum MessageError {
    /// The bytes cannot be decoded, or the message cannot be encoded.
    #[error("a message could not be read ({0}); the connection is given up and opened again")]
    Encoding(#[from] postcard::Error),
    /// Bytes follow the message: the sender's vocabulary is larger than this one.
    #[error(
        "a message could not be read ({bytes} bytes follow it); the connection is given up and \
         opened again"
    )]
    TooLong {
        /// Number of bytes after the message.
        bytes: usize,
    },
}

impl Envelope {
    /// The bytes of the frame's header.
    pub fn encode(&self) -> Result<Vec<u8>, MessageError> {
        Ok(postcard::to_allocvec(self)?)
    }

    /// Decodes the bytes of a frame's header, which must hold one message and nothing else.
    pub fn decode(bytes: &[u8]) -> Result<Self, MessageError> {
        match postcard::take_from_bytes(bytes)? {
            (envelope, []) => Ok(envelope),
            (_, rest) => Err(MessageError::TooLong { bytes: rest.len() }),
        }
    }
}

#[cfg(test)]
mod tests;
