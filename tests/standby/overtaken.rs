//! Changes that wait: they run if no other node has served since they were asked, and never reach the data otherwise
//! (rule R13).

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use lockstep_driver::client::Standing;
use lockstep_types::settings::Standby;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use crate::gated::Gated;
use crate::mapping_child::read_write;
use crate::mounted::Fixture;
use crate::{OtherNode, content, end, errno, mount, program};

type Change = fn(&File) -> io::Result<()>;

/// Changes of an open file.
const CHANGES: [Change; 3] = [
    |file| file.write_all_at(b"late", 0),
    |file| file.set_len(1),
    |file| file.set_permissions(fs::Permissions::from_mode(0o600)),
];

/// Has a program of its own ask for a change.
fn ask(file: &Arc<File>, change: Change) -> JoinHandle<io::Result<()>> {
    let file = Arc::clone(file);
    program(move || change(&file))
}

/// The node gets the role back from the other one, which has written to the file.
fn serve_again_after_the_other(mount: &Fixture, service: &Gated) {
    service.stand(Standing::Following);
    OtherNode(mount).write("f", 0, b"newer");
    service.stand(Standing::Serving);
}

#[test]
fn a_change_that_waited_fails_once_the_other_node_may_have_served() {
    for (standby, expected) in [
        (Standby::Wait, Errno::ROFS),
        (Standby::Erofs, Errno::ROFS),
        (Standby::Eagain, Errno::AGAIN),
    ] {
        for change in CHANGES {
            let Some((mount, service)) = mount(standby) else {
                return;
            };
            fs::write(mount.path("f"), "content").unwrap();
            let file = Arc::new(read_write(&mount.path("f")));
            service.stand(Standing::Undecided);
            let late = ask(&file, change);
            service.await_refused_programs(1);
            // The kernel may have asked for an attribute, whose refusal it does not tell, and asks for the change then.
            service.stand(Standing::Following);
            assert_eq!(errno(&end(late).unwrap_err()), expected);
            serve_again_after_the_other(&mount, &service);
            assert_eq!(content(&mount), b"newernt");
        }
    }
}

#[test]
fn a_change_that_waited_runs_if_no_other_node_has_served() {
    for standby in [Standby::Wait, Standby::Erofs, Standby::Eagain] {
        let Some((mount, service)) = mount(standby) else {
            return;
        };
        fs::write(mount.path("f"), "content").unwrap();
        let file = Arc::new(read_write(&mount.path("f")));
        service.stand(Standing::Undecided);
        let writer = Arc::clone(&file);
        let writer = program(move || writer.write_all_at(b"late", 0));
        service.await_refused_programs(1);
        service.stand(Standing::Serving);
        end(writer).unwrap();
        assert_eq!(content(&mount), b"lateent");
    }
}

#[test]
fn a_change_at_a_node_that_follows_fails_at_once_in_every_form() {
    for (standby, expected) in [
        (Standby::Wait, Errno::ROFS),
        (Standby::Erofs, Errno::ROFS),
        (Standby::Eagain, Errno::AGAIN),
    ] {
        let Some((mount, service)) = mount(standby) else {
            return;
        };
        fs::write(mount.path("f"), "content").unwrap();
        let file = Arc::new(read_write(&mount.path("f")));
        service.retire();
        for change in CHANGES {
            assert_eq!(errno(&end(ask(&file, change)).unwrap_err()), expected);
        }
        service.stand(Standing::Serving);
        assert_eq!(content(&mount), b"content");
    }
}

/// A `read` waits behind a write of the same file, and the node gives its role away and gets it back meanwhile.
#[test]
fn a_change_behind_another_one_fails_once_the_other_node_may_have_served() {
    let Some((mount, service)) = mount(Standby::Wait) else {
        return;
    };
    fs::write(mount.path("f"), "content").unwrap();
    let file = Arc::new(read_write(&mount.path("f")));
    service.hold_writes();
    let first = Arc::clone(&file);
    let first = program(move || first.write_all_at(b"first", 0));
    service.await_held_writes(1);
    service.stand(Standing::Undecided);
    let second = Arc::clone(&file);
    let second = program(move || second.write_all_at(b"late", 0));
    service.await_refused_programs(1);
    service.stand(Standing::Following);
    assert_eq!(errno(&end(second).unwrap_err()), Errno::ROFS);
    serve_again_after_the_other(&mount, &service);
    service.resume_writes();
    drop(end(first));
}

#[test]
fn requests_that_change_something_wait_and_are_done_once() {
    let Some((mount, service)) = mount(Standby::Wait) else {
        return;
    };
    // The kernel lets one change into a directory at a time.
    for directory in ["1", "2", "3", "4", "5"] {
        fs::create_dir(mount.path(directory)).unwrap();
    }
    fs::write(mount.path("4/gone"), "").unwrap();
    fs::write(mount.path("5/old"), "moved").unwrap();
    service.stand(Standing::Undecided);
    let at = |name: &str| mount.path(name);
    let (new, link, directory, gone) = (at("1/new"), at("2/link"), at("3/made"), at("4/gone"));
    let (old, moved) = (at("5/old"), at("5/moved"));
    let programs = [
        program(move || fs::write(new, "content")),
        program(move || symlink("target", link)),
        program(move || fs::create_dir(directory)),
        program(move || fs::remove_file(gone)),
        program(move || Ok(renameat_with(CWD, old, CWD, moved, RenameFlags::WHITEOUT)?)),
    ];
    service.await_refused_programs(programs.len());
    service.stand(Standing::Serving);
    for program in programs {
        end(program).unwrap();
    }
    assert_eq!(fs::read(at("1/new")).unwrap(), b"content");
    assert_eq!(fs::read_link(at("2/link")).unwrap(), Path::new("target"));
    assert!(at("3/made").is_dir() && !at("4/gone").exists());
    assert_eq!(fs::read(at("5/moved")).unwrap(), b"moved");
    let whiteout = fs::symlink_metadata(at("5/old")).unwrap();
    assert!(whiteout.file_type().is_char_device());
}
