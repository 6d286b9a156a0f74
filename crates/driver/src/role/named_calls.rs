//! The calls of the witness for one question, with the names of the sync that the role machine does not know (rule P17).
//!
//! Each claim says in which sync its node is. So an older copy of a store, which its node has put back, does not lead by the word
//! of the witness while the other node is down.
//!
//! Invariant: the machine sees each record without its name, and each claim names the record that the witness has told.

use lockstep_roles::{Claim, InSyncSet, Member, WitnessError, WitnessRecord};
use lockstep_types::SyncNames;

use super::forced_claim::BoundWitness;

/// See the head of this file.
pub(super) struct NamedCalls<'a> {
    line: &'a BoundWitness,
    /// The names of this node's copy.
    names: SyncNames,
    /// The witness must know the name: an equal record under another name is made again.
    must_know: bool,
    /// The witness has told its record.
    pub has_told: bool,
    /// The record that the witness has told last.
    pub told: Option<WitnessRecord>,
    /// The witness has granted a claim, and does not keep the name of the sync: its version is too old.
    pub forgets_names: bool,
}

impl<'a> NamedCalls<'a> {
    /// The calls for one question.
    pub const fn new(line: &'a BoundWitness, names: SyncNames, must_know: bool) -> Self {
        Self {
            line,
            names,
            must_know,
            has_told: false,
            told: None,
            forgets_names: false,
        }
    }

    /// This node for the witness.
    pub const fn me(&self) -> Member {
        self.line.me
    }

    /// Reads the record, as the machine sees it.
    pub fn read(&mut self) -> Result<Option<WitnessRecord>, WitnessError> {
        self.told = self.line.read()?;
        self.has_told = true;
        Ok(self.seen())
    }

    /// Makes a claim of the machine. Returns the record after the claim, as the machine sees it.
    pub fn claim(&mut self, claim: &Claim) -> Result<Option<WitnessRecord>, WitnessError> {
        let named = Claim {
            expected: claim.expected.and(self.told),
            new: WitnessRecord {
                sync: self.names.last,
                ..claim.new
            },
        };
        self.told = self.line.claim(&named)?;
        self.has_told = true;
        let nameless = WitnessRecord {
            sync: None,
            ..named.new
        };
        self.forgets_names = named.new.sync.is_some() && self.told == Some(nameless);
        Ok(self.seen())
    }

    fn seen(&self) -> Option<WitnessRecord> {
        let told = self.told?;
        let is_other = self.must_know && told.sync != self.names.last;
        Some(WitnessRecord {
            in_sync: if is_other {
                InSyncSet::PrimaryOnly
            } else {
                told.in_sync
            },
            sync: None,
            ..told
        })
    }

    /// Whether this node's copy is older than the one that the witness has heard of.
    pub fn is_older_copy(&self) -> bool {
        self.told.is_some_and(|told| is_older(&self.names, told))
    }
}

/// Whether a copy with these names is older than the one that the record of the witness is about. A new store has no names.
pub(super) fn is_older(names: &SyncNames, known: WitnessRecord) -> bool {
    names.last.is_some() && SyncNames::settled(known.sync).are_unknown_to(names)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use lockstep_roles::Witness;
    use lockstep_types::{Generation, SyncId};
    use parking_lot::Mutex;

    use super::*;

    struct Shelf {
        record: Mutex<Option<WitnessRecord>>,
        /// As an earlier version, which does not know the field.
        forgets_names: bool,
    }

    impl Witness for Shelf {
        fn read(&self, _limit: Duration) -> Result<Option<WitnessRecord>, WitnessError> {
            Ok(*self.record.lock())
        }

        fn claim(
            &self,
            claim: &Claim,
            _limit: Duration,
        ) -> Result<Option<WitnessRecord>, WitnessError> {
            let mut record = self.record.lock();
            *record = claim.apply(*record);
            if self.forgets_names
                && let Some(record) = &mut *record
            {
                record.sync = None;
            }
            Ok(*record)
        }
    }

    fn line(record: Option<WitnessRecord>) -> BoundWitness {
        line_to(record, false)
    }

    fn line_to(record: Option<WitnessRecord>, forgets_names: bool) -> BoundWitness {
        let record = Mutex::new(record);
        BoundWitness {
            witness: Arc::new(Shelf {
                record,
                forgets_names,
            }),
            me: Member::First,
            limit: Duration::from_secs(1),
        }
    }

    fn sync(number: usize) -> Option<SyncId> {
        let next = |last: Option<SyncId>, _| Some(SyncId::next(last, [3; 16]));
        (0..number).fold(None, next)
    }

    fn record(sync: Option<SyncId>) -> WitnessRecord {
        WitnessRecord {
            change: 4,
            generation: Generation::FIRST,
            primary: Member::First,
            in_sync: InSyncSet::Both,
            sync,
        }
    }

    #[test]
    fn a_claim_names_the_sync_and_the_record_that_the_witness_told() {
        let line = line(Some(record(sync(2))));
        let mut calls = NamedCalls::new(&line, SyncNames::settled(sync(3)), true);
        let seen = calls.read().unwrap().unwrap();
        assert_eq!((seen.in_sync, seen.sync), (InSyncSet::PrimaryOnly, None));
        let claim = Claim {
            expected: Some(seen),
            new: WitnessRecord {
                change: 5,
                ..record(None)
            },
        };
        assert_eq!(calls.claim(&claim).unwrap(), Some(claim.new), "granted");
        assert_eq!(calls.told.unwrap().sync, sync(3));
    }

    #[test]
    fn a_witness_that_does_not_keep_the_name_is_noticed() {
        for forgets_names in [false, true] {
            let line = line_to(Some(record(None)), forgets_names);
            let mut calls = NamedCalls::new(&line, SyncNames::settled(sync(3)), true);
            let seen = calls.read().unwrap();
            assert!(!calls.forgets_names, "nothing is claimed yet");
            let new = WitnessRecord {
                change: 5,
                ..record(None)
            };
            let claim = Claim {
                expected: seen,
                new,
            };
            calls.claim(&claim).unwrap();
            assert_eq!(calls.forgets_names, forgets_names);
        }
    }

    #[test]
    fn a_copy_that_the_witness_has_heard_a_later_name_of_is_older() {
        for (own, known, expected) in [
            (2, 3, true),
            (3, 3, false),
            (4, 3, false),
            (0, 3, false),
            (3, 0, false),
        ] {
            let line = line(Some(record(sync(known))));
            let mut calls = NamedCalls::new(&line, SyncNames::settled(sync(own)), false);
            assert!(!calls.is_older_copy(), "nothing is told yet");
            assert_eq!(calls.read().unwrap().unwrap().in_sync, InSyncSet::Both);
            assert_eq!(calls.is_older_copy(), expected, "{own}, {known}");
        }
    }
}
