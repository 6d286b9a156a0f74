//! Stores to a mapping, while other pages of the file are read by a node that gives its role away.

use std::fs;
use std::sync::Arc;
use std::thread;

use lockstep_driver::client::Standing;
use lockstep_types::settings::Standby;
use memmap2::{Advice, MmapMut};
use rustix::io::Errno;

use crate::gated::Gated;
use crate::mapping_child::{MappingChild, second, stored};
use crate::mounted::Fixture;
use crate::{OtherNode, content_of, end, errno, mount, program};

const PAGE: usize = 4096;

/// Pages of the file `g`.
const PAGES: usize = 100;
/// The pages to which the child stores before the node gives its role away. The others are not in the cache.
const STORED: [usize; 4] = [0, 11, 55, 99];

fn start(child: &str, mount: &Fixture) -> MappingChild {
    let make = || fs::write(mount.path("g"), vec![b'a'; PAGE * PAGES]).unwrap();
    let child = MappingChild::start_after(child, mount, make);
    child.signals.await_one("stored");
    child
}

/// Stores to the pages of the child.
fn store(shared: &mut MmapMut, byte: u8) {
    for page in STORED {
        shared[page * PAGE] = byte;
    }
}

/// The other node finds the stores. Then this node serves again, and the program goes on.
fn assert_nothing_lost(mount: &Fixture, service: &Gated, child: MappingChild) {
    let found = content_of(mount, "g");
    for page in STORED {
        assert_eq!(found[page * PAGE], b'm', "page {page}");
    }
    OtherNode(mount).write("g", 1, b"other");
    service.stand(Standing::Serving);
    child.expect_success();
    let found = content_of(mount, "g");
    assert_eq!(&found[..7], b"nothera");
    for page in STORED {
        assert_eq!(found[page * PAGE], b'n', "page {page}");
    }
}

#[test]
fn pages_beside_one_that_is_being_read_are_written_back() {
    let Some((mount, service)) = mount(Standby::Wait) else {
        return;
    };
    let child = start("parked_pages::child_reads_pages", &mount);
    service.stand(Standing::Retiring);
    child.signals.give("read");
    service.await_refused_programs(PAGES - STORED.len());
    service.retire();
    assert_nothing_lost(&mount, &service, child);
}

/// The drop has begun when the reads come.
#[test]
fn pages_beside_one_that_is_read_during_the_drop_are_written_back() {
    let Some((mount, service)) = mount(Standby::Wait) else {
        return;
    };
    let child = start("parked_pages::child_reads_pages", &mount);
    service.hold_writes();
    let own = Arc::clone(&service);
    let retiring = program(move || own.retire());
    service.await_held_writes(1);
    child.signals.give("read");
    service.await_refused_programs(PAGES - STORED.len());
    service.resume_writes();
    end(retiring);
    assert_nothing_lost(&mount, &service, child);
}

/// Each thread reads a page of its own.
#[test]
#[ignore = "the child of pages_beside_one_that_is_being_read_are_written_back"]
fn child_reads_pages() {
    let Some((_file, mut shared)) = second() else {
        return;
    };
    shared.advise(Advice::Random).unwrap();
    store(&mut shared, b'm');
    let (_first, signals) = stored().unwrap();
    signals.await_one("read");
    let others = (0..PAGES).filter(|page| !STORED.contains(page));
    let (bytes, is_lost) = (&shared, signals.is_given("expect-error"));
    let expected = if is_lost { b'o' } else { b'a' };
    thread::scope(|scope| {
        for page in others {
            scope.spawn(move || assert_eq!(bytes[page * PAGE], expected));
        }
    });
    if is_lost {
        return assert_eq!(errno(&shared.flush().unwrap_err()), Errno::IO);
    }
    shared.flush().unwrap();
    assert_eq!(&shared[..7], b"mothera");
    store(&mut shared, b'n');
    shared.flush().unwrap();
}

/// The node was deposed, and the other node serves: no store may reach the file any more.
#[test]
fn stores_beside_a_page_that_is_being_read_are_lost_when_the_other_node_has_served() {
    let Some((mount, service)) = mount(Standby::Wait) else {
        return;
    };
    let child = start("parked_pages::child_reads_pages", &mount);
    child.signals.give("expect-error");
    service.stand(Standing::Undecided);
    child.signals.give("read");
    service.await_refused_programs(PAGES - STORED.len());
    service.stand(Standing::Following);
    let other = vec![b'o'; PAGE * PAGES];
    OtherNode(&mount).write("g", 0, &other);
    service.stand(Standing::Serving);
    child.expect_success();
    assert!(content_of(&mount, "g") == other);
}

/// While the size of a file changes, the kernel holds back the write-backs of its pages.
#[test]
fn pages_of_a_file_whose_size_changes_are_written_back() {
    let Some((mount, service)) = mount(Standby::Wait) else {
        return;
    };
    let child = start("parked_pages::child_changes_the_size", &mount);
    service.stand(Standing::Retiring);
    // The kernel first asks for an attribute.
    service.admit_programs(1);
    child.signals.give("change");
    service.await_refused_programs(1);
    service.retire();
    assert_nothing_lost(&mount, &service, child);
    assert_eq!(content_of(&mount, "g").len(), PAGE * (PAGES + 1));
}

#[test]
#[ignore = "the child of pages_of_a_file_whose_size_changes_are_written_back"]
fn child_changes_the_size() {
    let Some((file, mut shared)) = second() else {
        return;
    };
    store(&mut shared, b'm');
    let (_first, signals) = stored().unwrap();
    signals.await_one("change");
    file.set_len((PAGE * (PAGES + 1)) as u64).unwrap();
    shared.flush().unwrap();
    store(&mut shared, b'n');
    shared.flush().unwrap();
}
