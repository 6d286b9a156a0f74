//! The commands of the operator before and after a snapshot.

use std::fs;
use std::path::PathBuf;
use std::thread;

use lockstep_testbed::{DATASTORE, NodeEnvironment, PATIENT, Pair, await_that, can_mount};

use super::{done, list, refused, snapshot};

/// Notes each call, and at a call after a snapshot whether the snapshot has the file that the call before it has written.
const HOOK: &str = r#"
cd "${0%/*}"
echo "$1 $LOCKSTEP_SNAPSHOT $LOCKSTEP_DATASTORE" >> notes
if [ "$1" = before ]; then
    echo flushed > "$LOCKSTEP_MOUNT/flushed" && sync "$LOCKSTEP_MOUNT/flushed" || exit 9
    if [ -e hangs ]; then sleep 600; fi
else
    seen="$LOCKSTEP_MOUNT/.lockstep/snapshots/$LOCKSTEP_SNAPSHOT/flushed"
    if [ -e "$seen" ]; then echo "seen by $LOCKSTEP_SNAPSHOT" >> notes; fi
    rm -f "$LOCKSTEP_MOUNT/flushed"
fi
if [ -e "$1-fails" ]; then echo "the database does not answer"; exit 7; fi
"#;

/// Two nodes with commands, and the directory of the commands.
struct HookedPair {
    pair: Pair,
    directory: PathBuf,
}

impl HookedPair {
    fn start() -> Option<Self> {
        if !can_mount() {
            return None;
        }
        let mut pair = Pair::prepare(PATIENT, [(); 2].map(|()| NodeEnvironment::default()));
        let directory = pair.outside("hooks");
        fs::create_dir(&directory).unwrap();
        let script = directory.join("hook");
        fs::write(&script, HOOK).unwrap();
        let command = |when| {
            format!(
                "{when} = [\"/bin/sh\", \"{}\", {when:?}]\n",
                script.display()
            )
        };
        let hooks = format!("{}{}", command("before"), command("after"));
        for node in [&pair.primary, &pair.secondary] {
            node.add_to_config(&format!(
                "[datastore.snapshots]\nhourly = 2\n[datastore.snapshot_hooks]\n{hooks}"
            ));
        }
        pair.start();
        Some(Self { pair, directory })
    }

    /// The notes about snapshots of the operator.
    fn notes(&self) -> Vec<String> {
        let notes = fs::read_to_string(self.directory.join("notes")).unwrap_or_default();
        let lines = notes.lines().filter(|line| !line.contains("@GMT-"));
        lines.map(str::to_owned).collect()
    }

    /// Has the commands behave otherwise while `body` runs.
    fn while_there_is(&self, file: &str, body: impl FnOnce()) {
        let path = self.directory.join(file);
        fs::write(&path, "").unwrap();
        body();
        fs::remove_file(path).unwrap();
    }

    /// The names of the snapshots of the operator, on both nodes.
    #[track_caller]
    fn names(&self) -> Vec<String> {
        let [here, there] = [&self.pair.primary, &self.pair.secondary].map(|node| {
            let names = list(node).into_iter().map(|(name, ..)| name);
            let own = names.filter(|name| !name.starts_with("@GMT-") && name != "fallback");
            own.collect::<Vec<_>>()
        });
        assert_eq!(here, there);
        here
    }
}

fn noted(name: &str, is_seen: bool) -> Vec<String> {
    let call = |when: &str| format!("{when} {name} {DATASTORE}");
    let mut all = vec![call("before"), call("after")];
    all.extend(is_seen.then(|| format!("seen by {name}")));
    all
}

#[test]
fn a_snapshot_is_made_between_the_commands_and_has_what_the_first_one_has_written() {
    let Some(mut hooked) = HookedPair::start() else {
        return;
    };
    let node = &hooked.pair.primary;
    done(node, &["create", DATASTORE, "a"]);
    assert_eq!(hooked.notes(), noted("a", true), "once, on the primary");
    done(node, &["create", DATASTORE, "b", "--no-hooks"]);
    let text = refused(node, &["create", DATASTORE, "b"]);
    assert!(text.contains("already"), "{text}");
    assert_eq!(hooked.notes(), noted("a", true));
    hooked.while_there_is("before-fails", || {
        let text = refused(node, &["create", DATASTORE, "c"]);
        for part in [
            "no snapshot was made",
            "exit code 7",
            "    the database does not answer",
        ] {
            assert!(text.contains(part), "{text}");
        }
    });
    assert_eq!(hooked.names(), ["a", "b"]);
    assert_eq!(hooked.notes()[3..], noted("c", false));
    hooked.while_there_is("after-fails", || {
        let text = refused(node, &["create", DATASTORE, "d"]);
        for part in ["\"d\" is made and stays", "exit code 7", "by hand"] {
            assert!(text.contains(part), "{text}");
        }
    });
    assert_eq!(hooked.names(), ["a", "b", "d"]);
    assert!(
        node.logged()
            .contains("the command after a snapshot has failed")
    );
    // Their commands take turns.
    let before = hooked.notes().len();
    thread::scope(|scope| {
        for name in ["e", "f"] {
            scope.spawn(move || done(node, &["create", DATASTORE, name]));
        }
    });
    let notes = hooked.notes().split_off(before);
    let [one, other] = [["e", "f"], ["f", "e"]].map(|both| both.map(|it| noted(it, true)).concat());
    assert!(notes == one || notes == other, "{notes:?}");
    hooked.pair.stop();
}

#[test]
fn the_schedule_runs_the_commands_and_a_stop_of_the_node_does_not_wait_for_the_first_one() {
    let Some(mut hooked) = HookedPair::start() else {
        return;
    };
    let notes = hooked.directory.join("notes");
    await_that("the snapshot of the schedule between its commands", || {
        let notes = fs::read_to_string(&notes).unwrap_or_default();
        notes.starts_with("before @GMT-") && notes.contains("seen by @GMT-")
    });
    fs::write(hooked.directory.join("hangs"), "").unwrap();
    let control = hooked.pair.primary.control();
    let directory = hooked.directory.clone();
    let creation = thread::spawn(move || {
        let mut command = std::process::Command::new(lockstep_testbed::program());
        command.args(["snapshot", "create", DATASTORE, "g", "--control"]);
        command.arg(control).output().unwrap()
    });
    await_that("the first command", || {
        let notes = fs::read_to_string(directory.join("notes")).unwrap_or_default();
        notes.contains("before g ")
    });
    hooked.pair.stop();
    let output = creation.join().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(hooked.notes(), noted("g", false), "the second one has run");
    fs::remove_file(hooked.directory.join("hangs")).unwrap();
    hooked.pair.start();
    assert!(hooked.names().is_empty());
    let output = snapshot(&hooked.pair.primary, &["create", DATASTORE, "h"]);
    assert!(output.status.success());
    hooked.pair.stop();
}
