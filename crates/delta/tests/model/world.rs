//! Two nodes, their copies of one file with two regions and of one record, and the operations between them.

use lockstep_delta::announced::REGION_BYTES;
use lockstep_delta::{
    AnnouncedRegions, BarrierEffect, BarrierEvent, BarrierMachine, BarrierMessage, BarrierName,
    BarrierNames, Column, FileRegions, Interval, MarkCoverage,
};
use lockstep_types::id::Ino;

use crate::limits::{Break, Limits};

/// The regions of the file, by number, and the record.
pub const PARTS: usize = 2;
pub const RECORD: usize = 2;
/// Places at which copies may differ: the parts and the record. A set of places is a set of bits.
pub const PLACES: usize = 3;
pub const ALL: u8 = 0b111;
/// The barrier that both nodes have reached at the start.
const FIRST: BarrierName = BarrierName {
    through: Interval::new(1),
    nonce: [0; 16],
};
const ANNOUNCED_MAX: usize = 4;

pub const fn bit(place: usize) -> u8 {
    1 << place
}

/// One node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    pub role: Role,
    /// The contents, as a reader sees them and as stable storage has them.
    pub memory: [u8; PLACES],
    pub stable: [u8; PLACES],
    pub marks: Marks,
    pub barriers: BarrierMachine,
    /// The names on stable storage.
    pub names: BarrierNames,
    /// The names are in memory only.
    pub is_nameless: bool,
    /// The coverage that the trace gives back after a loss of power.
    pub trace: Option<MarkCoverage>,
    pub coverage: MarkCoverage,
    /// The places of writes that may be on this node only: PAW or SAW.
    pub waiting: u8,
    /// Marks that a mutant makes late.
    pub late: u8,
    /// An old copy: stable storage of an earlier moment.
    pub saved: Option<Saved>,
}

/// The record of a node about its role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Role {
    pub leads: bool,
    pub generation: u8,
    /// Of a primary: the secondary is marked in sync.
    pub in_sync: bool,
    /// The copy holds every acknowledged operation.
    pub complete: bool,
    /// The sync since which the rest of this node is whole; the last sync of this copy, if it lost nothing since.
    pub rest_since: Option<u8>,
    pub copy_of: Option<u8>,
}

/// The region marks of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Marks {
    pub columns: [u8; 2],
    pub rest: u8,
    /// On stable storage: the trace, or the rest that goes with the names.
    pub durable: u8,
}

/// The stable storage of an old copy.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Saved {
    pub stable: [u8; PLACES],
    pub durable: u8,
    pub names: BarrierNames,
    pub coverage: MarkCoverage,
}

/// A mirrored write in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Write {
    pub value: u8,
    pub interval: Interval,
    pub here: Here,
    pub there: There,
    pub is_counted: bool,
}

/// The own part of the primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Here {
    /// The write waits for an announcement.
    Waits,
    Due,
    Done,
}

/// The part of the secondary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum There {
    Unsent,
    Done,
    Answered,
}

/// An announcement on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Announcing {
    /// The interval that was open, or about to be, when the announcement was posted.
    pub interval: Interval,
    /// The secondary has marked.
    pub is_marked: bool,
}

/// The metadata operation in flight, or in doubt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Operation {
    pub value: u8,
    pub interval: Interval,
    pub there: There,
    pub is_counted: bool,
    /// The operation creates the file, and was sent over one connection only.
    pub is_first: bool,
}

/// The connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Link {
    Down,
    /// A recovery, with the places that are left.
    Recovery(u8),
    Resync,
    Synced,
}

/// The rest of the bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Left {
    pub failures: u8,
    pub writes: u8,
    pub operations: u8,
    pub barriers: u8,
}

/// The model's state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    pub limits: Limits,
    pub left: Left,
    pub nodes: [Node; 2],
    pub link: Link,
    /// The primary of the connection, or of the last one.
    pub owner: usize,
    pub announced: AnnouncedRegions,
    pub announcing: [Option<Announcing>; PARTS],
    /// The interval that the primary is about to open, and of which the secondary has not read.
    pub posted: Option<Interval>,
    /// The last interval that the primary has posted over this connection.
    pub told: Option<Interval>,
    pub writes: [Option<Write>; PARTS],
    pub operation: Option<Operation>,
    /// Places that a resync has sent, and whose answer is not read. Each of them is locked.
    pub requests: u8,
    pub resynced: Resynced,
    /// The last value, sync and barrier.
    pub drawn: [u8; 3],
    /// The nodes that have lost power since they reached the last barrier that was complete.
    pub lost: [bool; 2],
    /// The same since the last barrier that each of them reached.
    pub lost_since_sync: [bool; 2],
    pub is_old_copy: bool,
    /// A node has lost power that had served alone, or was the source of a resync: everything may be compared.
    pub is_excused: bool,
    pub broken: Option<&'static str>,
    pub survived: Survived,
    /// The source of a resync has just lost its power, and has a rest on stable storage.
    pub has_resumed: bool,
}

/// A difference was found without comparing everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Survived {
    /// After both nodes had lost power.
    pub both: bool,
    /// After a deposed primary had lost power.
    pub deposed: bool,
    /// By a trace.
    pub traced: bool,
}

/// The barriers since the last resync began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Resynced {
    /// One has been complete.
    HasBarrier,
    /// None. The marks of the secondary begin with the resync.
    LacksBarrier,
    /// None, and the source of the resync had lost its power before: so neither node has marks of the time before.
    LacksMarks,
}

/// A step of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    Write(usize),
    Announce(usize),
    /// The secondary marks an announced region.
    Announced(usize),
    /// The primary reads the answer.
    Heard(usize),
    PostTurn,
    ReadTurn,
    Execute(usize),
    Deliver(usize),
    Answer(usize),
    Operate,
    Commit,
    Apply,
    BarrierDue,
    /// The barrier's message of a node arrives at the other one.
    Message(usize),
    Stable(usize),
    LateMark(usize),
    MarkOut(usize),
    FinishAlone(usize),
    WriteDown(usize),
    BeginTrace(usize),
    Connect,
    Recover(usize),
    Recovered,
    SendRest(usize),
    /// The primary reads the answer: the place is equal.
    FinishRest(usize),
    MarkIn,
    MarkOther,
    TakeOver(usize),
    Save(usize),
    Cut,
    Kill(usize),
    /// A loss of power, with the unsynced places that stay.
    Power(usize, u8),
    PutBack(usize),
    Force(usize),
}

impl Action {
    pub const fn is_failure(self) -> bool {
        matches!(
            self,
            Self::Cut | Self::Kill(_) | Self::Power(..) | Self::PutBack(_) | Self::Force(_)
        )
    }
}

impl Node {
    fn new(leads: bool) -> Self {
        let names = BarrierNames {
            complete: Some(FIRST),
            reached: Some(FIRST),
        };
        Self {
            role: Role {
                leads,
                generation: u8::from(leads),
                in_sync: leads,
                complete: true,
                rest_since: Some(0),
                copy_of: Some(0),
            },
            memory: [0; PLACES],
            stable: [0; PLACES],
            marks: Marks::default(),
            barriers: BarrierMachine::after_power_loss(names),
            names,
            is_nameless: false,
            trace: None,
            coverage: MarkCoverage::since(FIRST.through),
            waiting: 0,
            late: 0,
            saved: None,
        }
    }

    /// Marks places in the column of an interval.
    pub fn mark(&mut self, interval: Interval, places: u8, breaks: Option<Break>) {
        let before = *self.barriers.columns();
        let column = self.barriers.mark(interval);
        let is_younger = before.youngest(column).is_some_and(|it| it < interval);
        let at = &mut self.marks.columns[column_index(column)];
        if breaks == Some(Break::LaterIntervalClears) && is_younger {
            *at = 0;
        }
        *at |= places;
    }

    /// The marks of all intervals after a base.
    pub fn marks_after(&self, base: Interval) -> u8 {
        let columns = self.barriers.columns().after(base);
        columns.fold(0, |marks, column| {
            marks | self.marks.columns[column_index(column)]
        })
    }

    /// A change that this node makes alone: the mark is on stable storage before.
    pub fn mark_alone(&mut self, places: u8, limits: Limits) {
        let breaks = limits.breaks;
        if breaks == Some(Break::MarkAfterWrite) {
            self.late |= places;
            return;
        }
        self.marks.rest |= places;
        let is_durable = !limits.in_memory() || self.trace.is_some();
        if breaks != Some(Break::MarkUndurableAlone) && is_durable {
            self.marks.durable |= places;
        }
    }

    pub fn restart(&mut self) {
        let names = if self.is_nameless {
            self.barriers.names()
        } else {
            self.names
        };
        self.barriers = self.barriers.clone().restarted(names);
        let from = self.barriers.open();
        if !self.role.leads {
            self.barriers.handle(BarrierEvent::FollowingBegun { from });
        }
    }

    /// A node that serves alone has all of its marks on stable storage, and its names count again.
    pub fn begin_trace(&mut self, breaks: Option<Break>) {
        let columns = if breaks == Some(Break::TraceLacksColumns) {
            0
        } else {
            self.marks_after(Interval::ZERO)
        };
        self.marks.durable = self.marks.rest | columns;
        self.names = self.barriers.names();
        self.trace = Some(self.coverage);
    }

    /// The trace does not count any more.
    pub fn end_trace(&mut self) {
        if self.trace.take().is_some() {
            self.names = BarrierNames::default();
            self.marks.durable = 0;
        }
    }

    /// Before a node serves alone, it removes its names from stable storage, if its marks are in memory only.
    pub fn drop_names(&mut self, limits: Limits) {
        if limits.in_memory() && limits.breaks != Some(Break::NamesOutliveAlone) {
            self.names = BarrierNames::default();
            self.is_nameless = true;
            self.trace = None;
            self.marks.durable = 0;
            if limits.breaks != Some(Break::AttemptOutlivesSync) {
                self.barriers.end_attempt();
            }
        }
    }
}

pub const fn column_index(column: Column) -> usize {
    match column {
        Column::First => 0,
        Column::Second => 1,
    }
}

/// The regions of a set of places.
fn regions(places: u8) -> impl Iterator<Item = FileRegions> {
    let set = (0..PARTS).filter(move |place| places & bit(*place) != 0);
    set.map(|place| FileRegions::of_bytes(place as u64 * REGION_BYTES, REGION_BYTES))
}

impl World {
    pub fn new(limits: Limits) -> Self {
        let mut world = Self {
            limits,
            left: Left {
                failures: limits.failures,
                writes: limits.writes,
                operations: limits.operations,
                barriers: limits.barriers,
            },
            nodes: [Node::new(true), Node::new(false)],
            link: Link::Synced,
            owner: 0,
            announced: AnnouncedRegions::new(ANNOUNCED_MAX),
            announcing: [None; PARTS],
            posted: None,
            told: None,
            writes: [None; PARTS],
            operation: None,
            requests: 0,
            resynced: Resynced::HasBarrier,
            drawn: [0; 3],
            lost: [false; 2],
            lost_since_sync: [false; 2],
            is_old_copy: false,
            is_excused: false,
            broken: None,
            survived: Survived::default(),
            has_resumed: false,
        };
        world.begin_mirroring();
        world.tell_interval();
        world
    }

    pub fn breaks(&self, rule: Break) -> bool {
        self.limits.breaks == Some(rule)
    }

    /// The primary begins to mirror, in an interval of which neither node has heard.
    pub fn begin_mirroring(&mut self) {
        let open = self.nodes.each_ref().map(|node| node.barriers.open());
        let from =
            if self.breaks(Break::NumbersReused) || self.breaks(Break::AnnouncementsOutliveLink) {
                open[self.owner]
            } else {
                open[0].max(open[1]).next()
            };
        for (at, node) in self.nodes.iter_mut().enumerate() {
            if at == self.owner {
                node.coverage.mirror_from(from);
                node.barriers.handle(BarrierEvent::MirroringBegun { from });
            }
            if self.limits.breaks == Some(Break::JoinForgetsOlder) {
                let older = Column::BOTH.map(|it| node.barriers.columns().youngest(it));
                let place = usize::from(older[1] < older[0]);
                node.marks.columns[place] = 0;
            }
        }
    }

    pub fn other(&self) -> usize {
        1 - self.owner
    }

    /// Tells the machine of a node about an event, and carries out the effects.
    pub fn tell(&mut self, at: usize, event: BarrierEvent) {
        for effect in self.nodes[at].barriers.handle(event) {
            match effect {
                // A message may go, be lost or go again at any moment: see `Action::Message`.
                BarrierEffect::Send(_) => {}
                BarrierEffect::Sync(_) => self.sync_early(at),
                BarrierEffect::Drop {
                    through,
                    columns,
                    is_of_this_sync,
                } => {
                    self.drop_marks(at, through, &columns);
                    if is_of_this_sync || self.breaks(Break::LateWordEndsRest) {
                        self.end_rest(at);
                    }
                }
            }
        }
    }

    /// Without the rule, the sync counts before it is made.
    fn sync_early(&mut self, at: usize) {
        let rule = if at == self.owner {
            Break::BarrierBeforeOwnSync
        } else {
            Break::BarrierBeforeSync
        };
        if self.breaks(rule) {
            self.nodes[at].names = self.next_names(at);
            self.tell(at, BarrierEvent::Synced);
        }
    }

    /// The names that a sync notes.
    pub fn next_names(&self, at: usize) -> BarrierNames {
        let node = &self.nodes[at];
        let Some(names) = node.barriers.syncing() else {
            return node.names;
        };
        if self.breaks(Break::AttemptPushesOut) {
            return BarrierNames {
                complete: node.names.reached,
                ..names
            };
        }
        names
    }

    fn drop_marks(&mut self, at: usize, through: Interval, columns: &[Column]) {
        let leads = at == self.owner;
        let drops_all = self.breaks(Break::BarrierDropsNewMarks);
        let node = &mut self.nodes[at];
        for column in columns {
            node.marks.columns[column_index(*column)] = 0;
        }
        if drops_all {
            node.marks.columns = [0; 2];
        }
        node.coverage.drop_through(through);
        if leads {
            self.resynced = Resynced::HasBarrier;
            self.lost = self.lost_since_sync;
            if !self.breaks(Break::AnnouncedForOldInterval) {
                self.announced.forget_through(through);
            }
        }
    }

    /// The rest of the primary is on stable storage, and the secondary needs none.
    fn end_rest(&mut self, at: usize) {
        if self.limits.in_memory() {
            return;
        }
        let marks = &mut self.nodes[at].marks;
        if at != self.owner {
            marks.rest = 0;
        }
        marks.durable = marks.rest;
    }

    pub fn knows(&mut self, interval: Interval, place: usize) -> bool {
        let is_broken = self.breaks(Break::AnnouncedForOldInterval);
        let announced = &mut self.announced;
        let mut known = |interval| {
            regions(bit(place)).all(|regions| announced.holds(interval, Ino::ROOT, &regions))
        };
        known(interval) || is_broken && (1..interval.get()).any(|it| known(Interval::new(it)))
    }

    pub fn learn(&mut self, interval: Interval, places: u8) {
        for regions in regions(places) {
            self.announced.add(interval, Ino::ROOT, &regions);
        }
    }

    /// The message that a node has for the other one.
    pub fn message(&self, at: usize) -> Option<BarrierMessage> {
        let link = self.link != Link::Down;
        self.nodes[at].barriers.outgoing().filter(|_| link)
    }

    /// The places that an announcement about a place names.
    pub const fn announced_with(&self, place: usize) -> u8 {
        if self.limits.ahead && place < PARTS {
            0b11
        } else {
            bit(place)
        }
    }

    pub fn draw(&mut self, what: usize) -> u8 {
        self.drawn[what] += 1;
        self.drawn[what]
    }
}
