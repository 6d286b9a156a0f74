use std::sync::Barrier;
use std::sync::atomic::AtomicUsize;
use std::thread;

use lockstep_lossy::disk::{CallClass, Disk, DiskOptions};
use lockstep_types::limits::{BLOCK_BYTES, WRITE_BYTES_MAX};

use super::*;
use crate::host::OsHost;

const LIMITS: SpillLimits = SpillLimits {
    memory_bytes: 10,
    file_bytes: 64 << 20,
    spare_bytes: 0,
};
/// More than any disk has.
const NO_DISK: SpillLimits = SpillLimits {
    spare_bytes: u64::MAX,
    ..LIMITS
};
const BLOCK: u64 = BLOCK_BYTES as u64;

fn buffer_on(disk: &Disk, limits: SpillLimits) -> Arc<SpillBuffer> {
    let host = Arc::new(OsHost::start("kept").unwrap());
    Arc::new(SpillBuffer::new(disk.mount(), host, limits, Arc::default()))
}

fn disk() -> Disk {
    Disk::new(DiskOptions {
        capacity_bytes: 64 << 20,
        capacity_files: 100,
    })
}

fn bytes(kept: &Spilled) -> Vec<u8> {
    kept.load().unwrap().to_vec()
}

fn in_file(spill: &Arc<SpillBuffer>, data: &[u8]) -> Arc<Spilled> {
    spill.put_in_file(data).unwrap().unwrap()
}

/// Bytes of the disk that the spill file has.
fn file_bytes(spill: &SpillBuffer) -> u64 {
    spill.file.lock().as_ref().map_or(0, |file| file.bytes())
}

/// Keeps bytes in memory, or waits for room there.
fn keep_or_wait(spill: &Arc<SpillBuffer>, data: &[u8]) -> Result<Arc<Spilled>, Errno> {
    loop {
        let looked = spill.room.round();
        if !spill.is_full() {
            return Ok(spill.put_in_memory(data));
        }
        spill.room.wait(looked)?;
    }
}

#[test]
fn bytes_on_the_disk_come_back_as_they_were() {
    let disk = disk();
    let spill = buffer_on(&disk, LIMITS);
    let here = spill.put_in_memory(&[1; 10]);
    assert!(spill.is_full());
    let there: Vec<_> = (2..9)
        .map(|byte| in_file(&spill, &vec![byte; WRITE_BYTES_MAX]))
        .collect();
    let all = (there.len() * WRITE_BYTES_MAX) as u64;
    let load = SpillLoad {
        memory_bytes: 10,
        begun_bytes: 0,
        file_bytes: all,
        in_file: there.len(),
    };
    assert_eq!(spill.load(), load);
    assert!(disk.files().is_empty(), "the file has no name");
    assert_eq!(bytes(&here), [1; 10]);
    for (kept, byte) in there.iter().zip(2..) {
        assert_eq!(bytes(kept), vec![byte; WRITE_BYTES_MAX]);
        assert_eq!(bytes(kept), vec![byte; WRITE_BYTES_MAX]);
    }
    let load = SpillLoad {
        memory_bytes: 10 + all,
        begun_bytes: all,
        ..SpillLoad::default()
    };
    assert_eq!(spill.load(), load);
    drop((here, there));
    assert_eq!(spill.load(), SpillLoad::default());
    assert!(spill.unused_file().is_some() && spill.unused_file().is_none());
}

#[test]
fn a_write_that_has_begun_is_counted_as_begun() {
    let spill = buffer_on(&disk(), LIMITS);
    let begun = spill.put_begun(&[1; 10]);
    let load = SpillLoad {
        memory_bytes: 10,
        begun_bytes: 10,
        ..SpillLoad::default()
    };
    assert!(spill.is_full() && spill.load() == load && bytes(&begun) == [1; 10]);
    drop(begun);
    assert_eq!(spill.load(), SpillLoad::default());
}

#[test]
fn a_slot_is_used_again_and_the_file_stays_as_long_as_it_is_used() {
    let spill = buffer_on(&disk(), LIMITS);
    let mut kept: Vec<_> = (0..4).map(|byte| in_file(&spill, &[byte; 100])).collect();
    drop(kept.remove(1));
    assert!(spill.unused_file().is_none());
    kept.push(in_file(&spill, &[9; 50]));
    assert_eq!(file_bytes(&spill), 4 * BLOCK);
    let all: Vec<_> = kept.iter().map(|kept| bytes(kept)[0]).collect();
    assert_eq!(all, [0, 2, 3, 9]);
    drop(kept);
    drop(spill.unused_file().unwrap());
    let kept = in_file(&spill, &[5; 100]);
    assert_eq!((file_bytes(&spill), bytes(&kept)), (BLOCK, vec![5; 100]));
}

/// Only a longer file needs space, and then also the space of the content.
#[test]
fn the_file_grows_while_the_content_of_all_that_waits_finds_room_and_slots_are_used_without_asking()
{
    let disk = disk();
    let available = disk.mount().space().unwrap().available_bytes;
    let length = 8 * BLOCK;
    let data = vec![1; usize::try_from(length).unwrap()];
    // Of three writes two are in the file; the content of all three needs space.
    let limits = SpillLimits {
        spare_bytes: available - 5 * length,
        ..LIMITS
    };
    let spill = buffer_on(&disk, limits);
    let here = spill.put_in_memory(&data);
    let first = in_file(&spill, &data);
    let second = in_file(&spill, &data);
    assert!(spill.put_in_file(&data).unwrap().is_none());
    drop(first);
    let ballast = disk.mount().open_or_create("ballast").unwrap();
    let all = disk.mount().space().unwrap().available_bytes;
    ballast.allocate(0, all, false).unwrap();
    assert_eq!(disk.mount().space().unwrap().available_bytes, 0);
    let third = in_file(&spill, &data);
    assert!(spill.put_in_file(&data[..1]).unwrap().is_none());
    assert_eq!((bytes(&second), bytes(&third)), (data.clone(), data));
    drop((here, second, third));
    assert_eq!(spill.load(), SpillLoad::default());
}

#[test]
fn the_file_takes_no_more_than_its_limit_and_the_slot_that_fits_is_used() {
    let limits = SpillLimits {
        file_bytes: 8 * BLOCK,
        ..LIMITS
    };
    let spill = buffer_on(&disk(), limits);
    let blocks = |count: usize| vec![7; count * BLOCK_BYTES];
    let try_keep = |count| spill.put_in_file(&blocks(count)).unwrap();
    let large = try_keep(5).unwrap();
    let small = try_keep(2).unwrap();
    assert!(try_keep(2).is_none());
    assert_eq!(
        file_bytes(&spill),
        7 * BLOCK,
        "one that was refused takes nothing"
    );
    drop((large, small));
    let small = try_keep(1).unwrap();
    assert_eq!(file_bytes(&spill), 7 * BLOCK, "the smaller one");
    let large = try_keep(6).unwrap();
    assert_eq!(file_bytes(&spill), 8 * BLOCK, "the larger one has grown");
    assert!(try_keep(1).is_none());
    assert_eq!((bytes(&small), bytes(&large)), (blocks(1), blocks(6)));
}

#[test]
fn no_wake_up_is_lost() {
    let spill = buffer_on(&disk(), NO_DISK);
    let most = AtomicUsize::new(0);
    let all_at_once = Barrier::new(8);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                all_at_once.wait();
                for _ in 0..500 {
                    let kept = keep_or_wait(&spill, &[7; 10]).unwrap();
                    let now = spill.load().memory_bytes;
                    most.fetch_max(usize::try_from(now).unwrap(), Ordering::SeqCst);
                    drop(kept);
                }
            });
        }
    });
    assert!(most.into_inner() <= 80, "one write more for each thread");
    assert_eq!(spill.load(), SpillLoad::default());
}

/// While memory stays full and the file is at its limit, a free slot lets a thread continue.
#[test]
fn a_free_slot_of_the_file_wakes_a_waiting_thread() {
    let limits = SpillLimits {
        file_bytes: BLOCK,
        ..LIMITS
    };
    let spill = buffer_on(&disk(), limits);
    let _full = spill.put_in_memory(&[0; 10]);
    let keep = || loop {
        let looked = spill.room.round();
        if let Some(kept) = spill.put_in_file(&[7; 10]).unwrap() {
            return kept;
        }
        spill.room.wait(looked).unwrap();
    };
    for is_read in [false, true] {
        let taken = keep();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| bytes(&keep()));
            while !spill.room.has_waiters() {
                assert!(!waiter.is_finished(), "it does not wait");
                thread::yield_now();
            }
            // A read takes the bytes out of the slot before they are dropped.
            let still_kept = is_read.then(|| {
                assert_eq!(bytes(&taken), [7; 10]);
                Arc::clone(&taken)
            });
            drop(taken);
            assert_eq!(waiter.join().unwrap(), [7; 10]);
            drop(still_kept);
        });
    }
}

#[test]
fn the_end_of_waiting_gives_waiting_threads_an_error() {
    let spill = buffer_on(&disk(), NO_DISK);
    let _full = spill.put_in_memory(&[1; 10]);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| keep_or_wait(&spill, &[2; 10]).err());
        let await_waiting = || {
            while !spill.room.has_waiters() {
                assert!(!waiter.is_finished(), "it does not wait");
                thread::yield_now();
            }
        };
        await_waiting();
        // The thread looks again, and still has to wait.
        spill.room.look_again();
        await_waiting();
        spill.room.close();
        assert_eq!(waiter.join().unwrap(), Some(Errno::Io));
    });
    assert!(keep_or_wait(&spill, &[3; 10]).is_err());
}

#[test]
fn bytes_that_cannot_be_read_again_are_lost_for_every_reader() {
    let disk = disk();
    let spill = buffer_on(&disk, LIMITS);
    let kept = in_file(&spill, &[2; 10]);
    disk.fail_calls(CallClass::Read, Errno::Io);
    assert_eq!(kept.load().err(), Some(Errno::Io));
    disk.stop_failing();
    assert_eq!(
        kept.load().err(),
        Some(Errno::Io),
        "one of them has acted on it"
    );
    assert_eq!(spill.load(), SpillLoad::default());
    let other = in_file(&spill, &[3; 10]);
    assert_eq!(bytes(&other), [3; 10]);
    disk.fail_calls(CallClass::Read, Errno::Io);
    assert_eq!(bytes(&other), [3; 10]);
}

#[test]
fn bytes_that_the_disk_has_changed_are_lost() {
    let spill = buffer_on(&disk(), LIMITS);
    let [damaged, sound] = [2, 3].map(|byte| in_file(&spill, &[byte; 10]));
    if let SpilledPlace::File(slot, _) = &*damaged.place.lock() {
        slot.damage();
    }
    for _ in 0..2 {
        assert_eq!(damaged.load().err(), Some(Errno::Io));
    }
    assert_eq!(bytes(&sound), [3; 10]);
}

#[test]
fn bytes_that_the_disk_does_not_take_are_not_kept_there() {
    let disk = disk();
    let spill = buffer_on(&disk, LIMITS);
    for class in [CallClass::Name, CallClass::Write] {
        disk.fail_calls(class, Errno::NoSpace);
        assert!(spill.put_in_file(&[2; 10]).unwrap().is_none());
        disk.stop_failing();
    }
    assert_eq!(
        (spill.load(), file_bytes(&spill)),
        (SpillLoad::default(), 0)
    );
    assert_eq!(bytes(&in_file(&spill, &[2; 10])), [2; 10]);
}

#[test]
fn only_the_files_of_a_previous_process_are_removed() {
    let disk = disk();
    let backing = disk.mount();
    for name in [
        "waiting.0",
        "waiting.17",
        "role.json",
        "content/0/waiting.1",
    ] {
        backing
            .open_or_create(name)
            .unwrap()
            .write_at(0, b"left")
            .unwrap();
    }
    remove_left(backing.as_ref()).unwrap();
    let mut left = disk.files();
    left.sort();
    assert_eq!(left, ["content/0/waiting.1", "role.json"]);
    remove_left(backing.as_ref()).unwrap();
}
