//! The count of operations in a sync (rule P17), in a small table of its own.
//!
//! The table has two slots of 64 bytes: 16 bytes of checksum, then the number of the change, the operations acknowledged and
//! reached, and the name of the sync (its number and 16 random bytes), all little endian. Changes take the slots in turn, so a
//! process that stops in the middle of one leaves the other slot whole: the count before that change.
//!
//! Invariants: the primary counts an operation before it sends the operation, and an answer when it has read the answer. The
//! secondary counts an answer before it gives the answer. So the secondary has counted at least the answers that the primary
//! has, and at most the operations that the primary has sent.
//!
//! A second table has the same, in memory of the machine that no copy of the store holds. It is changed after the first one. So a
//! store whose count is lower than that is an older copy. It also has the name that a primary proposes, once `role.json` has that
//! name and before the secondary hears of it. So a store without that name is an older copy, too.

use std::sync::Arc;

use lockstep_types::backing::BackingTable;
use lockstep_types::{Hash128, SyncCount, SyncId};
use parking_lot::Mutex;

const SLOT_BYTES: usize = 64;
const CHECKSUM_BYTES: usize = 16;
/// Length of the table in bytes.
pub const COUNT_BYTES: usize = 2 * SLOT_BYTES;

/// The count, and the number of its changes.
#[derive(Clone, Copy, Default)]
struct Counted {
    change: u64,
    count: SyncCount,
}

impl Counted {
    /// The place of the slot of this change.
    const fn place(&self) -> usize {
        if self.change % 2 == 1 { SLOT_BYTES } else { 0 }
    }

    fn encode(&self) -> [u8; SLOT_BYTES] {
        let mut slot = [0; SLOT_BYTES];
        let Some(of) = self.count.of else {
            return slot;
        };
        let (number, nonce) = of.to_words();
        let (checksum, body) = slot.split_at_mut(CHECKSUM_BYTES);
        let words = [
            self.change,
            self.count.acknowledged,
            self.count.reached,
            number,
        ];
        let (places, name) = body.split_at_mut(8 * words.len());
        for (place, word) in places.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *place = word.to_le_bytes();
        }
        name.copy_from_slice(&nonce);
        checksum.copy_from_slice(&Hash128::of(body).0);
        slot
    }

    /// The content of a slot; `None` for a slot that is empty, or in the middle of a change.
    fn decode(slot: &[u8]) -> Option<Self> {
        let (checksum, body) = slot.split_at_checked(CHECKSUM_BYTES)?;
        if checksum != Hash128::of(body).0 {
            return None;
        }
        let mut words = body
            .as_chunks::<8>()
            .0
            .iter()
            .map(|word| u64::from_le_bytes(*word));
        let [change, acknowledged, reached, number] =
            [words.next()?, words.next()?, words.next()?, words.next()?];
        let nonce = body.last_chunk::<16>()?;
        Some(Self {
            change,
            count: SyncCount {
                of: Some(SyncId::from_words(number, *nonce)),
                acknowledged,
                reached,
            },
        })
    }
}

/// See the head of this file. Safe to use from many threads at once.
pub struct SyncCounter {
    table: Arc<dyn BackingTable>,
    /// The table outside of the store, if there is one.
    beside: Option<Arc<dyn BackingTable>>,
    counted: Mutex<Counted>,
}

/// The count of a sync that has had no operation.
fn nothing_of(sync: SyncId) -> SyncCount {
    SyncCount {
        of: Some(sync),
        ..SyncCount::default()
    }
}

/// The last count in the bytes of a table; not known if it cannot be read.
pub fn count_in(bytes: &[u8]) -> SyncCount {
    last_in(bytes).count
}

fn last_in(bytes: &[u8]) -> Counted {
    let mut last = Counted::default();
    let mut is_last_lost = false;
    for slot in bytes.chunks(SLOT_BYTES) {
        match Counted::decode(slot) {
            Some(found) if found.change >= last.change => last = found,
            Some(_) => {}
            None => is_last_lost |= slot.iter().any(|&byte| byte != 0),
        }
    }
    // The lost slot may have had the last change. That was an operation more.
    last.count.reached = last.count.reached.saturating_add(is_last_lost.into());
    last
}

impl SyncCounter {
    /// Opens the count that the last process left. A count that cannot be read is not known.
    pub fn open(table: Arc<dyn BackingTable>) -> Self {
        let mut bytes = [0; COUNT_BYTES];
        table.load(0, &mut bytes);
        Self {
            table,
            beside: None,
            counted: Mutex::new(last_in(&bytes)),
        }
    }

    /// Makes a count that is not known, in place of any earlier one.
    pub fn make(table: Arc<dyn BackingTable>) -> Self {
        table.store(0, &[0; COUNT_BYTES]);
        Self {
            table,
            beside: None,
            counted: Mutex::default(),
        }
    }

    /// Keeps the count in a table outside of the store, too, in place of the count of that table.
    #[must_use]
    pub fn kept_beside(self, beside: Arc<dyn BackingTable>) -> Self {
        let counted = *self.counted.lock();
        beside.store(0, &[0; COUNT_BYTES]);
        beside.store(counted.place(), &counted.encode());
        Self {
            beside: Some(beside),
            ..self
        }
    }

    /// The table outside of the store, if there is one.
    pub fn beside(&self) -> Option<&dyn BackingTable> {
        self.beside.as_deref()
    }

    /// The count of the moment.
    pub fn count(&self) -> SyncCount {
        self.counted.lock().count
    }

    /// A sync begins.
    pub fn begin(&self, sync: SyncId) {
        self.change(|count| *count = nothing_of(sync));
    }

    /// Primary: a name is about to be proposed, which is durable in the store. The secondary may go on under that name, although
    /// this node never reads the answer. The next change of the count takes the same place.
    pub fn note_proposed(&self, sync: SyncId) {
        let counted = self.counted.lock();
        let proposed = Counted {
            change: counted.change.wrapping_add(1),
            count: nothing_of(sync),
        };
        if let Some(beside) = &self.beside {
            beside.store(proposed.place(), &proposed.encode());
        }
    }

    /// Primary: an operation is about to be sent.
    pub fn note_sent(&self) {
        self.change(|count| count.reached = count.reached.saturating_add(1));
    }

    /// Primary: the secondary has answered an operation.
    pub fn note_acknowledged(&self) {
        self.change(|count| count.acknowledged = count.acknowledged.saturating_add(1));
    }

    /// Secondary: an operation of the present sync is about to be answered.
    pub fn note_answered_now(&self) {
        self.change(add_answer);
    }

    /// Secondary: an operation is about to be answered that came in the sync `of`. An answer that is late, because a flush has
    /// outlived the sync, counts nothing in a later one: by then this node may be the primary.
    pub fn note_answered(&self, of: Option<SyncId>) {
        self.change(|count| {
            if count.of == of {
                add_answer(count);
            }
        });
    }

    /// Changes a count that is known, or begins one.
    fn change(&self, change: impl FnOnce(&mut SyncCount)) {
        let mut counted = self.counted.lock();
        change(&mut counted.count);
        if counted.count.of.is_none() {
            counted.count = SyncCount::default();
            return;
        }
        counted.change = counted.change.wrapping_add(1);
        let (at, slot) = (counted.place(), counted.encode());
        self.table.store(at, &slot);
        if let Some(beside) = &self.beside {
            beside.store(at, &slot);
        }
    }
}

const fn add_answer(count: &mut SyncCount) {
    count.acknowledged = count.acknowledged.saturating_add(1);
    count.reached = count.acknowledged;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Memory(Mutex<Vec<u8>>);

    impl BackingTable for Memory {
        fn len(&self) -> usize {
            COUNT_BYTES
        }

        fn load(&self, offset: usize, into: &mut [u8]) {
            let mut bytes = self.0.lock();
            bytes.resize(COUNT_BYTES, 0);
            into.copy_from_slice(&bytes[offset..offset + into.len()]);
        }

        fn store(&self, offset: usize, data: &[u8]) {
            let mut bytes = self.0.lock();
            bytes.resize(COUNT_BYTES, 0);
            bytes[offset..offset + data.len()].copy_from_slice(data);
        }
    }

    #[test]
    fn a_count_outlives_its_process_and_a_change_in_its_middle() {
        let memory = Arc::new(Memory::default());
        let table = || -> Arc<dyn BackingTable> { Arc::clone(&memory) as _ };
        let counter = SyncCounter::make(table());
        counter.note_sent();
        assert_eq!(counter.count(), SyncCount::default(), "no sync has begun");
        let sync = SyncId::next(None, [5; 16]);
        counter.begin(sync);
        counter.note_sent();
        counter.note_sent();
        let before = counter.count();
        counter.note_acknowledged();
        let after = SyncCount {
            of: Some(sync),
            acknowledged: 1,
            reached: 2,
        };
        assert_eq!(counter.count(), after);
        assert_eq!(SyncCounter::open(table()).count(), after);
        let whole = memory.0.lock().clone();
        for at in 0..COUNT_BYTES {
            memory.0.lock().clone_from(&whole);
            memory.0.lock()[at] ^= 1;
            let found = SyncCounter::open(table()).count();
            let widened = SyncCount {
                reached: 3,
                ..before
            };
            let expected = [
                widened,
                SyncCount {
                    reached: 3,
                    ..after
                },
            ];
            assert!(expected.contains(&found), "byte {at}: {found:?}");
        }
        memory.0.lock().fill(0);
        assert_eq!(SyncCounter::open(table()).count(), SyncCount::default());
    }

    /// A flush on the secondary outlives a takeover and the begin of the next sync.
    #[test]
    fn a_late_answer_counts_nothing_in_a_later_sync() {
        let counter = SyncCounter::make(Arc::new(Memory::default()));
        let first = SyncId::next(None, [5; 16]);
        counter.begin(first);
        let received_in = counter.count().of;
        counter.begin(SyncId::next(Some(first), [6; 16]));
        counter.note_sent();
        counter.note_sent();
        counter.note_answered(received_in);
        let count = counter.count();
        assert_eq!((count.acknowledged, count.reached), (0, 2));
    }

    fn count_of(table: &dyn BackingTable) -> SyncCount {
        let mut bytes = [0; COUNT_BYTES];
        table.load(0, &mut bytes);
        count_in(&bytes)
    }

    /// The secondary may have taken the name when this node stops, and an older copy may be put back.
    #[test]
    fn a_proposed_name_is_outside_of_the_store_before_the_answer() {
        let [inside, outside] = [(); 2].map(|()| Arc::new(Memory::default()));
        let tables: [Arc<dyn BackingTable>; 2] = [inside.clone(), outside.clone()];
        let [table, beside] = tables;
        let counter = SyncCounter::make(table).kept_beside(beside);
        let last = SyncId::next(None, [5; 16]);
        counter.begin(last);
        counter.note_answered_now();
        let before = counter.count();
        let proposed = SyncId::next(Some(last), [6; 16]);
        counter.note_proposed(proposed);
        assert_eq!(count_of(&*outside).of, Some(proposed));
        assert_eq!(counter.count(), before);
        assert_eq!(count_of(&*inside), before);
        counter.begin(proposed);
        counter.note_sent();
        assert_eq!(counter.count().of, Some(proposed));
        assert_eq!(count_of(&*outside), counter.count());
        assert_eq!(count_of(&*inside), counter.count());
    }

    #[test]
    fn the_table_outside_of_the_store_has_the_same_count() {
        let [inside, outside] = [(); 2].map(|()| Arc::new(Memory::default()));
        let tables = || -> [Arc<dyn BackingTable>; 2] { [inside.clone(), outside.clone()] };
        let [table, beside] = tables();
        let counter = SyncCounter::make(table).kept_beside(beside);
        counter.begin(SyncId::next(None, [5; 16]));
        counter.note_answered_now();
        counter.note_answered_now();
        assert_eq!(counter.count().acknowledged, 2);
        assert_eq!(count_of(&*outside), counter.count());
        outside.0.lock().fill(7);
        let [table, beside] = tables();
        let again = SyncCounter::open(table).kept_beside(beside);
        assert_eq!(count_of(&*outside), again.count());
        again.note_answered_now();
        assert_eq!(count_of(&*outside).acknowledged, 3);
        assert_eq!(count_of(&*inside), count_of(&*outside));
    }

    #[test]
    fn a_secondary_has_reached_what_it_has_answered() {
        let counter = SyncCounter::make(Arc::new(Memory::default()));
        counter.begin(SyncId::next(None, [5; 16]));
        counter.note_answered_now();
        counter.note_answered(counter.count().of);
        let count = counter.count();
        assert_eq!((count.acknowledged, count.reached), (2, 2));
    }
}
