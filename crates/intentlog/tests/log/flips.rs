//! Damage: flipped bytes, cut files, foreign files. The log never returns a wrong record, never panics, and
//! leaves a refused file unchanged.

use lockstep_intentlog::{LogError, LogOptions};
use lockstep_lossy::disk::Disk;

use crate::{Found, new_log, open, options, read, record};

const SEGMENT_BYTES: u64 = 8192;
const EVEN: &str = "meta/log/intent.0";
const ODD: &str = "meta/log/intent.1";

/// A log whose records fill parts of both segments. All records but the last two are synced.
fn log_in_both_segments() -> (Disk, Found) {
    let (disk, log) = new_log(SEGMENT_BYTES);
    let mut records: Found = (0..78)
        .map(|number| (log.append(&record(number)).unwrap(), record(number)))
        .collect();
    log.sync(log.tail()).unwrap();
    for number in 78..80 {
        records.push((log.append(&record(number)).unwrap(), record(number)));
    }
    (disk, records)
}

/// The byte ranges of all frames in a file, by the lengths in their headers.
fn frames(disk: &Disk, path: &str) -> Vec<(usize, usize)> {
    let bytes = disk.read_all(path).unwrap();
    let mut frames = Vec::new();
    let mut at = 4096;
    while bytes
        .get(at + 36)
        .is_some_and(|&kind| kind != 0 && kind != 255)
    {
        let payload = u32::from_le_bytes(bytes[at + 32..at + 36].try_into().unwrap());
        let end = at + (40 + payload as usize).next_multiple_of(8);
        frames.push((at, end));
        at = end;
    }
    frames
}

/// A disk of its own with one changed file.
fn edited(disk: &Disk, path: &str, edit: impl FnOnce(&mut Vec<u8>)) -> Disk {
    let copy = disk.fork();
    copy.edit(path, edit).unwrap();
    copy
}

fn flipped(disk: &Disk, path: &str, at: usize, mask: u8) -> Disk {
    edited(disk, path, |bytes| bytes[at] ^= mask)
}

fn assert_refused(disk: &Disk, what: &str) -> LogError {
    let before = disk.digest();
    let Err(error) = open(disk, &options(SEGMENT_BYTES)) else {
        panic!("{what} was not noticed");
    };
    assert_eq!(disk.digest(), before, "{what}: nothing is changed");
    assert!(read(disk, &options(SEGMENT_BYTES)).is_err());
    error
}

#[test]
fn every_flipped_byte_of_the_synced_part_is_damage() {
    let (disk, records) = log_in_both_segments();
    let (mut even, odd) = (frames(&disk, EVEN), frames(&disk, ODD));
    // One file begins with the frame of an opening, the other holds records alone.
    assert_eq!(even.len() + odd.len(), records.len() + 1);
    assert!(odd.len() > 3);
    let unsynced = odd.len() - 2;
    let synced_odd = odd.iter().take(unsynced).map(|frame| (ODD, *frame));
    let synced = even.drain(..).map(|frame| (EVEN, frame)).chain(synced_odd);
    for (path, (start, end)) in synced {
        for at in start..end {
            let error = assert_refused(&flipped(&disk, path, at, 0x21), "a flip");
            assert!(
                matches!(error, LogError::Damaged { .. }),
                "{path} {at}: {error}"
            );
        }
    }
}

#[test]
fn a_flip_in_the_unsynced_part_ends_the_log_there() {
    let (disk, records) = log_in_both_segments();
    let odd = frames(&disk, ODD);
    for (back, (start, end)) in odd.iter().rev().take(2).enumerate() {
        for at in *start..*end {
            let found = read(&flipped(&disk, ODD, at, 0x80), &options(SEGMENT_BYTES)).unwrap();
            assert_eq!(found, records[..records.len() - 1 - back]);
        }
    }
}

/// If no power was lost, a damaged record before the last one cannot be a torn tail.
#[test]
fn a_flip_before_the_last_record_of_a_whole_log_is_damage() {
    let (disk, records) = log_in_both_segments();
    let whole = LogOptions {
        is_whole: true,
        ..options(SEGMENT_BYTES)
    };
    assert_eq!(read(&disk, &whole).unwrap(), records);
    let odd = frames(&disk, ODD);
    let [.., (start, end), (last, last_end)] = odd[..] else {
        panic!("two records are not synced");
    };
    for at in start..end {
        let damaged = flipped(&disk, ODD, at, 0x80);
        let error = read(&damaged, &whole).unwrap_err();
        assert!(error.to_string().contains("appended behind it"), "{error}");
        assert!(open(&damaged, &whole).is_err());
    }
    // A killed process may have written the last record in part.
    for at in last..last_end {
        let found = read(&flipped(&disk, ODD, at, 0x80), &whole).unwrap();
        assert_eq!(found, records[..records.len() - 1]);
    }
}

#[test]
fn no_flip_anywhere_gives_a_wrong_record() {
    let (disk, records) = log_in_both_segments();
    for path in [EVEN, ODD] {
        for at in 0..usize::try_from(SEGMENT_BYTES).unwrap() {
            for mask in [0x01, 0xff] {
                if let Ok(found) = read(&flipped(&disk, path, at, mask), &options(SEGMENT_BYTES)) {
                    assert_eq!(found, records[..found.len()]);
                }
            }
        }
    }
}

#[test]
fn the_last_sync_is_known_after_a_stop_of_the_process() {
    let (disk, log) = new_log(SEGMENT_BYTES);
    let position = log.append(&record(1)).unwrap();
    log.sync(position).unwrap();
    let (start, _) = frames(&disk, EVEN)[1];
    let error = assert_refused(&flipped(&disk, EVEN, start, 1), "a flip in the last record");
    assert!(error.to_string().contains("damaged at position"), "{error}");
}

#[test]
fn a_flipped_header_is_refused() {
    let (disk, _) = log_in_both_segments();
    // The first file has one header. The second file has an older header too, which tells that the file is a log.
    for path in [EVEN, ODD] {
        for at in 0..88 {
            let place = 2048 + at;
            let error = assert_refused(&flipped(&disk, path, place, 0x40), "a flipped header");
            let named = if path == EVEN && at < 8 {
                matches!(error, LogError::NotALog { .. })
            } else {
                matches!(error, LogError::Damaged { .. })
            };
            assert!(named, "{path} {at}: {error}");
        }
    }
}

#[test]
fn a_cut_file_is_refused() {
    let (disk, _) = log_in_both_segments();
    for path in [EVEN, ODD] {
        for length in (0..8192).step_by(61).chain([8191, 4096, 88, 87, 8, 0]) {
            let cut = edited(&disk, path, |bytes| bytes.truncate(length));
            let error = assert_refused(&cut, "a cut file");
            assert!(
                matches!(error, LogError::Truncated { .. }),
                "{length}: {error}"
            );
        }
    }
}

#[test]
fn newer_foreign_and_mixed_files_are_refused() {
    let (disk, _) = log_in_both_segments();
    let newer = edited(&disk, EVEN, |bytes| {
        bytes[2056..2060].copy_from_slice(&2u32.to_le_bytes());
        bytes[2060..2064].copy_from_slice(&(!2u32).to_le_bytes());
    });
    let error = assert_refused(&newer, "a newer format");
    assert!(matches!(
        error,
        LogError::NewerFormat {
            found: 2,
            supported: 1,
            ..
        }
    ));

    let foreign = edited(&disk, ODD, |bytes| bytes.fill(b'x'));
    let error = assert_refused(&foreign, "a foreign file");
    assert!(matches!(error, LogError::NotALog { .. }));

    let mixed = disk.fork();
    mixed.put(EVEN, &disk.read_all(ODD).unwrap()).unwrap();
    mixed.put(ODD, &disk.read_all(EVEN).unwrap()).unwrap();
    let error = assert_refused(&mixed, "exchanged files");
    assert!(matches!(error, LogError::Damaged { .. }));
}
