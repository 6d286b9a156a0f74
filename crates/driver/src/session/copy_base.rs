//! The base of a secondary's copy: the part that the copy has in common with the primary's, for a resync of the changes
//! (rule P21).
//!
//! A copy has a base while it differs from a copy that was in sync with it only in the writes that this node names, and in
//! the changes of the primary since. A copy in sync has its present generation as base; a deposed primary that was in
//! sync has the generation in which it last led. A resync of everything, or since a barrier, ends the base, and gives the copy
//! another one with its namespace; a resync of the changes keeps it, so that an interrupted one can be begun again. The barriers
//! of a copy are another kind of base, which a loss of power leaves (docs/protocol/delta.md).
//!
//! Invariant: a base is in `role.json` before the primary hears of it, and as long as it may be told again (rule P24).

use std::sync::Arc;

use lockstep_paw_saw::{InFlightEntry, InFlightTable};
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::{Generation, Osn};
use parking_lot::Mutex;

/// See the head of this file.
pub(crate) struct CopyBase {
    generation: Mutex<Option<Generation>>,
    /// Writes that wait for the primary.
    saw: Arc<InFlightTable>,
    /// The own writes of a deposed primary that may be on this node only.
    paw: Option<InFlightTable>,
}

impl CopyBase {
    /// The base of a session's copy. `paw`: the own writes of a deposed primary.
    pub const fn new(
        generation: Option<Generation>,
        saw: Arc<InFlightTable>,
        paw: Option<InFlightTable>,
    ) -> Self {
        Self {
            generation: Mutex::new(generation),
            saw,
            paw,
        }
    }

    /// The generation in which the copies were equal but for the operations in flight.
    pub fn generation(&self) -> Option<Generation> {
        *self.generation.lock()
    }

    /// The writes that may be on this node only.
    pub fn waiting(&self) -> Vec<InFlightEntry> {
        let mut waiting = self.saw.entries();
        if !is_active(Mutant::RejoinWithoutPaw) {
            waiting.extend(self.own_writes());
        }
        waiting
    }

    fn own_writes(&self) -> Vec<InFlightEntry> {
        self.paw
            .as_ref()
            .map_or_else(Vec::new, InFlightTable::entries)
    }

    /// Whether a deposed primary may have bytes of writes alone.
    pub fn has_own_writes(&self) -> bool {
        !self.own_writes().is_empty()
    }

    /// A recovery is complete: the primary has every write below `below`.
    pub fn recovered(&self, below: Osn) {
        self.saw.remove_below(below);
    }

    /// A resync begins. `keeps_base`: one of the changes since the base. Another one gives the copy a base with its namespace.
    pub fn begin_resync(&self, keeps_base: bool) {
        self.saw.clear();
        if !keeps_base {
            self.forget();
            self.forget_own_writes();
        }
    }

    /// The namespace is equal, in this generation. The primary knows which content is not.
    pub fn image_ended(&self, generation: Generation) {
        self.generation.lock().get_or_insert(generation);
    }

    /// The copy may differ in anything.
    pub fn forget(&self) {
        *self.generation.lock() = None;
    }

    /// The copy is in sync, in this generation.
    pub fn enter_sync(&self, generation: Generation) {
        *self.generation.lock() = Some(generation);
        self.forget_own_writes();
    }

    fn forget_own_writes(&self) {
        if let Some(paw) = &self.paw {
            paw.clear();
        }
    }
}
