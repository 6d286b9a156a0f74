//! The disk of a simulated node: the store on it, its size, and its faults. The file also creates
//! the store with which every schedule begins.

use std::cell::LazyCell;
use std::sync::Arc;

use lockstep_fs::Store;
use lockstep_fs::reserve::RESERVE_FILE;
use lockstep_fs::store::make_delta_table;
use lockstep_intentlog::LogOptions;
use lockstep_types::backing::Backing;
use lockstep_types::{DatastoreUuid, Errno};

use crate::disk::{CallClass, Disk, DiskOptions};
use crate::world::{Hang, ROOM_LIMITS};

/// The UUID of the datastore in every schedule.
pub const UUID: DatastoreUuid = DatastoreUuid::from_bytes([7; 16]);
/// The role file of a store.
pub const ROLE_FILE: &str = "role.json";
/// The size of a log segment. Small, so that the larger schedules fill a segment and continue in the
/// other one. Large enough for the requests of the clients until the next checkpoint.
const SEGMENT_BYTES: u32 = 16 << 10;
/// Slots of the table of the delta. Few, so that schedules meet a full table.
const DELTA_SLOTS: usize = 16;
/// The normal size of a disk, far more than any schedule uses.
const SIZE: DiskOptions = DiskOptions {
    capacity_bytes: 1 << 30,
    capacity_files: 100_000,
};
/// The size of a store when both nodes are in sync for the first time, with its reserve.
const STORE_BYTES: u64 = 2328 << 10;

/// Returns the options of the log in every schedule.
pub fn log_options() -> LogOptions {
    LogOptions {
        segment_bytes: SEGMENT_BYTES.into(),
        // The same in every process, so that the same seed gives the same digest in every process.
        salt: [7; 16],
        ..LogOptions::default()
    }
}

/// Returns a disk with a new store.
fn new_disk() -> Disk {
    let disk = Disk::new(SIZE);
    let backing: Arc<dyn Backing> = disk.mount();
    let made = Store::create(&backing, UUID, &log_options());
    if let Err(error) = made.and_then(|()| make_delta_table(backing.as_ref(), DELTA_SLOTS)) {
        panic!("cannot create a store: {error}");
    }
    disk
}

thread_local! {
    /// A disk with a new store, created once. Every schedule begins with a copy.
    static NEW_DISK: LazyCell<Disk> = const { LazyCell::new(new_disk) };
}

/// The faults of a disk that has not failed.
#[derive(Default)]
struct Trouble {
    /// Nothing more fits on the disk.
    is_full: bool,
    /// The disk does not finish its work.
    hang: Option<Hang>,
    /// The disk has changed some bits.
    is_rotten: bool,
}

/// The disk of a node.
pub struct NodeDisk {
    disk: Disk,
    size: DiskOptions,
    trouble: Trouble,
    /// The node's own disk, while another disk is mounted in its place.
    unmounted: Option<Disk>,
    /// A copy of the disk, which an operator may put back.
    copied: Option<Disk>,
    /// The own disk is mounted again, or a copy of it was put back. The mark of this copy is not valid before both nodes report
    /// that they are in sync.
    pub has_old_copy: bool,
}

impl Drop for NodeDisk {
    fn drop(&mut self) {
        // A process that ended inside redb never releases redb or the file (see `fs/kv/redb.rs`).
        self.disk.discard();
        if let Some(unmounted) = &self.unmounted {
            unmounted.discard();
        }
        if let Some(copied) = &self.copied {
            copied.discard();
        }
    }
}

impl NodeDisk {
    /// Returns a disk with a new store.
    pub fn new() -> Self {
        Self {
            disk: NEW_DISK.with(|disk| disk.fork()),
            size: SIZE,
            trouble: Trouble::default(),
            unmounted: None,
            copied: None,
            has_old_copy: false,
        }
    }

    /// Returns the disk that is mounted.
    pub const fn disk(&self) -> &Disk {
        &self.disk
    }

    /// Mounts another disk. Returns the disk that was mounted before.
    pub const fn replace(&mut self, disk: Disk) -> Disk {
        std::mem::replace(&mut self.disk, disk)
    }

    /// Mounts a disk with a new store. Returns the disk that was mounted before.
    pub fn replace_with_new(&mut self) -> Disk {
        let new = NEW_DISK.with(|disk| disk.fork());
        new.set_capacity(self.size);
        self.replace(new)
    }

    /// Unmounts the node's own disk, which has no fault. A new store appears in its place. The node
    /// must be stopped.
    pub fn unmount(&mut self) -> Result<(), String> {
        let synced = self.disk.mount().sync_all();
        synced.map_err(|error| format!("a disk cannot be unmounted: {error}"))?;
        self.unmounted = Some(self.replace_with_new());
        Ok(())
    }

    /// Mounts the node's own disk again. The node must be stopped.
    pub fn remount(&mut self) {
        if let Some(disk) = self.unmounted.take() {
            let other = self.replace(disk);
            other.discard();
            self.has_old_copy = true;
        }
    }

    /// Makes a copy of the disk.
    pub fn copy(&mut self) {
        self.copied = Some(self.disk.fork());
    }

    /// Returns whether there is a copy of the disk.
    pub const fn is_copied(&self) -> bool {
        self.copied.is_some()
    }

    /// Puts the copy of the disk in the place of the disk. The node must be stopped.
    pub fn put_back(&mut self) {
        if let Some(copied) = self.copied.take() {
            copied.set_capacity(self.size);
            let newer = self.replace(copied);
            newer.discard();
            self.has_old_copy = true;
        }
    }

    /// Returns whether the own disk can be unmounted: one fault at a time is enough.
    pub const fn can_be_unmounted(&self) -> bool {
        let Trouble { is_full, hang, .. } = self.trouble;
        self.unmounted.is_none() && !is_full && hang.is_none()
    }

    /// Returns whether another disk is mounted in the place of the own disk.
    pub const fn is_unmounted(&self) -> bool {
        self.unmounted.is_some()
    }

    /// Makes the next change of the role file fail once.
    pub fn fail_next_role_write(&self) {
        self.disk
            .fail_call_on(ROLE_FILE, CallClass::Write, 1, Errno::NoMemory);
    }

    /// Leaves no room on the disk. `with_reserve`: the reserve is gone too, because other programs
    /// took its room when it was released.
    pub fn fill(&mut self, with_reserve: bool) {
        self.trouble.is_full = true;
        if with_reserve && let Ok(reserve) = self.disk.mount().open(RESERVE_FILE) {
            // A failure here means that the process is dying, which is another fault.
            let _used = reserve.set_len(0);
        }
        self.disk.fill();
    }

    /// Returns whether a full disk without a reserve may keep the node from starting.
    pub fn is_without_room(&self) -> bool {
        let reserve = || self.disk.fork().mount().stat(RESERVE_FILE);
        self.trouble.is_full && reserve().map_or(true, |reserve| reserve.blocks == 0)
    }

    /// Makes the disk hang, or continue.
    pub const fn set_hang(&mut self, hang: Option<Hang>) {
        self.trouble.hang = hang;
    }

    /// Returns the way in which the disk hangs, if it hangs.
    pub const fn hang(&self) -> Option<Hang> {
        self.trouble.hang
    }

    /// Repairs the disk. Returns whether it was full.
    pub fn mend(&mut self) -> bool {
        self.disk.stop_failing();
        self.disk.set_capacity(self.size);
        std::mem::take(&mut self.trouble.is_full)
    }

    /// Shrinks the disk to `bytes` for clients, besides the size of a new store.
    pub fn limit(&mut self, bytes: u64) {
        let size = STORE_BYTES + ROOM_LIMITS.withheld.spare_bytes;
        self.size.capacity_bytes = SIZE.capacity_bytes.min(size.saturating_add(bytes));
        self.disk.set_capacity(self.size);
    }

    /// Gives the disk its normal size again.
    pub fn enlarge(&mut self) {
        self.size = SIZE;
        self.disk.set_capacity(SIZE);
    }

    /// Records that the disk has changed some bits, although no program knows.
    pub const fn set_rotten(&mut self) {
        self.trouble.is_rotten = true;
    }

    /// Returns whether the disk has changed some bits.
    pub const fn is_rotten(&self) -> bool {
        self.trouble.is_rotten
    }
}
