//! Bounds on the free memory that the allocator of the C library keeps.
//!
//! The allocator has one arena for a few threads. By default it raises the size above which it returns the free end
//! of an arena, up to twice the largest block that was ever freed. That is 32 MiB for each arena once a buffer for
//! requests of the kernel was freed, and `malloc_trim` does not return these ends.

/// Most free bytes at the end of an arena. They exceed every buffer of an operation, so that successive operations
/// find memory.
const ARENA_FREE_BYTES_MAX: i32 = 4 << 20;

/// A larger block, in bytes, has memory of its own, which is returned when the block is freed. No operation needs
/// such a block.
const BLOCK_BYTES_MAX: i32 = 4 << 20;

/// Sets the bounds. To be called before other threads are started.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn bound() {
    // SAFETY: both calls set a number of the allocator.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, ARENA_FREE_BYTES_MAX);
        libc::mallopt(libc::M_MMAP_THRESHOLD, BLOCK_BYTES_MAX);
    }
}

/// Returns free memory between used blocks to the system.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn give_back() {
    // SAFETY: the call takes no pointer, and any thread may make it at any time.
    unsafe { libc::malloc_trim(0) };
}

/// Another allocator has its own rules.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn bound() {}

/// Another allocator has its own rules.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn give_back() {}
