//! Bounds of the protocol, of the formats on the disk, and of what clients may ask for. Each is enforced
//! where it is named; a bound that concerns one room alone stands at the head of that room.

/// The unit of hash and of copy-on-write.
pub const BLOCK_BYTES: usize = 4096;

/// Longest name of a directory entry (POSIX `NAME_MAX`).
pub const NAME_BYTES_MAX: usize = 255;

/// Longest target of a symbolic link, one less than the kernel's `PATH_MAX`.
pub const SYMLINK_BYTES_MAX: usize = 4095;

/// Largest file: 16 TiB less one block, what ext4 (with its usual 4 KiB blocks) can hold in the file
/// that keeps the content.
pub const FILE_BYTES_MAX: u64 = (16 << 40) - BLOCK_BYTES as u64;

/// Longest name of an extended attribute (the kernel's `XATTR_NAME_MAX`).
pub const XATTR_NAME_BYTES_MAX: usize = 255;

/// Largest value of an extended attribute (the kernel's `XATTR_SIZE_MAX`).
pub const XATTR_VALUE_BYTES_MAX: usize = 64 << 10;

/// Most extended attribute names of one file together (the kernel's `XATTR_LIST_MAX`).
pub const XATTR_LIST_BYTES_MAX: usize = 64 << 10;

/// Most hard links to one file, as ext4.
pub const LINKS_MAX: u32 = 65_000;

/// Largest write in one operation; larger ones arrive split by the kernel.
pub const WRITE_BYTES_MAX: usize = 1 << 20;

/// Largest encoded metadata operation: two names and one extended attribute value with room.
pub const META_OP_BYTES_MAX: usize = XATTR_VALUE_BYTES_MAX + 16 * 1024;

/// Most writes that may wait for the other side at once, per datastore. Bounds the PAW and SAW
/// tables and with them the work of distributed recovery.
pub const WRITES_IN_FLIGHT_MAX: usize = 1024;

/// Most bytes of mirrored operations that are on their way to the other side at once, per datastore; one
/// operation alone may have more. What is admitted can so always be kept in memory until the peer takes it.
pub const BYTES_IN_FLIGHT_MAX: u64 = 16 << 20;

/// Most bytes of writes that cannot begin yet that are kept in memory, per datastore, and one write more for
/// each thread that brings writes. The bytes of others are kept in a file on the disk of the store.
pub const KEPT_BYTES_MAX: u64 = 64 << 20;

/// Most bytes that the file takes of the disk in which the bytes of writes that wait are kept, per datastore. The
/// threads that bring more writes wait.
pub const KEPT_FILE_BYTES_MAX: u64 = 1 << 30;

/// That file grows only while so many bytes stay available on the disk of the store for everything else than the
/// content of the writes that wait.
pub const KEPT_SPARE_BYTES: u64 = 256 << 20;

/// Space on the disk of a store that is kept for Lockstep's own bookkeeping and for deletion (rule P20).
pub const RESERVE_BYTES: u64 = 64 << 20;

/// Bytes that stay available on the disk besides the reserve: what the file system below takes to keep the content
/// of changes that are under way.
pub const SPARE_BYTES: u64 = 16 << 20;

/// Inodes that stay free on the disk for Lockstep's own files.
pub const SPARE_FILES: u64 = 64;

/// While both disks have so many bytes for clients, only reservations of space are counted one by one: far more than
/// can be written between two looks at the disks.
pub const AMPLE_BYTES: u64 = 1 << 30;

/// The same for inodes.
pub const AMPLE_FILES: u64 = 10_000;
