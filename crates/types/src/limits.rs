//! Bounds of the protocol, of the on-disk formats, and of clients' requests. The code that names a bound enforces it. A
//! bound that concerns one module alone stands at the head of that module.

/// The unit of hash and of copy-on-write.
pub const BLOCK_BYTES: usize = 4096;

/// Longest name of a directory entry (POSIX `NAME_MAX`).
pub const NAME_BYTES_MAX: usize = 255;

/// Longest target of a symbolic link, one less than the kernel's `PATH_MAX`.
pub const SYMLINK_BYTES_MAX: usize = 4095;

/// Largest file: 16 TiB less one block. Ext4 with its usual 4 KiB blocks holds no larger file of content.
pub const FILE_BYTES_MAX: u64 = (16 << 40) - BLOCK_BYTES as u64;

/// Longest name of an extended attribute (the kernel's `XATTR_NAME_MAX`).
pub const XATTR_NAME_BYTES_MAX: usize = 255;

/// Largest value of an extended attribute (the kernel's `XATTR_SIZE_MAX`).
pub const XATTR_VALUE_BYTES_MAX: usize = 64 << 10;

/// Largest sum of the extended attribute names of one file (the kernel's `XATTR_LIST_MAX`).
pub const XATTR_LIST_BYTES_MAX: usize = 64 << 10;

/// Most hard links to one file: the bound of ext4.
pub const LINKS_MAX: u32 = 65_000;

/// Largest write in one operation; the kernel splits larger writes.
pub const WRITE_BYTES_MAX: usize = 1 << 20;

/// Largest encoded metadata operation: two names and one extended attribute value, with some bytes to spare.
pub const META_OP_BYTES_MAX: usize = XATTR_VALUE_BYTES_MAX + 16 * 1024;

/// Most writes that may wait for the other side at once, per datastore. Bounds the PAW and SAW tables, and so the work
/// of distributed recovery.
pub const WRITES_IN_FLIGHT_MAX: usize = 1024;

/// Most bytes of mirrored operations that are on their way to the other side at once, per datastore; one operation
/// alone may have more. The bound lets memory hold every admitted operation until the peer takes it.
pub const BYTES_IN_FLIGHT_MAX: u64 = 16 << 20;

/// Most inodes that one operation frees.
pub const REAPED_MAX: usize = 128;

/// Most inodes in the trash of a datastore, after a look of the primary. A look comes every two seconds.
pub const TRASH_INODES_MAX: usize = 500_000;

/// Most snapshots of a datastore, those of one node's own copy excluded.
pub const SNAPSHOTS_MAX: usize = 4096;

/// Most holds on one snapshot.
pub const SNAPSHOT_HOLDS_MAX: usize = 16;

/// Longest time for which changes of clients wait for a snapshot to be numbered, in milliseconds (rule P35).
pub const SNAPSHOT_WAIT_MS: u64 = 1000;

/// Most bytes in memory of writes that cannot begin yet, per datastore; each thread that submits writes may add one
/// write. The bytes of further writes are kept in a file on the store's disk.
pub const SPILL_MEMORY_BYTES_MAX: u64 = 64 << 20;

/// Most bytes of disk space for the file that keeps the bytes of waiting writes, per datastore. Threads that submit
/// more writes wait.
pub const SPILL_FILE_BYTES_MAX: u64 = 1 << 30;

/// The file of the waiting writes grows only while so many bytes stay available on the store's disk, beyond the bytes
/// that the content of the waiting writes needs.
pub const SPILL_SPARE_BYTES: u64 = 256 << 20;

/// Space that Lockstep reserves on a store's disk for its own bookkeeping and for deletion (rule P20).
pub const RESERVE_BYTES: u64 = 64 << 20;

/// Bytes that stay available on the disk besides the reserve. The file system below needs them for the content of
/// changes in progress.
pub const SPARE_BYTES: u64 = 16 << 20;

/// Inodes that stay free on the disk for Lockstep's own files.
pub const SPARE_FILES: u64 = 64;

/// While both disks have so many bytes for clients, only reservations of space are counted one by one. Clients cannot
/// write that much between two checks of the disks.
pub const AMPLE_BYTES: u64 = 1 << 30;

/// The same threshold for inodes.
pub const AMPLE_FILES: u64 = 10_000;
