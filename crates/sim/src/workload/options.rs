//! The behavior of the clients of a world.

/// The behavior of the clients of a world.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of clients. Each client has at most one operation under way at a time. At least one.
    pub clients: u32,
    /// Number of names that a client uses in each directory of its own. At least one.
    pub own_names: u64,
    /// Number of names that all clients use in the shared directory. At least one.
    pub shared_names: u64,
    /// Share of operations in the shared directory, in percent.
    pub shared_percent: u64,
    /// Largest file, in bytes. At least one block.
    pub file_bytes_max: u64,
    /// Largest write, in bytes. At least one.
    pub write_bytes_max: u64,
    /// Share of writes that are durable, in percent.
    pub durable_percent: u64,
    /// Maximum number of operations that each client requests.
    pub operations_max: u64,
    /// Frequency of each kind of operation.
    pub mix: Mix,
}

/// Frequency of each kind of operation, as shares of the sum.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    /// `write`.
    pub write: u64,
    /// `read`.
    pub read: u64,
    /// `sync`.
    pub sync: u64,
    /// Truncate and allocate, punch, zero.
    pub space: u64,
    /// Create, mknod, symlink, mkdir.
    pub make: u64,
    /// Link: another name for a file.
    pub link: u64,
    /// Unlink and rmdir.
    pub remove: u64,
    /// Rename in all its modes.
    pub rename: u64,
    /// Mode, owner, times.
    pub attributes: u64,
    /// Extended attributes.
    pub xattrs: u64,
    /// Lookup, getattr, readdir, getxattr, readlink.
    pub look: u64,
}

impl Default for Mix {
    fn default() -> Self {
        Self {
            write: 24,
            read: 20,
            sync: 4,
            space: 6,
            make: 12,
            link: 4,
            remove: 6,
            rename: 8,
            attributes: 5,
            xattrs: 5,
            look: 12,
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            clients: 4,
            own_names: 6,
            shared_names: 4,
            shared_percent: 40,
            file_bytes_max: 64 << 10,
            write_bytes_max: 16 << 10,
            durable_percent: 10,
            operations_max: u64::MAX,
            mix: Mix::default(),
        }
    }
}
