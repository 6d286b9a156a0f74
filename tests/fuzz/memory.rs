//! Counts the memory that this process requests. So a test sees an allocation for bytes that have not arrived, even
//! if the memory is never written.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

static LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);
static PEAK_BYTES: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static LARGEST_BYTES: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator, with counters.
pub struct Counting;

// SAFETY: every call is passed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        taken(layout.size());
        // SAFETY: the caller keeps the same promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        taken(layout.size());
        // SAFETY: the caller keeps the same promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the same promises.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        taken(bytes);
        LIVE_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the same promises.
        unsafe { System.realloc(pointer, layout, bytes) }
    }
}

fn taken(bytes: usize) {
    let live = LIVE_BYTES.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK_BYTES.fetch_max(live, Ordering::Relaxed);
    // A thread that is ending has no such variable any more, and is not measured.
    let _noted = LARGEST_BYTES.try_with(|largest| largest.set(largest.get().max(bytes)));
}

/// The most bytes that this process ever held at once.
pub fn peak_bytes() -> usize {
    PEAK_BYTES.load(Ordering::Relaxed)
}

/// Runs `body` and returns the largest allocation on this thread, in bytes, with the result.
pub fn largest_piece<T>(body: impl FnOnce() -> T) -> (usize, T) {
    LARGEST_BYTES.set(0);
    let given = body();
    (LARGEST_BYTES.get(), given)
}
