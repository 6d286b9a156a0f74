//! A mount outlives its node: programs go on while the node is killed and started again, and see no error.
//!
//! `LOCKSTEP_RESUME_KILLS=N` kills the node N times in each test.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)] // tests may panic

#[path = "resume/answers.rs"]
mod answers;
#[path = "model/forward.rs"]
mod forward;
#[path = "model/gated.rs"]
mod gated;
#[path = "resume/interrupted.rs"]
mod interrupted;
#[path = "model/fs.rs"]
mod model;
#[path = "resume/names.rs"]
mod names;
#[path = "resume/programs.rs"]
mod programs;
#[path = "resume/site.rs"]
mod site;
#[path = "resume/takeover.rs"]
mod takeover;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::thread;

use rustix::io::Errno;

use programs::{PROGRAMS, Place, Tree};
use site::{LOOK, Site, can_resume};

/// How often the node is killed, unless the variable says otherwise.
const KILLS: u64 = 8;

fn kills() -> u64 {
    let given = std::env::var("LOCKSTEP_RESUME_KILLS").ok();
    given.map_or(KILLS, |text| text.parse().unwrap())
}

/// Runs all programs while the node is killed, and returns what they have left.
fn run_programs(site: &mut Site) -> BTreeMap<String, Tree> {
    let root = site.mount();
    let places: Vec<Place> = PROGRAMS
        .iter()
        .map(|(name, _)| Place::new(root.join(name)))
        .collect();
    thread::scope(|scope| {
        let running: Vec<_> = PROGRAMS
            .iter()
            .zip(&places)
            .map(|((name, body), place)| (*name, place, scope.spawn(|| place.run(*body))))
            .collect();
        for kill in 0..kills() {
            // Each program is somewhere else at each kill.
            let target = 1 + kill * 7 % 11;
            for (name, place, program) in &running {
                let start = place.rounds();
                while place.rounds() < start + target {
                    assert!(!program.is_finished(), "{name} has ended");
                    site.assert_alive();
                    thread::sleep(LOOK);
                }
                if kill % 3 == 0 {
                    break;
                }
            }
            site.kill();
            site.begin_again();
            if kill % 4 == 1 {
                // A second crash, at some moment of the start.
                thread::sleep(LOOK * u32::try_from(kill % 16).unwrap());
                site.kill();
                site.begin_again();
            }
            site.await_running();
        }
        for place in &places {
            place.stop.store(true, Ordering::SeqCst);
        }
        let ended = running.into_iter().map(|(name, place, program)| {
            let left = program.join().expect(name);
            assert_eq!(place.refusals(), 0, "{name}: no other node has served");
            (name.to_owned(), left)
        });
        ended.collect()
    })
}

/// Reads a directory whole.
fn tree(root: &Path) -> Tree {
    let mut tree = Tree::new();
    for entry in fs::read_dir(root).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        if entry.file_type().unwrap().is_dir() {
            for (below, content) in self::tree(&entry.path()) {
                tree.insert(format!("{name}/{below}"), content);
            }
        } else {
            tree.insert(name, fs::read(entry.path()).unwrap());
        }
    }
    tree
}

fn assert_left(site: &Site, left: &BTreeMap<String, Tree>) {
    for (name, expected) in left {
        let found = tree(&site.mount().join(name));
        let names = |tree: &Tree| tree.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&found), names(expected), "{name}");
        for (path, content) in expected {
            assert!(found[path] == *content, "{name}/{path} has other content");
        }
    }
}

fn programs_go_on(mut site: Site) {
    let left = run_programs(&mut site);
    assert_left(&site, &left);
    site.remount();
    assert_left(&site, &left);
    site.end();
}

#[test]
fn programs_see_no_error_when_the_node_is_killed() {
    if can_resume() {
        programs_go_on(Site::held());
    }
}

#[test]
fn programs_see_no_error_when_a_mirrored_node_is_killed() {
    if can_resume() {
        programs_go_on(Site::mirrored());
    }
}

#[test]
fn programs_see_no_error_when_the_service_manager_keeps_the_mount() {
    if can_resume() {
        programs_go_on(Site::managed());
    }
}

/// The first process ends before or after it executes a request, and does not answer; the second gets it again.
#[test]
fn a_request_that_was_not_answered_happens_once() {
    if can_resume() {
        answers::names_that_are_made();
        answers::names_that_go();
        answers::changes_of_attributes();
        answers::changes_of_flags();
        answers::changes_of_files();
        answers::questions();
    }
}

/// The other node has served before this node serves again.
#[test]
fn a_request_that_was_perhaps_executed_does_not_run_on_what_the_other_node_has_made() {
    if can_resume() {
        takeover::changes_fail();
        takeover::changes_fail_on_a_node_that_follows();
        takeover::questions_wait();
    }
}

#[test]
fn a_request_that_waits_for_this_node_to_serve_waits_on_in_the_next_process() {
    if can_resume() {
        takeover::waiting_changes_wait_on();
    }
}

#[test]
fn a_resumed_mount_drops_what_the_kernel_knew_before_the_other_node_served() {
    if can_resume() {
        takeover::old_attributes_go();
    }
}

fn await_content_files(site: &Site, count: usize) {
    while site.content_files() != count {
        thread::sleep(LOOK);
    }
}

/// A file with content, and its open file.
fn open_file(site: &Site, name: &str) -> File {
    let path = site.mount().join(name);
    fs::write(&path, name).unwrap();
    File::open(path).unwrap()
}

fn assert_content(file: &File, content: &str) {
    let mut found = vec![0; content.len()];
    file.read_exact_at(&mut found, 0).unwrap();
    assert_eq!(found, content.as_bytes());
}

#[test]
fn an_open_file_without_a_name_keeps_its_content_across_a_restart() {
    if !can_resume() {
        return;
    }
    let mut site = Site::held();
    let none = site.content_files();
    let before = open_file(&site, "before");
    let after = open_file(&site, "after");
    fs::write(site.mount().join("closed"), "closed").unwrap();
    fs::remove_file(site.mount().join("before")).unwrap();
    site.kill_and_start();
    fs::remove_file(site.mount().join("after")).unwrap();
    fs::remove_file(site.mount().join("closed")).unwrap();
    await_content_files(&site, none + 2);
    site.kill_and_start();
    assert_content(&before, "before");
    assert_content(&after, "after");
    drop((before, after));
    await_content_files(&site, none);
    // A file that is open when the mount ends is freed by the next start.
    let last = open_file(&site, "last");
    fs::remove_file(site.mount().join("last")).unwrap();
    site.kill_and_start();
    assert_content(&last, "last");
    site.remount();
    await_content_files(&site, none);
    drop(last);
    site.end();
}

#[test]
fn without_a_holder_the_mount_ends_with_the_node() {
    if !can_resume() {
        return;
    }
    let mut site = Site::unheld();
    let file = open_file(&site, "file");
    site.kill();
    assert_ended(&file);
    site.begin_again();
    site.await_running();
    assert!(site.log().contains("is_new=true"), "{}", site.log());
    assert_content(&open_file(&site, "file"), "file");
    site.end();
}

fn assert_ended(file: &File) {
    let error = file.read_at(&mut [0; 4], 0).unwrap_err();
    let ended = [Errno::NOTCONN, Errno::CONNABORTED];
    assert!(ended.contains(&Errno::from_io_error(&error).unwrap()));
}

#[test]
fn the_end_of_the_holder_ends_the_mount_of_a_killed_node() {
    if !can_resume() {
        return;
    }
    let mut site = Site::held();
    let file = open_file(&site, "file");
    site.kill();
    site.end_holder();
    assert_ended(&file);
    site.begin_again();
    site.await_running();
    assert_content(&open_file(&site, "file"), "file");
    site.end();
}

#[test]
fn a_mount_that_is_not_the_configured_one_is_ended() {
    if !can_resume() {
        return;
    }
    let mut site = Site::held();
    let file = open_file(&site, "file");
    site.kill();
    let other = site.dir().join("other");
    fs::create_dir(&other).unwrap();
    site.configure("/mount\"", "/other\"");
    site.begin_again();
    site.await_running();
    assert_ended(&file);
    assert_eq!(fs::read(other.join("file")).unwrap(), b"file");
    site.configure("/other\"", "/mount\"");
    site.remount();
    site.end();
}
