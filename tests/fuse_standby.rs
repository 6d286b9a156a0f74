//! A mount on a node that does not serve, and over changes of the role.
//!
//! A process must not fault on its own mount, so each test with a mapping runs the mapping in a child: the same program,
//! started for one of the ignored tests.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)] // tests may panic

#[path = "model/forward.rs"]
mod forward;
#[path = "model/gated.rs"]
mod gated;
#[path = "standby/killed.rs"]
mod killed;
#[path = "standby/mapping_child.rs"]
mod mapping_child;
#[path = "model/fs.rs"]
mod model;
#[path = "model/mounted.rs"]
mod mounted;
#[path = "standby/overtaken.rs"]
mod overtaken;
#[path = "standby/parked_pages.rs"]
mod parked_pages;

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};

use lockstep_driver::client::{FileService, Standing, WriteData, WriteOptions};
use lockstep_mount::Unmounted;
use lockstep_types::settings::Standby;
use lockstep_types::{FileName, Ino, MetaRequest, NodeKind, RenameMode};
use memmap2::MmapMut;
use rustix::fs::Advice;
use rustix::io::Errno;

use gated::{Gated, await_true};
use mapping_child::{MappingChild, given, read_write, second, stored};
use mounted::Fixture;

/// A mount with two threads, whose node serves.
fn mount(standby: Standby) -> Option<(Fixture, Arc<Gated>)> {
    let mut service = None;
    let wrap = |model| Arc::clone(service.insert(Gated::new(model)));
    let fixture = Fixture::serving_with(wrap, |options| {
        options.threads = 2;
        options.standby = standby;
    })?;
    Some((fixture, service.unwrap()))
}

/// Runs a part of a test that may wait for the node. A test that fails does not wait for its end.
fn program<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    thread::spawn(body)
}

/// Waits for the end of a program.
fn end<T>(program: JoinHandle<T>) -> T {
    await_true(|| program.is_finished());
    program.join().unwrap()
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap()
}

/// The changes that the other node makes, which the kernel does not learn of.
struct OtherNode<'a>(&'a Fixture);

impl OtherNode<'_> {
    fn find(&self, path: &str) -> Ino {
        path.split('/').fold(Ino::ROOT, |parent, name| {
            self.0.model.lookup(parent, &file_name(name)).unwrap().ino
        })
    }

    fn write(&self, path: &str, offset: u64, data: &[u8]) {
        let done = Box::new(|outcome: Result<_, _>| outcome.unwrap());
        let options = WriteOptions::default();
        self.0.model.write(
            self.find(path),
            offset,
            WriteData::Borrowed(data),
            options,
            done,
        );
    }

    fn change(&self, request: MetaRequest) {
        let done = Box::new(|outcome: Result<_, _>| {
            outcome.unwrap();
        });
        self.0.model.change(request, done);
    }

    fn create(&self, parent: &str, name: &str) {
        self.change(
            MetaRequest::creation(
                self.find(parent),
                file_name(name),
                self.0.model.next_ino().unwrap(),
                NodeKind::File,
            )
            .mode(0o644)
            .request(),
        );
    }
}

fn file_name(name: &str) -> FileName {
    FileName::new(name.as_bytes()).unwrap()
}

#[test]
fn requests_wait_without_a_thread_until_the_node_serves() {
    const PROGRAMS: usize = 200;
    let Some((mount, service)) = mount(Standby::Wait) else {
        return;
    };
    for number in 0..PROGRAMS {
        fs::write(mount.path(&format!("f{number}")), format!("{number}")).unwrap();
    }
    service.stand(Standing::Following);
    let programs: Vec<_> = (0..PROGRAMS)
        .map(|number| {
            let path = mount.path(&format!("f{number}"));
            program(move || fs::read_to_string(path).unwrap())
        })
        .collect();
    service.await_refused_programs(PROGRAMS);
    assert!(programs.iter().all(|program| !program.is_finished()));
    assert!(fs::metadata(mount.path("")).unwrap().is_dir());
    rustix::fs::statfs(mount.path("")).unwrap();
    assert!(programs.iter().all(|program| !program.is_finished()));
    service.stand(Standing::Serving);
    for (number, program) in programs.into_iter().enumerate() {
        assert_eq!(end(program), number.to_string());
    }
}

#[test]
fn requests_fail_in_the_forms_that_do_not_wait() {
    requests_fail(Standby::Erofs, Errno::ROFS);
    requests_fail(Standby::Eagain, Errno::AGAIN);
}

fn requests_fail(standby: Standby, expected: Errno) {
    let Some((mount, service)) = mount(standby) else {
        return;
    };
    fs::write(mount.path("f"), "content").unwrap();
    let file = read_write(&mount.path("f"));
    service.stand(Standing::Following);
    let refused = [
        File::open(mount.path("f")).map(drop),
        fs::create_dir(mount.path("d")),
        file.read_at(&mut [0], 0).map(drop),
        file.write_at(b"x", 0).map(drop),
        fs::read_dir(mount.path("")).and_then(|mut list| list.next().unwrap().map(drop)),
    ];
    for outcome in refused {
        assert_eq!(errno(&outcome.unwrap_err()), expected);
    }
    assert!(fs::metadata(mount.path("")).unwrap().is_dir());
    rustix::fs::statfs(mount.path("")).unwrap();
    service.stand(Standing::Serving);
    assert_eq!(fs::read(mount.path("f")).unwrap(), b"content");
    drop(file);
}

#[test]
fn an_open_file_goes_on_after_a_change_of_the_role() {
    let Some((mount, service)) = mount(Standby::Wait) else {
        return;
    };
    fs::write(mount.path("f"), "before").unwrap();
    let file = Arc::new(read_write(&mount.path("f")));
    let closed = File::open(mount.path("f")).unwrap();
    service.retire();
    drop(closed);
    let reader = Arc::clone(&file);
    let reader = program(move || {
        let mut found = [0; 6];
        reader.read_exact_at(&mut found, 0).unwrap();
        found
    });
    service.await_refused_programs(1);
    service.stand(Standing::Serving);
    assert_eq!(&end(reader), b"before");
    let pattern: Vec<u8> = (0..3_u32 << 20).map(|at| (at % 251) as u8).collect();
    file.write_all_at(&pattern, 5).unwrap();
    let mut found = vec![0; pattern.len()];
    file.read_exact_at(&mut found, 5).unwrap();
    assert!(found == pattern);
    assert_eq!(file.metadata().unwrap().len(), 5 + pattern.len() as u64);
}

/// Names, absent names, listings, targets of links and attributes that the kernel has in its caches.
fn fill_caches(mount: &Fixture) -> File {
    fs::create_dir(mount.path("d")).unwrap();
    for name in ["d/f", "d/gone", "d/moved"] {
        fs::write(mount.path(name), "old").unwrap();
    }
    symlink("old", mount.path("d/link")).unwrap();
    let file = read_write(&mount.path("d/f"));
    for _ in 0..2 {
        assert!(!mount.path("d/new").exists());
        assert_eq!(names(mount), ["f", "gone", "link", "moved"]);
        assert_eq!(fs::metadata(mount.path("d/f")).unwrap().len(), 3);
        fs::read_link(mount.path("d/link")).unwrap();
    }
    file
}

fn names(mount: &Fixture) -> Vec<String> {
    let list = fs::read_dir(mount.path("d")).unwrap();
    let names = list.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

#[test]
fn the_kernel_drops_its_caches_before_the_other_node_serves() {
    let Some((mount, service)) = mount(Standby::Wait) else {
        return;
    };
    let file = fill_caches(&mount);
    let directory = File::open(mount.path("d")).unwrap();
    service.retire();
    let other = OtherNode(&mount);
    other.write("d/f", 0, b"new content");
    other.create("d", "new");
    let d = other.find("d");
    other.change(MetaRequest::Unlink {
        parent: d,
        name: file_name("gone"),
    });
    other.change(MetaRequest::Rename {
        parent: d,
        name: file_name("moved"),
        new_parent: d,
        new_name: file_name("link"),
        mode: RenameMode::Replace,
    });
    other.change(MetaRequest::SetAttr {
        ino: other.find("d/f"),
        mode: Some(0o600),
        uid: Some(7),
        gid: None,
        atime: None,
        mtime: None,
    });
    service.stand(Standing::Serving);
    let attributes = file.metadata().unwrap();
    assert_eq!((attributes.len(), attributes.uid()), (11, 7));
    assert_eq!(attributes.permissions().mode() & 0o777, 0o600);
    assert_eq!(names(&mount), ["f", "link", "new"]);
    assert_eq!(fs::read(mount.path("d/f")).unwrap(), b"new content");
    assert_eq!(fs::read(mount.path("d/link")).unwrap(), b"old");
    assert!(mount.path("d/new").exists());
    assert!(!mount.path("d/gone").exists() && !mount.path("d/moved").exists());
    // The open directory is still the one behind its name.
    let number = std::os::fd::AsRawFd::as_raw_fd(&directory);
    let shown = fs::read_link(format!("/proc/self/fd/{number}")).unwrap();
    assert_eq!(shown, mount.path("d"));
}

/// Shows that the tests above would find a drop that is missing.
#[test]
fn the_kernel_keeps_its_caches_while_it_is_undecided_who_serves() {
    let Some((mount, service)) = mount(Standby::Wait) else {
        return;
    };
    let file = fill_caches(&mount);
    service.stand(Standing::Undecided);
    let other = OtherNode(&mount);
    other.write("d/f", 0, b"new content");
    other.create("d", "new");
    assert_eq!(file.metadata().unwrap().len(), 3);
    assert!(!mount.path("d/new").exists());
    // The other node has served after all.
    service.stand(Standing::Following);
    service.stand(Standing::Serving);
    await_true(|| file.metadata().unwrap().len() == 11 && mount.path("d/new").exists());
}

/// A request that was let in while the node served is answered after the end of the lease: the other node may serve by then.
#[test]
fn the_kernel_keeps_no_answer_that_comes_when_the_node_does_not_serve() {
    let Some((mount, service)) = mount(Standby::Wait) else {
        return;
    };
    fs::create_dir(mount.path("d")).unwrap();
    fs::write(mount.path("d/f"), "old").unwrap();
    let file = File::open(mount.path("d/f")).unwrap();
    service.retire();
    service.admit_programs(usize::MAX);
    let looked = || {
        let length = fs::metadata(mount.path("d/f")).unwrap().len();
        (
            mount.path("d/new").exists(),
            file.metadata().unwrap().len(),
            length,
        )
    };
    assert_eq!(looked(), (false, 3, 3));
    let other = OtherNode(&mount);
    other.create("d", "new");
    other.write("d/f", 0, b"new content");
    assert_eq!(looked(), (true, 11, 11));
}

#[test]
fn an_unmount_ends_the_requests_that_wait() {
    let Some((mut mount, service)) = mount(Standby::Wait) else {
        return;
    };
    fs::write(mount.path("f"), "content").unwrap();
    let file = Arc::new(read_write(&mount.path("f")));
    service.stand(Standing::Undecided);
    let (reader, writer) = (Arc::clone(&file), Arc::clone(&file));
    let programs = [
        program(move || reader.read_at(&mut [0], 0)),
        program(move || writer.write_at(b"x", 0)),
    ];
    service.await_refused_programs(2);
    mount.unmount();
    for program in programs {
        let errno = errno(&end(program).unwrap_err());
        assert!(
            [Errno::IO, Errno::CONNABORTED, Errno::NOTCONN].contains(&errno),
            "{errno}"
        );
    }
    service.stand(Standing::Serving);
}

#[test]
fn a_node_that_does_not_serve_mounts_and_unmounts() {
    let following = |model| {
        let service = Gated::new(model);
        service.stand(Standing::Following);
        service
    };
    let Some(mut mount) = Fixture::serving(following) else {
        return;
    };
    assert!(fs::metadata(mount.path("")).unwrap().is_dir());
    assert_eq!(mount.unmount(), Unmounted::Clean);
}

#[test]
fn requests_may_wait_several_times() {
    let Some((mount, service)) = mount(Standby::Wait) else {
        return;
    };
    fs::write(mount.path("f"), "").unwrap();
    let path = mount.path("f");
    let writers: Vec<_> = (0..8_u64)
        .map(|number| {
            let file = read_write(&path);
            program(move || {
                for round in 0..50 {
                    // The other node may have served since the write was asked.
                    while let Err(error) = file.write_all_at(&[1], number * 50 + round) {
                        assert_eq!(errno(&error), Errno::ROFS);
                    }
                }
            })
        })
        .collect();
    while !writers.iter().all(JoinHandle::is_finished) {
        service.stand(Standing::Undecided);
        thread::yield_now();
        service.stand(Standing::Serving);
        service.retire();
        service.stand(Standing::Serving);
    }
    for writer in writers {
        end(writer);
    }
    assert!(fs::read(&path).unwrap() == [1; 400]);
}

fn content(mount: &Fixture) -> Vec<u8> {
    content_of(mount, "f")
}

fn content_of(mount: &Fixture, name: &str) -> Vec<u8> {
    let ino = OtherNode(mount).find(name);
    let (send, receive) = channel();
    let done = Box::new(move |outcome: Result<&[u8], _>| {
        send.send(outcome.unwrap().to_vec()).unwrap();
    });
    mount.model.read(ino, 0, 1 << 20, done);
    receive.recv().unwrap()
}

#[test]
fn a_mapping_is_written_back_and_read_again_when_the_node_gives_its_role_away() {
    let Some((mount, service)) = mount(Standby::Wait) else {
        return;
    };
    let child = MappingChild::start("child_looks_again", &mount);
    child.signals.await_one("stored");
    assert_eq!(content(&mount)[100], b'a');
    service.retire();
    assert_eq!(content(&mount)[100], b'm');
    OtherNode(&mount).write("f", 101, b"n");
    child.signals.give("served");
    service.await_refused_programs(1);
    assert!(!child.signals.is_given("looked"));
    service.stand(Standing::Serving);
    child.signals.await_one("looked");
    child.expect_success();
    assert_eq!(&content(&mount)[99..104], b"amnoa");
}

#[test]
#[ignore = "the child of a_mapping_is_written_back_and_read_again_when_the_node_gives_its_role_away"]
fn child_looks_again() {
    let Some((mut shared, signals)) = stored() else {
        return;
    };
    signals.await_one("served");
    assert_eq!(&shared[99..102], b"amn");
    signals.give("looked");
    shared[102] = b'o';
    shared.flush().unwrap();
}

#[test]
fn a_store_is_lost_with_an_error_when_the_other_node_may_have_served() {
    let Some((mount, service)) = mount(Standby::Wait) else {
        return;
    };
    let child = MappingChild::start("child_flush_fails", &mount);
    child.signals.await_one("stored");
    service.stand(Standing::Following);
    child.signals.give("flush");
    child.expect_success();
    service.stand(Standing::Serving);
    assert_eq!(content(&mount), [b'a'; 4096]);
}

#[test]
fn a_store_is_lost_with_an_error_when_it_turns_out_that_the_other_node_has_served() {
    let Some((mount, service)) = mount(Standby::Wait) else {
        return;
    };
    let child = MappingChild::start("child_flush_fails", &mount);
    child.signals.await_one("stored");
    service.stand(Standing::Undecided);
    child.signals.give("flush");
    service.await_refused_write_backs(1);
    service.stand(Standing::Following);
    child.expect_success();
    assert_eq!(content(&mount), [b'a'; 4096]);
}

#[test]
#[ignore = "the child of a_store_is_lost_with_an_error_when_the_other_node_may_have_served"]
fn child_flush_fails() {
    let Some((shared, signals)) = stored() else {
        return;
    };
    signals.await_one("flush");
    assert_eq!(errno(&shared.flush().unwrap_err()), Errno::IO);
}

#[test]
fn a_write_back_waits_while_it_is_undecided_who_serves() {
    for standby in [Standby::Wait, Standby::Erofs, Standby::Eagain] {
        let Some((mount, service)) = mount(standby) else {
            return;
        };
        let child = MappingChild::start("child_flush_succeeds", &mount);
        child.signals.await_one("stored");
        service.stand(Standing::Undecided);
        child.signals.give("flush");
        service.await_refused_write_backs(1);
        assert!(!child.signals.is_given("flushed"));
        assert_eq!(content(&mount)[100], b'a');
        service.stand(Standing::Serving);
        child.expect_success();
        assert_eq!(content(&mount)[100], b'm');
    }
}

#[test]
#[ignore = "the child of a_write_back_waits_while_it_is_undecided_who_serves"]
fn child_flush_succeeds() {
    let Some((shared, signals)) = stored() else {
        return;
    };
    signals.await_one("flush");
    shared.flush().unwrap();
    signals.give("flushed");
}

/// The write-back comes while a write of the same page is under way, and has to wait for that. Then the node stops to
/// serve.
#[test]
fn a_write_back_behind_a_write_waits_when_the_node_does_not_serve_any_more() {
    for end_state in [Standing::Serving, Standing::Following] {
        let Some((mount, service)) = mount(Standby::Wait) else {
            return;
        };
        let name = "child_flushes_beside_a_write";
        let child = MappingChild::start_after(name, &mount, || service.hold_writes());
        service.await_held_writes(1);
        child.signals.give("write-is-under-way");
        service.await_admitted_write_backs(1);
        service.stand(Standing::Undecided);
        service.resume_writes();
        service.await_refused_write_backs(1);
        assert!(!child.signals.is_given("flushed"));
        if end_state == Standing::Following {
            child.signals.give("expect-error");
            service.stand(Standing::Following);
            child.signals.await_one("flushed");
        }
        service.stand(Standing::Serving);
        child.expect_success();
        let stored = if end_state == Standing::Serving {
            b'm'
        } else {
            b'a'
        };
        let content = content(&mount);
        assert_eq!((&content[..8], content[100]), (&b"writtena"[..], stored));
    }
}

#[test]
#[ignore = "the child of a_write_back_behind_a_write_waits_when_the_node_does_not_serve_any_more"]
fn child_flushes_beside_a_write() {
    let Some((file, signals)) = given() else {
        return;
    };
    // SAFETY: no process truncates the file while it is mapped.
    let mut shared = unsafe { MmapMut::map_mut(&file) }.unwrap();
    thread::scope(|scope| {
        let writer = scope.spawn(|| file.write_all_at(b"written", 0));
        signals.await_one("write-is-under-way");
        shared[100] = b'm';
        // The kernel begins to write the page back. A flush would wait for the write.
        rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        let flushed = shared.flush();
        if signals.is_given("expect-error") {
            assert_eq!(errno(&flushed.unwrap_err()), Errno::IO);
        } else {
            flushed.unwrap();
        }
        signals.give("flushed");
        writer.join().unwrap().unwrap();
    });
}

/// The drop of the caches hangs at one file, so the pages of the next file are dirty over the time of the other node.
#[test]
fn a_page_from_before_the_time_of_the_other_node_is_never_written_back() {
    let Some((mount, service)) = mount(Standby::Wait) else {
        return;
    };
    let make = || fs::write(mount.path("g"), [b'a'; 4096]).unwrap();
    let child = MappingChild::start_after("child_loses_an_old_page", &mount, make);
    child.signals.await_one("stored");
    service.hold_writes();
    service.retire();
    service.await_held_writes(1);
    OtherNode(&mount).write("g", 100, b"other");
    service.stand(Standing::Serving);
    child.signals.give("flush");
    child.signals.await_one("flushed");
    service.resume_writes();
    child.expect_success();
    assert_eq!(&content_of(&mount, "g")[99..106], b"aothera");
}

#[test]
#[ignore = "the child of a_page_from_before_the_time_of_the_other_node_is_never_written_back"]
fn child_loses_an_old_page() {
    let Some((_file, mut second)) = second() else {
        return;
    };
    second[100] = b'm';
    let (_first, signals) = stored().unwrap();
    signals.await_one("flush");
    assert_eq!(errno(&second.flush().unwrap_err()), Errno::IO);
    signals.give("flushed");
}
