//! `lockstep snapshot diff` on two real nodes: the difference is the same on both, whole and by cursors.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)] // tests may panic

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::process::{Command, Output};

use lockstep_testbed::{
    DATASTORE, IMPATIENT, Node, NodeEnvironment, Pair, await_that, can_mount, program,
};
use serde_json::Value;

lockstep_testbed::network_process!();

fn snapshot(node: &Node, action: &str, args: &[&str]) -> Output {
    let mut command = Command::new(program());
    command.args(["snapshot", action, DATASTORE]).args(args);
    command.arg("--control").arg(node.control());
    command.output().unwrap()
}

#[track_caller]
fn done(node: &Node, action: &str, args: &[&str]) -> String {
    let output = snapshot(node, action, args);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn refused(node: &Node, args: &[&str]) -> String {
    let output = snapshot(node, "diff", args);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(output.stdout.is_empty() && text.contains("cure:"), "{text}");
    text
}

/// The lines in the order of the text: entries come by inode number.
fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

/// The entries in JSON lines, and the last cursor.
fn entries(text: &str) -> (Vec<Value>, Option<String>) {
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    let (mut entries, mut cursor) = (Vec::new(), None);
    for line in lines.skip(1) {
        let line: Value = line;
        match line.get("cursor") {
            Some(at) => cursor = at.as_str().map(str::to_owned),
            None => entries.push(line),
        }
    }
    (entries, cursor)
}

fn state_of(node: &Node, name: &str) -> String {
    let listed: Value = serde_json::from_str(&done(node, "list", &["--json"])).unwrap();
    let all = listed["snapshots"].as_array().unwrap().iter();
    let mut named = all.filter(|it| it["name"] == *name);
    named
        .next()
        .map_or_else(String::new, |it| it["state"].as_str().unwrap().to_owned())
}

/// Makes files, a snapshot `a`, changes of each kind, and a snapshot `b`.
fn make_both(pair: &Pair) {
    let mount = pair.mount();
    let put = |name: &str, bytes: &[u8]| fs::write(mount.join(name), bytes).unwrap();
    fs::create_dir_all(mount.join("d/e")).unwrap();
    put("d/e/deep", b"deep");
    put("d/moved", &vec![1; 70_000]);
    put("d/gone", b"gone");
    put("over", b"old");
    put("body", &vec![2; 300_000]);
    put("same", b"same");
    done(&pair.primary, "create", &["a"]);
    fs::rename(mount.join("d/moved"), mount.join("named\nanew")).unwrap();
    fs::remove_file(mount.join("d/gone")).unwrap();
    fs::hard_link(mount.join("d/e/deep"), mount.join("linked")).unwrap();
    fs::rename(mount.join("d/e"), mount.join("f")).unwrap();
    put("new", b"new");
    fs::rename(mount.join("new"), mount.join("over")).unwrap();
    let body = OpenOptions::new().write(true).open(mount.join("body"));
    let body: File = body.unwrap();
    body.write_all_at(b"x", 8192 + 5).unwrap();
    body.write_all_at(&[0; 4096], 65_536).unwrap();
    body.set_len(200_000).unwrap();
    body.write_all_at(b"end", 210_000).unwrap();
    done(&pair.primary, "create", &["b"]);
}

const BOTH: &[&str] = &["a", "b"];

#[test]
fn a_difference_is_the_same_on_both_nodes_whole_and_by_cursors() {
    if !can_mount() {
        return;
    }
    let mut pair = Pair::prepare(IMPATIENT, [(); 2].map(|()| NodeEnvironment::default()));
    pair.start();
    make_both(&pair);
    let text = done(&pair.primary, "diff", BOTH);
    let expected = [
        "changed  .: links, mtime, ctime",
        "changed  body: size, mtime, ctime",
        "changed  d: links, mtime, ctime",
        "changed  f/deep: links, ctime",
        "created  over",
        "deleted  d/gone",
        "deleted  over",
        "linked   linked (was d/e/deep)",
        "renamed  d/e -> f: ctime",
        "renamed  d/moved -> named\\nanew: ctime",
    ];
    assert_eq!(sorted(&text), expected);
    assert_eq!(done(&pair.secondary, "diff", BOTH), text);
    let with_ranges = done(&pair.primary, "diff", &["a", "b", "--ranges"]);
    let body = "changed  body: size, mtime, ctime\n  bytes 8192 + 4096\n  zeros 65536 + 4096\n  bytes 196608 + 4096\n  \
                zeros 200704 + 8192\n  bytes 208896 + 1107\n";
    assert!(with_ranges.contains(body), "{with_ranges}");
    check_names(&pair.primary);
    check_cursors(&pair);
    check_present(&pair);
    check_refusals(&pair);
    check_missing(&mut pair);
    pair.stop();
}

fn check_names(node: &Node) {
    let names = |args: &[&str]| {
        let text = done(node, "diff", &[BOTH, args].concat());
        let mut names: Vec<String> = text.split_terminator('\0').map(str::to_owned).collect();
        names.sort_unstable();
        names
    };
    let gone = ["d/e", "d/gone", "d/moved", "over"];
    assert_eq!(names(&["-0", "--only", "removed"]), gone);
    let present = [
        ".",
        "body",
        "d",
        "f",
        "f/deep",
        "linked",
        "named\nanew",
        "over",
    ];
    assert_eq!(names(&["-0", "--only", "present"]), present);
    assert_eq!(names(&["-0"]).len(), gone.len() + present.len());
}

/// Each page comes from the other node than the one before.
fn check_cursors(pair: &Pair) {
    let nodes = [&pair.secondary, &pair.primary];
    let whole = done(&pair.primary, "diff", &["a", "b", "--ranges", "--json"]);
    let head: Value = serde_json::from_str(whole.lines().next().unwrap()).unwrap();
    assert_eq!(
        (&head["from"]["name"], &head["to"]["name"]),
        (&"a".into(), &"b".into())
    );
    let (all, end) = entries(&whole);
    assert_eq!(end, None);
    let limit = ["--ranges", "--json", "--limit", "2"];
    let first = done(&pair.primary, "diff", &[BOTH, &limit].concat());
    let (mut found, mut cursor) = entries(&first);
    let mut pages = 1;
    while let Some(at) = cursor {
        let args = [&["--cursor", &*at], &limit[..]].concat();
        let page = done(nodes[pages % 2], "diff", &args);
        let (more, next) = entries(&page);
        found.extend(more);
        cursor = next;
        pages += 1;
    }
    assert!(pages > 3, "{pages}");
    assert!(found.len() > all.len(), "a file goes on");
    assert_eq!(joined(found), all);
}

/// Puts the ranges of continued entries to the first entry of the file.
fn joined(found: Vec<Value>) -> Vec<Value> {
    let mut joined: Vec<Value> = Vec::new();
    for mut entry in found {
        if entry["continued"] == false {
            joined.push(entry);
            continue;
        }
        let first = joined.last_mut().unwrap();
        assert_eq!(first["path"], entry["path"]);
        let ranges = first["ranges"].as_array_mut().unwrap();
        ranges.append(entry["ranges"].as_array_mut().unwrap());
    }
    joined
}

fn check_present(pair: &Pair) {
    let mount = pair.mount();
    assert_eq!(done(&pair.primary, "diff", &["b"]), "");
    let body = OpenOptions::new().write(true).open(mount.join("body"));
    body.unwrap().write_all_at(b"later", 0).unwrap();
    let text = "changed  body: mtime, ctime\n  bytes 0 + 4096\n";
    for node in [&pair.primary, &pair.secondary] {
        assert_eq!(done(node, "diff", &["b", "--ranges"]), text);
    }
}

fn check_refusals(pair: &Pair) {
    let node = &pair.primary;
    for (args, why) in [
        (&["a", "c"][..], "this node has no snapshot \"c\""),
        (&["b", "a"], "newer than the second one"),
        (&["--cursor", "00ff"], "is no cursor"),
    ] {
        let text = refused(node, args);
        assert!(text.contains(why), "{text}");
    }
    let limited = done(node, "diff", &["a", "b", "--limit", "1", "--json"]);
    let cursor = entries(&limited).1.unwrap();
    done(node, "rename", &["a", "c"]);
    done(node, "diff", &["--cursor", &cursor]);
    done(node, "delete", &["c"]);
    for node in [&pair.primary, &pair.secondary] {
        let text = refused(node, &["--cursor", &cursor]);
        assert!(text.contains("is deleted"), "{text}");
    }
}

/// A snapshot that the primary has made alone.
fn check_missing(pair: &mut Pair) {
    pair.secondary.stop();
    await_that("the primary to serve alone", || {
        snapshot(&pair.primary, "create", &["alone"])
            .status
            .success()
    });
    fs::write(pair.mount().join("since"), b"").unwrap();
    pair.secondary.start();
    pair.await_in_sync();
    assert_eq!(state_of(&pair.secondary, "alone"), "missing");
    let text = refused(&pair.secondary, &["alone"]);
    assert!(text.contains("ask the other node"), "{text}");
    let text = done(&pair.primary, "diff", &["alone"]);
    assert!(text.contains("created  since\n"), "{text}");
}

/// A page of entries with the longest paths would not fit a message.
#[test]
fn long_paths_come_in_smaller_pages() {
    const FILES: usize = 3000;
    if !can_mount() {
        return;
    }
    let mut pair = Pair::prepare(IMPATIENT, [(); 2].map(|()| NodeEnvironment::default()));
    pair.start();
    done(&pair.primary, "create", &["a"]);
    let mut deep = pair.mount();
    for _ in 0..15 {
        deep.push("n".repeat(250));
    }
    fs::create_dir_all(&deep).unwrap();
    for number in 0..FILES {
        File::create(deep.join(number.to_string())).unwrap();
    }
    done(&pair.primary, "create", &["b"]);
    let text = done(&pair.primary, "diff", BOTH);
    assert!(text.len() > 10 << 20);
    assert_eq!(text.lines().count(), 1 + 15 + FILES);
    pair.stop();
}
