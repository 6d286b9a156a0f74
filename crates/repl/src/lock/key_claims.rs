//! The claims on one key: of the operations that hold it, and of those that wait for it.
//!
//! A claim conflicts with an earlier one, or it does not; whether the earlier one holds the key does not matter. So one question
//! is asked: which earlier claim stands in the way? A handful of claims is looked through one by one. More than that are
//! found by their order and by their ranges, so the question costs about the logarithm of their number.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

use smallvec::SmallVec;

use super::mode::{BlockRange, LockMode, OpId};

/// Position in the order of arrival.
pub(super) type Ticket = u64;

/// Most claims that are looked through one by one.
const FEW: usize = 16;

/// A claim of one operation on one key.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyClaim {
    pub op: OpId,
    pub mode: LockMode,
    pub ticket: Ticket,
}

/// See the head of this file.
#[derive(Debug)]
pub(super) enum KeyClaims {
    /// In the order of arrival.
    Few(SmallVec<[KeyClaim; 4]>),
    Many(Box<ClaimIndex>),
}

impl Default for KeyClaims {
    fn default() -> Self {
        Self::Few(SmallVec::new())
    }
}

impl KeyClaims {
    /// Adds a claim, which is later than all others.
    pub fn add(&mut self, claim: KeyClaim) {
        match self {
            Self::Few(claims) if claims.len() < FEW => claims.push(claim),
            Self::Few(claims) => {
                let mut index = ClaimIndex::default();
                claims.iter().for_each(|claim| index.add(*claim));
                index.add(claim);
                *self = Self::Many(Box::new(index));
            }
            Self::Many(index) => index.add(claim),
        }
    }

    /// Removes the claims of an operation.
    pub fn remove(&mut self, op: OpId) {
        match self {
            Self::Few(claims) => claims.retain(|claim| claim.op != op),
            Self::Many(index) => index.remove(op),
        }
    }

    /// A claim before `ticket` that conflicts with `mode`. Of claims of one kind, it is the last: those before it are gone by then,
    /// if they conflict with one another.
    pub fn conflict_before(&self, ticket: Ticket, mode: LockMode) -> Option<OpId> {
        match self {
            Self::Few(claims) => {
                let mut latest_first = claims.iter().rev();
                latest_first
                    .find(|claim| claim.ticket < ticket && claim.mode.conflicts(mode))
                    .map(|claim| claim.op)
            }
            Self::Many(index) => index.conflict_before(ticket, mode),
        }
    }

    /// Number of claims.
    pub fn len(&self) -> usize {
        match self {
            Self::Few(claims) => claims.len(),
            Self::Many(index) => index.claims.len(),
        }
    }
}

/// Many claims on one key.
#[derive(Debug, Default)]
pub(super) struct ClaimIndex {
    tickets: HashMap<OpId, SmallVec<[Ticket; 1]>>,
    claims: BTreeMap<Ticket, (OpId, LockMode)>,
    exclusive: BTreeMap<Ticket, OpId>,
    reads: RangeIndex,
    writes: RangeIndex,
}

impl ClaimIndex {
    fn add(&mut self, claim: KeyClaim) {
        let KeyClaim { op, mode, ticket } = claim;
        self.tickets.entry(op).or_default().push(ticket);
        self.claims.insert(ticket, (op, mode));
        match mode {
            LockMode::Exclusive => drop(self.exclusive.insert(ticket, op)),
            LockMode::Shared => {}
            LockMode::Read(range) => self.reads.add(range, ticket, op),
            LockMode::Write(range) => self.writes.add(range, ticket, op),
        }
    }

    fn remove(&mut self, op: OpId) {
        for ticket in self.tickets.remove(&op).unwrap_or_default() {
            match self.claims.remove(&ticket) {
                Some((_, LockMode::Exclusive)) => drop(self.exclusive.remove(&ticket)),
                Some((_, LockMode::Read(range))) => self.reads.remove(range, ticket),
                Some((_, LockMode::Write(range))) => self.writes.remove(range, ticket),
                Some((_, LockMode::Shared)) | None => {}
            }
        }
    }

    fn conflict_before(&self, ticket: Ticket, mode: LockMode) -> Option<OpId> {
        if mode == LockMode::Exclusive {
            let earlier = self.claims.range(..ticket).next_back();
            return earlier.map(|(_, (op, _))| *op);
        }
        let alone = self.exclusive.range(..ticket).next_back();
        let alone = alone.map(|(_, op)| *op);
        alone.or_else(|| match mode {
            LockMode::Exclusive | LockMode::Shared => None,
            LockMode::Read(range) => self.writes.overlap_before(range, ticket),
            LockMode::Write(range) => {
                let written = self.writes.overlap_before(range, ticket);
                written.or_else(|| self.reads.overlap_before(range, ticket))
            }
        })
    }
}

/// The claim of a range: its start, its end, its ticket.
type RangeKey = (u64, u64, Ticket);

/// Claims of ranges. Each class has ranges of about one length, so that the start of a range tells where it ends.
#[derive(Debug, Default)]
struct RangeIndex {
    /// By the number of bits of the length.
    classes: BTreeMap<u32, BTreeMap<RangeKey, OpId>>,
}

impl RangeIndex {
    fn add(&mut self, range: BlockRange, ticket: Ticket, op: OpId) {
        let class = self.classes.entry(range.length_bits()).or_default();
        class.insert((range.start, range.end, ticket), op);
    }

    fn remove(&mut self, range: BlockRange, ticket: Ticket) {
        let bits = range.length_bits();
        let Some(class) = self.classes.get_mut(&bits) else {
            return;
        };
        class.remove(&(range.start, range.end, ticket));
        if class.is_empty() {
            self.classes.remove(&bits);
        }
    }

    /// A claim before `ticket` that overlaps `range`.
    fn overlap_before(&self, range: BlockRange, ticket: Ticket) -> Option<OpId> {
        // An empty range does not overlap itself.
        let own = range.overlaps(range).then_some(range.length_bits());
        let same = own.and_then(|bits| self.classes.get(&bits));
        let same = same.and_then(|class| latest_before(class, (range.start, range.end, ticket)));
        same.or_else(|| {
            let mut classes = self.classes.iter();
            classes.find_map(|(bits, class)| overlap_in_class(class, *bits, range, ticket))
        })
    }
}

/// The latest claim of one range before a ticket.
fn latest_before(class: &BTreeMap<RangeKey, OpId>, before: RangeKey) -> Option<OpId> {
    let (start, end, _) = before;
    let latest = class.range((start, end, 0)..before).next_back();
    latest.map(|(_, op)| *op)
}

/// Looks at each range once, however many claims the range has.
fn overlap_in_class(
    class: &BTreeMap<RangeKey, OpId>,
    bits: u32,
    range: BlockRange,
    ticket: Ticket,
) -> Option<OpId> {
    let longest = 1_u64.checked_shl(bits).unwrap_or(u64::MAX);
    let mut from = Bound::Included((range.start.saturating_sub(longest), 0, 0));
    loop {
        let (&(start, end, _), _) = class.range((from, Bound::Unbounded)).next()?;
        if start >= range.end {
            return None;
        }
        let overlaps = BlockRange { start, end }.overlaps(range);
        let found = overlaps.then(|| latest_before(class, (start, end, ticket)));
        if let Some(op) = found.flatten() {
            return Some(op);
        }
        from = Bound::Excluded((start, end, Ticket::MAX));
    }
}
