//! Reserved space before and after a resync: both disks have it. Otherwise a later write could find no space on the
//! secondary alone.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use lockstep_testbed::{Node, Pair};
use rustix::fs::{FallocateFlags, fallocate};

/// Reserved bytes of each file with reserved space.
const RESERVED_BYTES: u64 = 8 << 20;
/// Blocks that a file system may need in addition.
const OWN_BYTES_MAX: u64 = 64 << 10;
const BLOCK_BYTES: usize = 4096;
/// The unit of `st_blocks`.
const SECTOR_BYTES: u64 = 512;

/// Ways to reserve space. Each file takes [`RESERVED_BYTES`] in the end, the last one next to nothing.
const WAYS: [&str; 5] = [
    "unwritten",
    "written within",
    "beyond its end",
    "zeroed",
    "sparse",
];

/// Makes a file of each kind, under names of this series.
fn reserve(mount: &Path, series: &str) -> Vec<Reserved> {
    let make = |way: &'static str| {
        let path = mount.join(format!("{series} {way}"));
        let file = File::create(&path).unwrap();
        let allocate = |flags| fallocate(&file, flags, 0, RESERVED_BYTES).unwrap();
        match way {
            "unwritten" => allocate(FallocateFlags::empty()),
            "written within" => {
                allocate(FallocateFlags::empty());
                file.write_all_at(&[1; BLOCK_BYTES], RESERVED_BYTES / 2)
                    .unwrap();
            }
            "beyond its end" => {
                file.write_all_at(&[1; BLOCK_BYTES], 0).unwrap();
                allocate(FallocateFlags::KEEP_SIZE);
            }
            "zeroed" => {
                file.write_all_at(&[1; BLOCK_BYTES], 0).unwrap();
                allocate(FallocateFlags::ZERO_RANGE);
            }
            _ => {
                file.set_len(RESERVED_BYTES).unwrap();
                file.write_all_at(&[1; BLOCK_BYTES], RESERVED_BYTES / 2)
                    .unwrap();
            }
        }
        let ino = file.metadata().unwrap().ino();
        Reserved { path, ino, way }
    };
    WAYS.map(make).into()
}

/// A file with reserved space.
struct Reserved {
    path: PathBuf,
    ino: u64,
    way: &'static str,
}

impl Reserved {
    /// Checks that the file takes its space on the disk of that node.
    fn check_on(&self, node: &Node) {
        let directories = fs::read_dir(node.store().join("content")).unwrap();
        let name = format!("{:x}", self.ino);
        let mut places = directories.map(|directory| directory.unwrap().path().join(&name));
        let content = places.find_map(|path| fs::metadata(path).ok());
        let took = content.expect("content").blocks() * SECTOR_BYTES;
        let expected = match self.way {
            "sparse" => BLOCK_BYTES as u64,
            _ => RESERVED_BYTES,
        };
        assert!(
            (expected..=expected + OWN_BYTES_MAX).contains(&took),
            "{} takes {took} bytes in {}",
            self.path.display(),
            node.store().display()
        );
    }
}

fn check(pair: &Pair, files: &[Reserved]) {
    for file in files {
        file.check_on(&pair.primary);
        file.check_on(&pair.secondary);
    }
}

/// Checks space that was reserved before a resync and while the secondary was away, then a resync onto a new disk.
pub fn survives_a_resync(pair: &mut Pair) {
    pair.start();
    let mut files = reserve(&pair.mount(), "in sync:");
    check(pair, &files);
    pair.secondary.stop();
    pair.await_state("out of sync");
    files.extend(reserve(&pair.mount(), "alone:"));
    pair.secondary.start();
    pair.await_in_sync();
    check(pair, &files);
    pair.secondary.stop();
    pair.await_state("out of sync");
    fs::remove_dir_all(pair.secondary.store()).unwrap();
    pair.secondary.start();
    pair.await_in_sync();
    check(pair, &files);
    pair.stop();
}
