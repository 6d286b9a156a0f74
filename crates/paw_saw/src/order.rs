//! The entries of a table in memory, in the order of their OSNs: a doubly linked list laid into
//! one array, with the free places chained beside it.
//!
//! OSNs arrive almost in order, so an insertion, which looks for its place from the newest end,
//! takes a step or two. Taking the oldest takes one. Nothing is allocated after [`Order::new`].
//!
//! Invariants: every place is either on the list or on the chain of free places; along the list
//! OSNs never fall. A stamp is given once, so a stale [`Place`] names nothing.

use lockstep_types::Osn;

use crate::entry::Entry;

/// A place in the table that an insertion was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) index: usize,
    stamp: u64,
}

/// One place: on the list when it has an entry, else on the free chain (which uses `newer`).
struct Node {
    entry: Option<(Entry, u64)>,
    older: Option<usize>,
    newer: Option<usize>,
}

/// All places.
pub(crate) struct Order {
    nodes: Vec<Node>,
    oldest: Option<usize>,
    newest: Option<usize>,
    free: Option<usize>,
    used: usize,
    stamps: u64,
}

impl Order {
    /// `places` places, some of which hold `found`: (place, entry), in the order of OSNs.
    pub(crate) fn new(places: usize, found: &[(usize, Entry)]) -> Self {
        let node = || Node {
            entry: None,
            older: None,
            newer: None,
        };
        let mut order = Self {
            nodes: std::iter::repeat_with(node).take(places).collect(),
            oldest: None,
            newest: None,
            free: None,
            used: 0,
            stamps: 0,
        };
        for &(index, entry) in found {
            order.stamps += 1;
            if let Some(node) = order.nodes.get_mut(index) {
                node.entry = Some((entry, order.stamps));
                order.link(index, order.newest);
                order.used += 1;
            }
        }
        order.chain_free_places();
        order
    }

    /// Places, free or not.
    pub(crate) const fn places(&self) -> usize {
        self.nodes.len()
    }

    /// Entries on the list.
    pub(crate) const fn len(&self) -> usize {
        self.used
    }

    /// Puts an entry into a free place, unless it has one; `None` when there is none. A write that
    /// is sent again after each of many disconnects must not fill the table.
    pub(crate) fn insert(&mut self, entry: Entry) -> Option<Place> {
        let older = self.newest_up_to(entry.osn);
        if let Some(place) = older.and_then(|index| self.place_of(index, entry)) {
            return Some(place);
        }
        let index = self.free?;
        self.stamps += 1;
        let node = self.nodes.get_mut(index)?;
        self.free = node.newer.take();
        node.entry = Some((entry, self.stamps));
        self.link(index, older);
        self.used += 1;
        Some(Place {
            index,
            stamp: self.stamps,
        })
    }

    /// The place at `index`, if it holds just that entry.
    fn place_of(&self, index: usize, entry: Entry) -> Option<Place> {
        let (held, stamp) = self.nodes.get(index)?.entry?;
        (held == entry).then_some(Place { index, stamp })
    }

    /// Takes out what that insertion put there; `false` when it is gone already.
    pub(crate) fn remove(&mut self, place: Place) -> bool {
        let holds = self.nodes.get(place.index).and_then(|node| node.entry);
        let there = holds.is_some_and(|(_, stamp)| stamp == place.stamp);
        if there {
            self.release(place.index);
        }
        there
    }

    /// Takes out the oldest entry if its OSN is below `bound`, and tells its place.
    pub(crate) fn take_oldest_below(&mut self, bound: Osn) -> Option<usize> {
        let index = self.oldest?;
        if self.entry(index)?.osn < bound {
            self.release(index);
            Some(index)
        } else {
            None
        }
    }

    /// Takes out the oldest entry and tells its place.
    pub(crate) fn take_oldest(&mut self) -> Option<usize> {
        let index = self.oldest?;
        self.release(index);
        Some(index)
    }

    /// The entries, oldest first.
    pub(crate) fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        let next = |&index: &usize| self.nodes.get(index).and_then(|node| node.newer);
        std::iter::successors(self.oldest, next).filter_map(|index| self.entry(index))
    }

    fn entry(&self, index: usize) -> Option<Entry> {
        let (entry, _) = self.nodes.get(index)?.entry?;
        Some(entry)
    }

    fn newest_up_to(&self, osn: Osn) -> Option<usize> {
        let older = |&index: &usize| self.nodes.get(index).and_then(|node| node.older);
        std::iter::successors(self.newest, older)
            .find(|&index| self.entry(index).is_some_and(|entry| entry.osn <= osn))
    }

    fn chain_free_places(&mut self) {
        self.free = None;
        for (index, node) in self.nodes.iter_mut().enumerate().rev() {
            if node.entry.is_none() {
                node.newer = self.free.replace(index);
            }
        }
    }

    /// Hangs a node in after `older`, or at the oldest end.
    fn link(&mut self, index: usize, older: Option<usize>) {
        let newer = match older.and_then(|at| self.nodes.get(at)) {
            Some(node) => node.newer,
            None => self.oldest,
        };
        self.join(older, Some(index));
        self.join(Some(index), newer);
    }

    fn release(&mut self, index: usize) {
        let free = self.free;
        let Some(node) = self.nodes.get_mut(index) else {
            return;
        };
        node.entry = None;
        let (older, newer) = (node.older.take(), node.newer.take());
        node.newer = free;
        self.free = Some(index);
        self.used -= 1;
        self.join(older, newer);
    }

    /// Makes two nodes neighbours; `None` is the end of the list on that side.
    fn join(&mut self, older: Option<usize>, newer: Option<usize>) {
        match older.and_then(|at| self.nodes.get_mut(at)) {
            Some(node) => node.newer = newer,
            None => self.oldest = newer,
        }
        match newer.and_then(|at| self.nodes.get_mut(at)) {
            Some(node) => node.older = older,
            None => self.newest = older,
        }
    }
}
