//! Messages that no node would send: well formed, with numbers, names and sizes at the edges of their types. Some
//! messages are right.

use lockstep_paw_saw::InFlightEntry;
use lockstep_repl::checked::{BlockWord, SumsWord};
use lockstep_repl::message::{
    BarrierMessage, BarrierName, ComparePurpose, ContentSource, Envelope, Interval, MarkAccount,
    MarkPage, Message, PROTOCOL_VERSION, RegionRun, Request, RequestFailure, Response, ResyncScope,
    Welcome, WireContent, WireFileTimes, WriteMessage,
};
use lockstep_roles::{RoleOffer, RoleRecord};
use lockstep_testbed::chance::Chance;
use lockstep_types::backing::Room;
use lockstep_types::settings::Role;
use lockstep_types::{
    DatastoreUuid, Errno, Generation, Hash128, Ino, Osn, StoreId, SyncCount, SyncId, SyncNames,
    SyncStanding, Timestamp, WriteVerifier,
};

use crate::bytes::{index, number, random};
use crate::operations::op;
use crate::resync_status;

/// Inode numbers below this one are likely to be in use, those below its double soon.
pub const INOS: u64 = 15;

/// The sender's knowledge of the other end, so that some messages fit its state.
#[derive(Clone, Debug)]
pub struct PeerState {
    pub datastore: DatastoreUuid,
    /// The last metadata operation that the other end is known to have.
    pub last: Osn,
    /// The store that the other end has a copy of, and the last resync that it has met.
    pub store: StoreId,
    pub sync: Option<SyncId>,
    /// Accidents in a hundred headers.
    pub wildness: u64,
}

impl PeerState {
    /// The knowledge at the start, with a random number of accidents.
    pub fn of(chance: &mut Chance, datastore: DatastoreUuid) -> Self {
        Self {
            datastore,
            last: Osn::ZERO,
            store: StoreId::from_bytes([9; 16]),
            sync: None,
            wildness: *chance.pick(&[0, 0, 0, 1, 2, 10, 50]),
        }
    }
}

/// A message in its envelope.
pub fn envelope(chance: &mut Chance, known: &PeerState, message: Message) -> Envelope {
    let wild = chance.percent(known.wildness);
    Envelope {
        datastore: if wild && chance.percent(10) {
            DatastoreUuid::from_bytes([9; 16])
        } else {
            known.datastore
        },
        generation: if wild && chance.percent(10) {
            generation(chance)
        } else {
            Generation::FIRST
        },
        done_below: if chance.percent(70) {
            Osn::ZERO
        } else {
            osn(chance, known)
        },
        message,
    }
}

/// A frame's header: that of an envelope, sometimes after an accident, or random bytes.
pub fn header(chance: &mut Chance, known: &PeerState, envelope: &Envelope) -> Vec<u8> {
    let mut bytes = envelope.encode().unwrap();
    if chance.percent(known.wildness) {
        if chance.percent(10) {
            return random(chance, 120_000);
        }
        crate::bytes::mutate_often(chance, &mut bytes);
    }
    bytes
}

/// Any message.
pub fn any(chance: &mut Chance, known: &PeerState) -> Message {
    if chance.percent(50) {
        of_primary(chance, known)
    } else {
        of_secondary(chance, known)
    }
}

/// A message that a primary may send after its greeting.
pub fn of_primary(chance: &mut Chance, known: &PeerState) -> Message {
    match chance.within(0..20) {
        0..5 => Message::Write(WriteMessage {
            osn: osn(chance, known),
            ino: ino(chance),
            offset: number(chance),
            time: time(chance),
            durable: chance.percent(20),
        }),
        5..11 => Message::Meta {
            op: op(chance, known),
            previous: if chance.percent(known.wildness) {
                osn(chance, known)
            } else {
                known.last
            },
            durable: chance.percent(20),
        },
        11..13 => Message::Sync {
            id: number(chance),
            ino: ino(chance),
        },
        13 => Message::Ping {
            disk_silent_ms: number(chance),
            resync: chance.percent(50).then(|| resync_status::random(chance)),
        },
        14 => match chance.within(0..3) {
            0 => Message::Barrier(barrier(chance)),
            1 => Message::Turn(Interval::new(number(chance))),
            _ => Message::Announce {
                id: number(chance),
                runs: vec![RegionRun {
                    ino: ino(chance),
                    first: number(chance),
                    count: u32::try_from(chance.within(0..1 << 20)).unwrap(),
                }],
            },
        },
        _ => Message::Request {
            id: number(chance),
            request: request(chance, known),
        },
    }
}

/// A message that a secondary may send after its greeting.
pub fn of_secondary(chance: &mut Chance, known: &PeerState) -> Message {
    match chance.within(0..10) {
        0 => Message::Welcome(welcome(chance, known)),
        1 => Message::Refuse {
            reason: String::from_utf8_lossy(&random(chance, 100_000)).into_owned(),
        },
        2 => Message::WriteAck {
            osn: osn(chance, known),
            failed: maybe(chance, errno),
        },
        3 => Message::MetaAck {
            osn: osn(chance, known),
            outcome: maybe(chance, errno).map_or(Ok(()), Err),
        },
        4 => Message::SyncAck {
            id: number(chance),
            failed: maybe(chance, errno),
        },
        5 => Message::Pong {
            room: room(chance),
            disk_silent_ms: number(chance),
        },
        6 => Message::Alive,
        7 if chance.percent(30) => Message::Barrier(barrier(chance)),
        7 if chance.percent(30) => Message::Announced { id: number(chance) },
        7 => Message::RoleOffer(meet(chance, known, Role::Secondary, None)),
        _ => Message::Response {
            id: number(chance),
            response: answer(chance),
        },
    }
}

/// The record of a node in a meeting. The generation is the known one: a node believes a record of a later generation.
pub fn meet(
    chance: &mut Chance,
    known: &PeerState,
    role: Role,
    seen: Option<RoleRecord>,
) -> RoleOffer {
    RoleOffer {
        version: version(chance),
        record: RoleRecord {
            generation: Generation::FIRST,
            role,
            is_candidate: chance.percent(2),
            complete: chance.percent(90),
            peer_complete: chance.percent(50),
        },
        seen,
        store: Some(store(chance, known)),
        sync: standing(chance, known),
        asks_incomplete_mark: chance.percent(10),
        discarded_own_changes: chance.percent(10),
        failover_after_ms: None,
        witness: None,
    }
}

/// The answer to a greeting, mostly an acceptable one.
pub fn welcome(chance: &mut Chance, known: &PeerState) -> Welcome {
    let waiting = match chance.within(0..4) {
        0 => 0,
        1 => chance.within(0..2000),
        _ => chance.within(0..5),
    };
    Welcome {
        version: version(chance),
        in_sync: chance.percent(70),
        base: chance.percent(50).then(|| generation(chance)),
        sync: sync(chance, known),
        applied: if chance.percent(known.wildness + 10) {
            osn(chance, known)
        } else {
            known.last
        },
        waiting: (0..waiting).map(|_| entry(chance, known)).collect(),
        room: room(chance),
        marks: MarkAccount {
            known: (0..chance.within(0..6))
                .map(|_| barrier_name(chance))
                .collect(),
            covered_after: chance
                .percent(50)
                .then(|| Interval::new(chance.within(0..4))),
            served_alone: chance.percent(30),
        },
    }
}

/// Marks, which may be any.
fn mark_page(chance: &mut Chance) -> MarkPage {
    MarkPage {
        files_from: maybe(chance, number),
        all_records: chance.percent(10),
        bytes: list(chance, |chance| {
            (number(chance), number(chance), number(chance))
        }),
        keys: list(chance, |chance| random(chance, 40)),
        next: maybe(chance, number),
    }
}

/// The name of a barrier, often the same one.
fn barrier_name(chance: &mut Chance) -> BarrierName {
    BarrierName {
        through: Interval::new(chance.within(0..4)),
        nonce: [u8::from(chance.percent(20)); 16],
    }
}

/// A word about a barrier.
fn barrier(chance: &mut Chance) -> BarrierMessage {
    let name = barrier_name(chance);
    match chance.within(0..4) {
        0 => BarrierMessage::Barrier {
            name,
            complete: chance.percent(50).then(|| barrier_name(chance)),
        },
        1 => BarrierMessage::Reached(name),
        2 => BarrierMessage::Unreached(name),
        _ => BarrierMessage::Complete(name),
    }
}

/// Free space on a disk, mostly enough.
fn room(chance: &mut Chance) -> Room {
    if chance.percent(80) {
        return Room::ALL;
    }
    Room {
        bytes: number(chance),
        files: number(chance),
    }
}

/// An answer to a request.
pub fn answer(chance: &mut Chance) -> Result<Response, RequestFailure> {
    Ok(match chance.within(0..13) {
        8 => Response::Checked {
            differing: random(chance, 100),
            sums: sums_word(chance),
        },
        9 => Response::Blocks(list(chance, |chance| BlockWord {
            bytes: hash(chance),
            sum: maybe(chance, number),
            fits: chance.percent(50),
        })),
        10 => Response::Bytes(random(chance, 9000)),
        11 => Response::SetAside(chance.percent(50)),
        12 => Response::Marks(mark_page(chance)),
        7 => Response::Room(room(chance)),
        0 => {
            let text = String::from_utf8_lossy(&random(chance, 1000)).into_owned();
            return Err(RequestFailure(text));
        }
        1 | 2 => Response::Done,
        3 => Response::Differing(random(chance, 2000)),
        4 => Response::Digests {
            to: number(chance),
            digests: list(chance, |chance| (number(chance), hash(chance))),
            sums: sums_word(chance),
        },
        5 => Response::Inspected {
            record: maybe(chance, |chance| random(chance, 200)),
            content_bytes: number(chance),
        },
        _ => Response::Records {
            records: list(chance, |chance| (random(chance, 40), hash(chance))),
            last: chance.percent(50),
        },
    })
}

fn sums_word(chance: &mut Chance) -> SumsWord {
    SumsWord {
        misfits: list(chance, number),
        void: list(chance, number),
        void_blocks: number(chance),
    }
}

/// A request of a comparison with the disk, or of a repair.
fn deep_request(chance: &mut Chance) -> Request {
    let (ino, offset, blocks) = (ino(chance), number(chance), small(chance));
    match chance.within(0..5) {
        0 => Request::InspectBlocks {
            ino,
            offset,
            blocks,
            secret: number(chance),
        },
        1 => Request::ReadBlocks {
            ino,
            offset,
            blocks,
        },
        2 => Request::HealBlocks { ino, offset },
        3 => Request::RemakeSums {
            ino,
            offset,
            hashes: list(chance, hash),
        },
        _ => Request::KeepBlocks {
            ino,
            offset,
            blocks,
        },
    }
}

fn version(chance: &mut Chance) -> u32 {
    if chance.percent(97) {
        PROTOCOL_VERSION
    } else {
        small(chance)
    }
}

fn entry(chance: &mut Chance, known: &PeerState) -> InFlightEntry {
    InFlightEntry {
        ino: ino(chance),
        osn: osn(chance, known),
        offset: number(chance),
        length: small(chance),
    }
}

fn room_request(chance: &mut Chance) -> Request {
    Request::Room {
        for_change: chance.percent(50),
    }
}

fn request(chance: &mut Chance, known: &PeerState) -> Request {
    match chance.within(0..19) {
        17 => deep_request(chance),
        18 => Request::Marks {
            since: barrier_name(chance),
            told: number(chance),
        },
        14 if chance.percent(50) => Request::Reserve {
            ino: ino(chance),
            ranges: list(chance, |chance| (number(chance), number(chance))),
            zero: chance.percent(50),
        },
        14 => Request::ImageChanges,
        15 => Request::FlushImage,
        13 if chance.percent(50) => room_request(chance),
        0 => Request::RecoverRange {
            ino: ino(chance),
            offset: number(chance),
            times: file_times(chance, known),
        },
        1 => Request::RecoveryDone {
            below: osn(chance, known),
            verifier: verifier(chance),
        },
        2 => Request::BeginResync {
            sync: sync_sent(known),
            scope: match chance.within(0..3) {
                0 => ResyncScope::Everything,
                1 => ResyncScope::Changes,
                _ => ResyncScope::SinceBarrier(barrier_name(chance)),
            },
        },
        3 if chance.percent(50) => Request::CompareRecords {
            table: *chance.pick(b"idcxogmz"),
            after: random(chance, 20),
            last: random(chance, 20),
            hash: hash(chance),
        },
        3 => Request::ImageChunk,
        4 => Request::EndImage {
            applied: osn(chance, known),
            inos_below: number(chance),
        },
        5 => Request::SetFiles {
            files: list(chance, |chance| {
                let content = match chance.within(0..3) {
                    0 => WireContent::Untold,
                    1 => WireContent::Hash(hash(chance)),
                    _ => WireContent::Bytes,
                };
                (ino(chance), file_times(chance, known), content)
            }),
        },
        6 if chance.percent(50) => Request::CompareRun {
            ino: ino(chance),
            offset: number(chance),
            blocks: u32::try_from(chance.within(0..600)).unwrap(),
            hash: hash(chance),
        },
        6 => Request::CompareBlocks {
            ino: ino(chance),
            offset: number(chance),
            hashes: list(chance, hash),
            purpose: purpose(chance),
        },
        7 if chance.percent(50) => Request::CompareSums {
            ino: ino(chance),
            secret: number(chance),
            runs: ranges(chance),
            sums: list(chance, number),
        },
        7 => Request::WriteBlocks {
            ino: ino(chance),
            ranges: ranges(chance),
        },
        8 | 9 => Request::CompareHole {
            ino: ino(chance),
            offset: number(chance),
            length: number(chance),
            purpose: purpose(chance),
        },
        10 if chance.percent(50) => Request::DigestOfBatch {
            from: number(chance),
            to: number(chance),
            source: source(chance),
        },
        10 => Request::Digests {
            from: number(chance),
            to: number(chance),
            source: source(chance),
        },
        11 => Request::Inspect { ino: ino(chance) },
        12 => Request::Records {
            table: *chance.pick(b"idcxogmz"),
            ino: ino(chance),
            after: random(chance, 300),
        },
        _ => Request::InSync {
            verifier: verifier(chance),
        },
    }
}

/// Ranges of blocks or of bytes.
fn ranges(chance: &mut Chance) -> Vec<(u64, u32)> {
    list(chance, |chance| {
        let length = u32::try_from(number(chance)).unwrap_or(4096);
        (number(chance), length)
    })
}

fn purpose(chance: &mut Chance) -> ComparePurpose {
    match chance.within(0..4) {
        0 => ComparePurpose::Resync,
        1 => ComparePurpose::DoubtedResync,
        _ => ComparePurpose::Verify(source(chance)),
    }
}

fn source(chance: &mut Chance) -> ContentSource {
    *chance.pick(&[ContentSource::Memory, ContentSource::Disk])
}

/// The resync in a message to the secondary: never one that its true primary could not know.
pub fn sync_sent(known: &PeerState) -> SyncId {
    known.sync.unwrap_or_else(|| SyncId::next(None, [9; 16]))
}

/// The store of a primary, mostly the one that the other end has a copy of.
pub fn store(chance: &mut Chance, known: &PeerState) -> StoreId {
    if chance.percent(5) {
        StoreId::from_bytes([9; 16])
    } else {
        known.store
    }
}

/// The standing of a copy in its sync, mostly without a proposed name.
pub fn standing(chance: &mut Chance, known: &PeerState) -> SyncStanding {
    let last = sync(chance, known);
    let is_proposed = last.is_some() && chance.percent(10);
    SyncStanding {
        names: SyncNames {
            last,
            proposed: is_proposed.then(|| SyncId::next(last, [9; 16])),
        },
        count: SyncCount {
            of: last.filter(|_| chance.percent(20)),
            acknowledged: number(chance),
            reached: number(chance),
        },
    }
}

/// The sync id in the mark of a primary, mostly the one in the mark of the other end.
pub fn sync(chance: &mut Chance, known: &PeerState) -> Option<SyncId> {
    match chance.within(0..20) {
        0 => None,
        1 => Some(SyncId::next(None, [9; 16])),
        2..5 => Some(SyncId::next(known.sync, [9; 16])),
        _ => known.sync,
    }
}

fn file_times(chance: &mut Chance, known: &PeerState) -> WireFileTimes {
    WireFileTimes {
        size: number(chance),
        mtime: time(chance),
        ctime: time(chance),
        last_write: maybe(chance, |chance| osn(chance, known)),
    }
}

pub fn ino(chance: &mut Chance) -> Ino {
    let raw = if chance.percent(90) {
        chance.within(1..INOS)
    } else {
        number(chance)
    };
    Ino::new(raw).unwrap_or(Ino::ROOT)
}

pub fn osn(chance: &mut Chance, known: &PeerState) -> Osn {
    if chance.percent(70) {
        let sequence = known.last.sequence;
        let moved = sequence.saturating_add(chance.within(0..4));
        return Osn {
            sequence: moved.saturating_sub(chance.within(0..4)),
            ..known.last
        };
    }
    Osn {
        generation: generation(chance),
        sequence: number(chance),
    }
}

fn generation(chance: &mut Chance) -> Generation {
    Generation::new(number(chance)).unwrap_or(Generation::FIRST)
}

pub fn time(chance: &mut Chance) -> Timestamp {
    Timestamp {
        secs: number(chance).cast_signed(),
        nanos: small(chance),
    }
}

fn hash(chance: &mut Chance) -> Hash128 {
    Hash128::of(&[index(chance, 256).to_le_bytes()[0]])
}

fn errno(chance: &mut Chance) -> Errno {
    Errno::from_code(i32::try_from(chance.within(0..130)).unwrap())
}

pub fn small(chance: &mut Chance) -> u32 {
    u32::try_from(number(chance) & 0xffff_ffff).unwrap()
}

pub fn maybe<T>(chance: &mut Chance, make: impl FnOnce(&mut Chance) -> T) -> Option<T> {
    chance.percent(50).then(|| make(chance))
}

/// A list, rarely as long as a frame may hold.
fn list<T>(chance: &mut Chance, mut make: impl FnMut(&mut Chance) -> T) -> Vec<T> {
    let count = match chance.within(0..10) {
        0 => chance.within(0..2000),
        1 | 2 => chance.within(0..300),
        _ => chance.within(0..6),
    };
    (0..count).map(|_| make(chance)).collect()
}

fn verifier(chance: &mut Chance) -> WriteVerifier {
    let drawn = u128::from(chance.any()) << 64;
    WriteVerifier::from_bytes(drawn.to_be_bytes())
}
