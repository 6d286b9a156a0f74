//! The repair of a block that the disk has changed, with a crash at any call of it. No sum vouches for the changed bytes, so
//! the next process can still tell that they are wrong.

use lockstep_fs::paths::content_path;
use lockstep_types::mutants::{Mutant, activate};
use lockstep_types::{MetaOp, Timestamp};
use lockstep_verify::DeepCopy;
use lockstep_verify::own_sums::StoreSums;

use super::*;

/// The size of a block, and of the file: its last block is not whole.
const BLOCK: usize = 4096;
const LENGTH: usize = 2 * BLOCK + 100;
const TIME: Timestamp = Timestamp { secs: 5, nanos: 0 };

/// A disk with a file, whose process has ended. Returns the file and its bytes.
fn disk_with_file() -> (Disk, Ino, Vec<u8>) {
    let disk = made_disk();
    let store = open(&disk, BOOT).unwrap().store;
    store.sums().take_secret(&sum_secret()).unwrap();
    let ino = store.next_ino().unwrap();
    let request = creation(Ino::ROOT, file_name("a"), ino, NodeKind::File);
    let op = MetaOp {
        osn: osn(1),
        time: TIME,
        request,
    };
    store.commit(&op).unwrap();
    let bytes: Vec<u8> = (0..=u8::MAX).cycle().take(LENGTH).collect();
    store.write(ino, 0, &bytes, osn(2), TIME).unwrap();
    store.sync_everything().unwrap();
    drop(store);
    (disk, ino, bytes)
}

/// Heals a changed block, with a crash at each call. Returns the mistake.
fn heal_with_crashes(block: usize) -> Result<(), String> {
    let (base, ino, bytes) = disk_with_file();
    let right: Vec<u8> = bytes
        .iter()
        .copied()
        .skip(block * BLOCK)
        .take(BLOCK)
        .collect();
    let mut whole = right.clone();
    whole.resize(BLOCK, 0);
    let offset = (block * BLOCK) as u64;
    assert!(base.flip_bit(&content_path(ino), offset + 9, 2));
    let counted = base.fork();
    let calls = {
        let store = &open(&counted, BOOT).unwrap().store;
        let sums = &StoreSums::of(store);
        let copy = DeepCopy { store, sums };
        calls_of(&counted, || assert!(copy.heal(ino, offset, &whole).is_ok())).len() as u64
    };
    for nth in 1..=calls {
        for verdict in [
            Verdict::CrashBefore,
            Verdict::CrashAfter,
            Verdict::CrashTorn(0),
        ] {
            let disk = base.fork();
            {
                let store = &open(&disk, BOOT).unwrap().store;
                let sums = &StoreSums::of(store);
                let copy = DeepCopy { store, sums };
                at_call(&disk, nth, verdict);
                drop(copy.heal(ino, offset, &whole));
                disk.observe(None);
            }
            disk.kill();
            let store = &open(&disk, BOOT).unwrap().store;
            let sums = &StoreSums::of(store);
            let copy = DeepCopy { store, sums };
            let now = copy.read(ino, offset, 1).unwrap();
            let is_right = now == whole;
            let vouches = copy.misfits(ino, offset, &now).is_empty();
            if vouches && !is_right {
                return Err(format!(
                    "call {nth}, {verdict:?}: a sum vouches for changed bytes"
                ));
            }
            if !vouches && copy.heal(ino, offset, &whole).is_err() {
                return Err(format!(
                    "call {nth}, {verdict:?}: the block cannot be healed"
                ));
            }
        }
    }
    Ok(())
}

#[test]
fn a_crash_within_a_repair_leaves_a_block_that_can_be_healed() {
    for block in [1, 2] {
        assert_eq!(heal_with_crashes(block), Ok(()), "block {block}");
    }
}

#[test]
fn a_repair_that_notes_a_change_is_found() {
    activate(Some(Mutant::HealAsWrite));
    let found = heal_with_crashes(1);
    activate(None);
    assert!(found.is_err_and(|what| what.contains("vouches")));
}
