//! When the allocator gives memory back to the system after writes have waited.
//!
//! The bytes of an operation that is in flight during a return are freed later, and the allocator keeps them. So another
//! return follows once no operation is in flight.

use std::sync::atomic::{AtomicBool, Ordering};

/// After this many bytes of writes were kept in memory, the allocator gives memory back.
const RETURN_AFTER_BYTES: u64 = 16 << 20;
/// The allocator gives memory back only while fewer operations are in flight.
const FEW_OPERATIONS: usize = 16;

/// Whether a return is due, as one thread asks.
#[derive(Default)]
pub(crate) struct MemoryReturn {
    /// Operations were in flight during the last return.
    is_partial: AtomicBool,
}

impl MemoryReturn {
    /// Whether memory is to be given back now. `kept` counts the bytes kept since this was last so.
    pub fn is_due(&self, kept: u64, operations: impl FnOnce() -> usize) -> bool {
        let is_much = kept >= RETURN_AFTER_BYTES;
        if !is_much && !self.is_partial.load(Ordering::Relaxed) {
            return false;
        }
        let operations = operations();
        let is_due = operations == 0 || is_much && operations < FEW_OPERATIONS;
        if is_due {
            self.is_partial.store(operations > 0, Ordering::Relaxed);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_operations_in_flight_is_given_back_when_they_are_over() {
        let memory = MemoryReturn::default();
        assert!(!memory.is_due(RETURN_AFTER_BYTES, || FEW_OPERATIONS));
        assert!(memory.is_due(RETURN_AFTER_BYTES, || FEW_OPERATIONS - 1));
        assert!(!memory.is_due(0, || 1));
        assert!(memory.is_due(0, || 0));
    }

    #[test]
    fn an_idle_node_gives_memory_back_once() {
        let memory = MemoryReturn::default();
        assert!(!memory.is_due(RETURN_AFTER_BYTES - 1, || 0));
        assert!(memory.is_due(RETURN_AFTER_BYTES, || 0));
        assert!(!memory.is_due(0, || 0));
    }
}
