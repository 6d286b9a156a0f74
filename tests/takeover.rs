//! A mount outlives its node: programs go on while the node is killed and started again, and see no error.
//!
//! `LOCKSTEP_TAKEOVER_KILLS=N` kills the node N times in each test.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)] // tests may panic

#[path = "takeover/answers.rs"]
mod answers;
#[path = "model/fs.rs"]
mod model;
#[path = "takeover/names.rs"]
mod names;
#[path = "takeover/programs.rs"]
mod programs;
#[path = "takeover/site.rs"]
mod site;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::thread;

use programs::{PROGRAMS, Place, Tree};
use site::{LOOK, Site, can_take_over};

/// How often the node is killed, unless the variable says otherwise.
const KILLS: u64 = 12;

fn kills() -> u64 {
    let given = std::env::var("LOCKSTEP_TAKEOVER_KILLS").ok();
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
            let target = 1 + kill * 7 % 23;
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
            site.kill_and_start();
        }
        for place in &places {
            place.stop.store(true, Ordering::SeqCst);
        }
        let ended = running.into_iter();
        ended
            .map(|(name, _, program)| (name.to_owned(), program.join().expect(name)))
            .collect()
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
    if can_take_over() {
        programs_go_on(Site::held());
    }
}

#[test]
fn programs_see_no_error_when_a_mirrored_node_is_killed() {
    if can_take_over() {
        programs_go_on(Site::mirrored());
    }
}

#[test]
fn programs_see_no_error_when_the_service_manager_keeps_the_mount() {
    if can_take_over() {
        programs_go_on(Site::managed());
    }
}

/// The first process executes a request and does not answer; the second gets it again.
#[test]
fn a_request_that_was_executed_and_not_answered_happens_once() {
    if can_take_over() {
        answers::names_that_are_made();
        answers::names_that_go();
        answers::changes_of_files();
        answers::questions();
    }
}
