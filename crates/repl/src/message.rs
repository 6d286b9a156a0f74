//! The messages of the data path, as they travel in the headers of frames.
//!
//! Every message carries the watermark of finished writes, so that acks of acks cost no message of
//! their own. The bytes of a write travel as the payload of the frame, covered by the frame's one
//! checksum of it.

use lockstep_paw_saw::InFlightEntry;
use lockstep_types::backing::Room;
use lockstep_types::{
    DatastoreUuid, Errno, Generation, Hash128, Ino, MetaOp, Osn, StoreId, SyncId, Timestamp,
};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Version of this vocabulary. Nodes of different versions do not talk.
pub const PROTOCOL_VERSION: u32 = 4;

/// What a frame's header says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Envelope {
    /// Which datastore; a message for another one is refused.
    pub datastore: DatastoreUuid,
    /// The sender's generation; any but the receiver's own is refused. The primary looks at the one of
    /// the greeting only: all that comes over that connection is of the same process.
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
    /// Why a connection is not wanted; the sender closes it after this.
    Refuse {
        /// For the operator: cause and cure.
        reason: String,
    },
    /// A write; its bytes are the payload.
    Write(WriteMessage),
    /// The outcome of a write.
    WriteAck {
        /// Which write.
        osn: Osn,
        /// Why it failed, if it did.
        failed: Option<Errno>,
    },
    /// A metadata operation to commit and execute.
    Meta {
        /// The operation.
        op: MetaOp,
        /// The metadata operation before it: committed by the secondary already, or this one came
        /// out of order and the connection is given up (rule P2).
        previous: Osn,
        /// Answer only when it is on stable storage.
        durable: bool,
    },
    /// The outcome of a metadata operation.
    MetaAck {
        /// Which operation.
        osn: Osn,
        /// Whether it was committed; if not, why it was rolled back.
        outcome: Result<(), Errno>,
    },
    /// Make a file, and the names that lead to it, durable.
    Sync {
        /// Number of the request, counted by the primary.
        id: u64,
        /// Which file.
        ino: Ino,
    },
    /// The outcome of a sync.
    SyncAck {
        /// Which request.
        id: u64,
        /// Why it failed, if it did.
        failed: Option<Errno>,
    },
    /// Are you there? Sent when there is nothing else to send.
    Ping,
    /// I am, and my disk has so much room for clients.
    Pong {
        /// The room (rule P20).
        room: Room,
    },
    /// A question outside the path of clients' operations: recovery, resync, verify.
    Request {
        /// Number of the request, counted by the primary.
        id: u64,
        /// The question; bytes, if any, are the payload.
        request: Request,
    },
    /// The answer to a question.
    Response {
        /// Which request.
        id: u64,
        /// The answer, or why there is none.
        response: Result<Response, String>,
    },
    /// A sign of life, of the primary while a [`Message::Ping`] is on its way, and of the secondary in answer to
    /// that or while a frame takes long to arrive: unlike [`Message::Pong`] it says nothing of what has
    /// arrived.
    Alive,
    /// Instead of [`Message::Hello`] or [`Message::Welcome`]: the disk of my store has failed; I
    /// promise nothing any more, and am not in sync (rule P16). The sender closes the connection.
    Poisoned {
        /// For the operator: what failed when, and the cure.
        reason: String,
    },
    /// Instead of [`Message::Hello`]: I am a secondary that nobody leads. Answered by [`Message::Refuse`] if the
    /// receiver will not lead it, and then, or at once, the connection is closed.
    Waiting,
}

/// What a primary says of itself and the datastore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`PROTOCOL_VERSION`] of the sender.
    pub version: u32,
    /// Whether the primary counts the secondary as in sync.
    pub in_sync: bool,
    /// Whether everything it answers is durable: what the secondary has committed must be.
    pub durable: bool,
    /// Whether its namespace was ever carried to a secondary. If not, no secondary has anything of it.
    pub carried_over: bool,
    /// Its store (rule P17).
    pub store: StoreId,
    /// The last resync it began: the sync that its mark is about, if it says in sync (rule P17).
    pub sync: Option<SyncId>,
}

/// What a secondary says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// [`PROTOCOL_VERSION`] of the sender.
    pub version: u32,
    /// Whether the secondary holds a complete copy as of the last disconnect.
    pub in_sync: bool,
    /// Highest OSN of a metadata operation it has committed.
    pub applied: Osn,
    /// Writes it has executed and not heard the end of: its SAW entries.
    pub waiting: Vec<InFlightEntry>,
    /// The room that its disk has for clients (rule P20).
    pub room: Room,
}

/// A write, but for its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteMessage {
    /// Its place in the order of operations.
    pub osn: Osn,
    /// The file.
    pub ino: Ino,
    /// First byte.
    pub offset: u64,
    /// The primary's clock: new mtime and ctime.
    pub time: Timestamp,
    /// Answer only when it is on stable storage.
    pub durable: bool,
}

/// Size and times of a file, as they are to become.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileFacts {
    /// Length in bytes.
    pub size: u64,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Last change of content or attributes.
    pub ctime: Timestamp,
    /// The write whose time they are, if writes with lower numbers may still be under way.
    pub last_write: Option<Osn>,
}

/// A question outside the path of clients' operations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// Overwrite a range with the payload and take over the facts (distributed recovery).
    RecoverRange {
        /// The file.
        ino: Ino,
        /// First byte of the payload in the file.
        offset: u64,
        /// Size and times of the file.
        facts: FileFacts,
    },
    /// Recovery is complete: forget the waiting writes that are done on both sides.
    RecoveryDone {
        /// Every write before this one is.
        below: Osn,
    },
    /// A resync begins: you are out of sync until told otherwise.
    BeginResync {
        /// Its name (rule P17).
        sync: SyncId,
    },
    /// The next run of records of the namespace; the payload is an encoded chunk.
    ImageChunk,
    /// Records of the namespace that have changed since they were sent, or may have; the payload is an
    /// encoded list of them.
    ImageChanges,
    /// All of the namespace was sent but for the last changes: tidy up, and make it durable.
    SettleImage,
    /// The namespace is complete.
    EndImage {
        /// OSN of the last metadata operation in it.
        applied: Osn,
        /// The sender has given out inode numbers below this.
        inos_below: u64,
    },
    /// Take over size and times of files, in this order. Whose content then differs from the
    /// hash over all its bytes? One without a hash counts as differing.
    SettleFiles {
        /// For each file.
        files: Vec<(Ino, FileFacts, Option<Hash128>)>,
    },
    /// Which of these blocks differ from yours?
    CompareBlocks {
        /// The file.
        ino: Ino,
        /// First byte; a multiple of the block size.
        offset: u64,
        /// Hashes of the blocks from there, the last one of the file filled up with zeros.
        hashes: Vec<Hash128>,
        /// Whether a block that takes no space counts as differing, though it reads as zeros.
        space: bool,
    },
    /// Overwrite a range with the payload.
    WriteBlocks {
        /// The file.
        ino: Ino,
        /// First byte of the payload in the file.
        offset: u64,
    },
    /// Is this range all zeros? With `punch`, make it a hole.
    CompareHole {
        /// The file.
        ino: Ino,
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
        /// Whether to change anything.
        punch: bool,
    },
    /// Reserve space for these ranges. With `zero`, make them zeros, too.
    Reserve {
        /// The file.
        ino: Ino,
        /// First byte and number of bytes of each.
        ranges: Vec<(u64, u64)>,
        /// Whether their bytes change.
        zero: bool,
    },
    /// Digests of all inodes with numbers in a range.
    Digests {
        /// First inode number.
        from: u64,
        /// First inode number beyond the range.
        to: u64,
    },
    /// What do you know of this inode?
    Inspect {
        /// Its number.
        ino: Ino,
    },
    /// Which records of one inode are in this table?
    Records {
        /// The table.
        table: u8,
        /// The inode.
        ino: Ino,
        /// What follows the inode number in the key of the last record known already.
        #[serde(with = "serde_bytes")]
        after: Vec<u8>,
    },
    /// The secondary is in sync from now on.
    InSync,
    /// How much room does your disk have for clients, once content that nobody needs is gone (rule P20)?
    Room,
}

/// The answer to a [`Request`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Response {
    /// Done.
    Done,
    /// One bit per block, range or file asked about, lowest bit first: set where it differs.
    Differing(#[serde(with = "serde_bytes")] Vec<u8>),
    /// Digests of all inodes in a range of numbers.
    Digests {
        /// First inode number beyond those covered; at most the one asked for.
        to: u64,
        /// Digests by inode number, in order.
        digests: Vec<(u64, Hash128)>,
    },
    /// All about an inode but for its content and its records in other tables.
    Inspected {
        /// Its record with nothing unflushed, if there is such an inode.
        record: Option<Vec<u8>>,
        /// Length of its content on the disk.
        content_bytes: u64,
    },
    /// Records in the order of their keys.
    Records {
        /// What follows the inode number in the key, and the hash of the value.
        records: Vec<(Vec<u8>, Hash128)>,
        /// Whether there are no more.
        last: bool,
    },
    /// Room on a disk.
    Room(Room),
}

/// Bytes that are no message of this vocabulary.
#[derive(Debug, Error)]
pub enum MessageError {
    /// They are none at all, or a message that cannot be put in bytes.
    #[error("a message could not be read ({0}); the connection is given up and made anew")]
    Encoding(#[from] postcard::Error),
    /// More came than the message: the sender knows of something that this vocabulary does not.
    #[error(
        "a message could not be read ({bytes} bytes follow it); the connection is given up and \
         made anew"
    )]
    TooLong {
        /// How many bytes are left over.
        bytes: usize,
    },
}

impl Envelope {
    /// The bytes of the frame's header.
    pub fn encode(&self) -> Result<Vec<u8>, MessageError> {
        Ok(postcard::to_allocvec(self)?)
    }

    /// Reads the bytes of a frame's header: all of them, and nothing else.
    pub fn decode(bytes: &[u8]) -> Result<Self, MessageError> {
        match postcard::take_from_bytes(bytes)? {
            (envelope, []) => Ok(envelope),
            (_, rest) => Err(MessageError::TooLong { bytes: rest.len() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_all_of_its_header() {
        let envelope = Envelope {
            datastore: DatastoreUuid::from_bytes([7; 16]),
            generation: Generation::FIRST,
            done_below: Osn::ZERO,
            message: Message::Ping,
        };
        let mut bytes = envelope.encode().unwrap();
        assert_eq!(Envelope::decode(&bytes).unwrap(), envelope);
        bytes.push(0);
        let error = Envelope::decode(&bytes).unwrap_err().to_string();
        assert!(error.contains("1 bytes follow it"), "{error}");
        assert!(Envelope::decode(&bytes[..bytes.len() - 2]).is_err());
    }
}
