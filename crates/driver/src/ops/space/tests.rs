use lockstep_types::{AllocateMode, FileName, limits};

use super::*;
use crate::DatastoreHandle as Clients;
use crate::client::{FileService, WriteData, WriteOptions};
use crate::open::tests::{Place, make_file};

const fn room(bytes: u64) -> Room {
    Room {
        bytes,
        files: bytes,
    }
}

/// A report of the secondary.
const fn report(there: u64, over: u64, has_all: bool) -> SpaceReport {
    let over = room(over);
    SpaceReport {
        room: room(there),
        asked: ReportContext { over, has_all },
    }
}

/// The known room after the secondary said that it has `there`, with `under_way` in flight.
fn known(there: u64, under_way: u64) -> Known {
    Known {
        under_way: room(under_way),
        report: Some(report(there, 0, true)),
        ..Known::default()
    }
}

#[test]
fn the_smaller_disk_decides() {
    let verdict =
        |wanted, own, there| known(there, 0).verdict(room(wanted), room(own), Source::Report);
    assert_eq!(verdict(10, 10, 10), Verdict::Yes);
    assert_eq!(verdict(10, 9, 10), Verdict::No);
    assert_eq!(verdict(10, 10, 9), Verdict::No);
}

#[test]
fn beside_others_it_is_uncertain() {
    let verdict = |under_way| known(10, under_way).verdict(room(5), room(10), Source::Report);
    assert_eq!(verdict(5), Verdict::Yes);
    assert_eq!(verdict(6), Verdict::Perhaps);
}

#[test]
fn a_change_that_ended_since_the_request_may_be_in_the_word_or_not() {
    let mut known = known(10, 0);
    known.over = room(6);
    let wanted = room(5);
    assert_eq!(
        known.verdict(wanted, Room::ALL, Source::Report),
        Verdict::Perhaps
    );
    known.report = Some(report(10, 6, true));
    assert_eq!(
        known.verdict(wanted, Room::ALL, Source::Report),
        Verdict::Yes
    );
}

#[test]
fn a_secondary_that_is_away_loses_and_gains_what_this_node_does() {
    let mut known = Known::default();
    let verdict = |known: &Known, own| known.verdict(room(5), room(own), Source::Estimate);
    assert_eq!(verdict(&known, 5), Verdict::Yes, "it never was in sync");
    known.in_sync = Some((room(10), room(100)));
    assert_eq!(verdict(&known, 95), Verdict::Yes);
    assert_eq!(verdict(&known, 94), Verdict::No);
    assert_eq!(known.estimate(room(120)), room(30));
    assert_eq!(known.estimate(room(20)), Room::NONE);
}

#[test]
fn before_the_first_word_no_change_is_granted() {
    let known = Known::default();
    assert_eq!(known.source(State::Paused, false), Source::Nowhere);
    assert_eq!(known.source(State::OutOfSync, false), Source::Estimate);
    let verdict = |own| known.verdict(room(5), room(own), Source::Nowhere);
    assert_eq!(verdict(10), Verdict::Perhaps);
    assert_eq!(verdict(4), Verdict::No);
}

#[test]
fn a_charge_lasts_until_the_answer() {
    let ledger = Arc::new(SpaceLedger::default());
    ledger.known.lock().under_way = room(7);
    let charge = Charge(Some((Arc::clone(&ledger), room(7))));
    let at_the_answer = Arc::clone(&ledger);
    let done = charge.until_done(Box::new(move |answer: Result<(), Errno>| {
        assert_eq!(answer, Ok(()));
        assert_eq!(at_the_answer.known.lock().under_way, Room::NONE);
    }));
    assert_eq!(ledger.known.lock().under_way, room(7));
    done(Ok(()));
    assert_eq!(ledger.known.lock().over, room(7));
}

/// The rest of the resync has taken room since.
#[test]
fn a_word_from_before_the_nodes_were_in_sync_says_nothing() {
    let mut known = known(10, 0);
    let synced = |known: &Known| known.source(State::Synced, true);
    assert_eq!(synced(&known), Source::Report);
    assert_eq!(known.source(State::Synced, false), Source::Estimate);
    known.report = Some(report(10, 0, false));
    assert_eq!(synced(&known), Source::Nowhere);
    known.in_sync = Some((room(10), room(10)));
    assert_eq!(synced(&known), Source::Nowhere);
    assert_eq!(known.source(State::ResyncContent, true), Source::Estimate);
}

/// A program that has removed a file may ask for the free space at once.
#[test]
fn the_content_of_removed_files_is_shown_as_free() {
    let own = Space {
        total_bytes: 100,
        free_bytes: 30,
        available_bytes: 20,
        total_files: 100,
        free_files: 10,
    };
    let space = |there, garbage_bytes| shown(own, room(there), garbage_bytes);
    assert_eq!(space(50, 0), own);
    let smaller = Space {
        available_bytes: 5,
        free_files: 5,
        ..own
    };
    assert_eq!(space(5, 0), smaller);
    let (shown, free) = (space(5, 60), 90);
    assert_eq!((shown.available_bytes, shown.free_bytes), (65, free));
    assert_eq!(space(50, 1000).free_bytes, own.total_bytes);
}

/// A process that is killed in the simulator serves no client any more: a request must not keep the datastore.
#[test]
fn an_applicant_keeps_no_datastore() {
    let place = Place::in_sync();
    let datastore = place.start().unwrap();
    let file = make_file(&datastore, "file");
    let space = Arc::clone(&datastore.primary().unwrap().space);
    // No thread decides.
    space.ledger.requests.lock().is_served = true;
    let link = MetaRequest::Link {
        ino: Ino::ROOT,
        parent: Ino::ROOT,
        name: FileName::new(b"name").unwrap(),
    };
    let clients = Clients::new(Arc::clone(&datastore));
    clients.change(link, Box::new(|_| ()));
    let data = WriteData::Borrowed(b"bytes");
    clients.write(file, 0, data, WriteOptions::default(), Box::new(|_| ()));
    drop(clients);
    assert_eq!(space.ledger.requests.lock().waiting.len(), 2);
    let kept = Arc::downgrade(&datastore);
    drop(datastore);
    assert!(kept.upgrade().is_none());
}

/// The operation is refused for its size, not for want of space: `EFBIG`, as on ext4.
#[test]
fn a_reservation_beyond_the_longest_file_needs_no_room() {
    let place = Place::in_sync();
    let datastore = place.start().unwrap();
    let space = Arc::clone(&datastore.primary().unwrap().space);
    let allocate = |length| MetaRequest::Allocate {
        ino: Ino::ROOT,
        offset: limits::FILE_BYTES_MAX - 4096,
        length,
        mode: AllocateMode::AllocateKeepSize,
    };
    let admission = |length| space.admit_request(&allocate(length));
    assert!(matches!(admission(4097), Admission::Granted(_)));
    assert!(matches!(admission(u64::MAX), Admission::Granted(_)));
    assert!(!matches!(admission(4096), Admission::Granted(_)));
}
