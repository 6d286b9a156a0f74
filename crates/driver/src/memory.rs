//! How much free memory the allocator of the C library may keep.
//!
//! It keeps an arena for each few threads. By itself it raises the limit from which on it gives back the free end
//! of an arena, up to twice the largest block that was ever freed: that is 32 MiB for each arena once a buffer for
//! requests of the kernel was freed, and `malloc_trim` leaves these ends alone.

/// An arena keeps no more than this free at its end, in bytes. More than any buffer of an operation needs, so that
/// one operation after the other finds memory that is there.
const ARENA_FREE_BYTES_MAX: i32 = 4 << 20;

/// A block of more bytes is memory of its own, which is given back when it is freed. No operation needs one.
const BLOCK_BYTES_MAX: i32 = 4 << 20;

/// Bounds what the allocator keeps. To be called before other threads are started.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn bound() {
    // SAFETY: these set two numbers of the allocator.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, ARENA_FREE_BYTES_MAX);
        libc::mallopt(libc::M_MMAP_THRESHOLD, BLOCK_BYTES_MAX);
    }
}

/// Gives free memory between what is in use back to the system.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn give_back() {
    // SAFETY: it takes no pointer and may be called at any time, from any thread.
    unsafe { libc::malloc_trim(0) };
}

/// Another allocator has its own rules.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn bound() {}

/// Another allocator has its own rules.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn give_back() {}
