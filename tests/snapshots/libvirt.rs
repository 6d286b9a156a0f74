//! The scripts of docs/operations/snapshots.md that freeze a guest of libvirt and thaw it. No guest runs here: programs of the test stand
//! in for `virsh`, `systemd-run` and `systemctl`, and note how they are called.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lockstep_testbed::{DATASTORE, NodeEnvironment, PATIENT, Pair, Spawn, can_mount};
use tempfile::TempDir;

use super::{done, list, refused};

const PAGE: &str = include_str!("../../docs/operations/snapshots.md");
/// The directory of the scripts in the page.
const SCRIPTS: &str = "/etc/lockstep";
/// The limit of a command here, in milliseconds.
const LIMIT_MS: u32 = 3000;
/// The longest wait for a snapshot between the commands, in seconds.
const SNAPSHOT_SECONDS: u32 = 1;

/// Notes a call, and whether the snapshot is there already.
const STAND_IN: &str = r#"#!/bin/sh
place="${0%/*}"
if [ -e "$LOCKSTEP_MOUNT/.lockstep/snapshots/$LOCKSTEP_SNAPSHOT" ]; then when=after; else when=before; fi
echo "$when: ${0##*/} $*" >> "$place/notes"
if [ -e "$place/$1-hangs" ]; then sleep 600; fi
if [ -e "$place/$1-fails" ]; then echo "error: the guest agent does not answer" >&2; exit 1; fi
"#;

const TIMER: &str = "systemd-run --quiet --collect --unit=lockstep-thaw --on-active=60 /usr/bin/virsh domfsthaw guest";
const FREEZE: &str = "virsh domfsfreeze guest";
const STOP_TIMER: &str = "systemctl stop lockstep-thaw.timer";
const THAW: &str = "virsh domfsthaw guest";

/// The number behind a text of the page.
fn number_behind(text: &str) -> u32 {
    let (_, rest) = PAGE.split_once(text).unwrap();
    let digits = rest.find(|it: char| !it.is_ascii_digit()).unwrap();
    rest[..digits].parse().unwrap()
}

fn write_program(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
}

/// Two nodes with the scripts of the page, on servers with the programs that stand in.
struct FrozenGuest {
    pair: Pair,
    place: TempDir,
}

impl FrozenGuest {
    fn start() -> Option<Self> {
        if !can_mount() {
            return None;
        }
        let place = tempfile::tempdir().unwrap();
        for program in ["virsh", "systemd-run", "systemctl"] {
            write_program(&place.path().join(program), STAND_IN);
        }
        for name in ["freeze", "thaw"] {
            let mut scripts = PAGE.split("```sh\n").skip(1);
            let begin = format!("#!/bin/sh\n# {SCRIPTS}/{name}");
            let script = scripts.find(|it| it.starts_with(&begin)).unwrap();
            let (script, _) = script.split_once("```").unwrap();
            write_program(&place.path().join(name), script);
        }
        let line = PAGE.lines().find(|line| {
            line.starts_with("snapshot_hooks = ") && line.contains(&format!("{SCRIPTS}/thaw"))
        });
        let limit = number_behind("limit_ms = ");
        let line = line
            .unwrap()
            .replace(SCRIPTS, place.path().to_str().unwrap())
            .replace(&limit.to_string(), &LIMIT_MS.to_string());
        let path = std::env::var("PATH").unwrap();
        let path = format!("{}:{path}", place.path().display());
        let spawn: Spawn = Arc::new(move |command| command.env("PATH", &path).spawn());
        let environment = NodeEnvironment {
            spawn,
            ..NodeEnvironment::default()
        };
        let mut pair = Pair::prepare(PATIENT, [environment.clone(), environment]);
        for node in [&pair.primary, &pair.secondary] {
            node.add_to_datastore(&line);
        }
        pair.start();
        Some(Self { pair, place })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    /// The calls since the last look.
    fn calls(&self) -> Vec<String> {
        let notes = fs::read_to_string(self.file("notes")).unwrap_or_default();
        fs::write(self.file("notes"), "").unwrap();
        notes.lines().map(str::to_owned).collect()
    }

    /// A snapshot while a program of the server fails or hangs. Returns the answer of the command.
    fn refused_while(&self, what: &str, snapshot: &str) -> String {
        let path = self.file(what);
        fs::write(&path, "").unwrap();
        let text = refused(&self.pair.primary, &["create", DATASTORE, snapshot]);
        fs::remove_file(path).unwrap();
        text
    }

    fn snapshots(&self) -> Vec<String> {
        let listed = list(&self.pair.primary).into_iter();
        listed.map(|(name, ..)| name).collect()
    }
}

fn calls(when: &str, all: &[&str]) -> Vec<String> {
    all.iter().map(|call| format!("{when}: {call}")).collect()
}

#[test]
fn a_guest_of_libvirt_is_frozen_before_a_snapshot_and_thawed_in_any_case() {
    let Some(mut guest) = FrozenGuest::start() else {
        return;
    };
    let before = calls("before", &[TIMER, FREEZE]);
    let thawed = |when| calls(when, &[STOP_TIMER, THAW]);
    done(&guest.pair.primary, &["create", DATASTORE, "a"]);
    assert_eq!(guest.calls(), [before.clone(), thawed("after")].concat());

    // The freeze fails, or hangs, or nothing would end it: no snapshot, and the guest goes on.
    let text = guest.refused_while("domfsfreeze-fails", "b");
    for part in [
        "no snapshot was made",
        "    error: the guest agent does not answer",
    ] {
        assert!(text.contains(part), "{text}");
    }
    let not_made = [before.clone(), thawed("before")].concat();
    assert_eq!(guest.calls(), not_made);
    let text = guest.refused_while("domfsfreeze-hangs", "c");
    assert!(
        text.contains(&format!("did not end within {LIMIT_MS} ms")),
        "{text}"
    );
    assert_eq!(guest.calls(), not_made);
    let text = guest.refused_while("--quiet-fails", "d");
    assert!(text.contains("no snapshot was made"), "{text}");
    let no_freeze = [calls("before", &[TIMER]), thawed("before")].concat();
    assert_eq!(guest.calls(), no_freeze);
    assert_eq!(guest.snapshots(), ["a"]);

    // The guest may have been thawed by the timer: then there is none any more, or the second thaw fails, which the operator hears of.
    fs::write(guest.file("stop-fails"), "").unwrap();
    done(&guest.pair.primary, &["create", DATASTORE, "e"]);
    let text = guest.refused_while("domfsthaw-fails", "f");
    assert!(text.contains("\"f\" is made and stays"), "{text}");
    let twice = [before.clone(), thawed("after")].concat();
    assert_eq!(guest.calls(), [twice.clone(), twice].concat());
    assert_eq!(guest.snapshots(), ["a", "e", "f"]);
    guest.pair.stop();
}

/// The timer does not thaw the guest while a snapshot is still being made.
#[test]
fn the_guest_stays_frozen_for_as_long_as_the_commands_may_take() {
    let frozen = number_behind("--on-active=");
    let limit_ms = number_behind("limit_ms = ");
    assert!(frozen * 1000 > limit_ms + SNAPSHOT_SECONDS * 1000);
}
