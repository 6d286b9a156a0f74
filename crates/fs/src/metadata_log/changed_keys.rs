//! The keys of records that metadata operations have changed since a change feed began.
//!
//! Only the newest feed counts: an older one finds no keys.

use std::collections::BTreeSet;

use lockstep_types::mutants::{Mutant, is_active};

use crate::namespace::keys;

/// Keys of replicated records that were changed and not taken yet.
#[derive(Default)]
pub struct ChangedKeys {
    /// Number of the newest feed.
    follower: u64,
    /// `None` while no feed follows.
    keys: Option<BTreeSet<Vec<u8>>>,
    /// More keys than this are too many for the feed.
    limit: usize,
}

impl ChangedKeys {
    /// Whether a feed follows.
    pub fn is_followed(&self) -> bool {
        self.keys.is_some() && !is_active(Mutant::ForgetChange)
    }

    /// These records were changed.
    pub fn note(&mut self, changed: Vec<Vec<u8>>) {
        if let Some(keys) = &mut self.keys {
            keys.extend(changed.into_iter().filter(|key| keys::is_replicated(key)));
        }
    }

    /// Whether more keys wait than the feed accepts.
    pub fn exceed_limit(&self) -> bool {
        let keys = self.keys.as_ref();
        keys.is_some_and(|keys| keys.len() > self.limit)
    }

    /// A new feed begins to follow. Returns its number.
    pub fn follow(&mut self, limit: usize) -> u64 {
        self.follower += 1;
        self.keys = Some(BTreeSet::new());
        self.limit = limit;
        self.follower
    }

    /// Sets the limit of a feed.
    pub fn set_limit(&mut self, follower: u64, limit: usize) {
        if self.follower == follower {
            self.limit = limit;
        }
    }

    /// The keys of a feed, if no newer feed follows.
    pub fn keys_of(&mut self, follower: u64) -> Option<&mut BTreeSet<Vec<u8>>> {
        let keys = self.keys.as_mut();
        keys.filter(|_| self.follower == follower)
    }

    /// A feed ends.
    pub fn end(&mut self, follower: u64) {
        if self.follower == follower {
            self.keys = None;
        }
    }
}
