//! One difference at a time, planted into equal stores.

use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};

use lockstep_repl::message::{ContentSource, Request, Response};
use lockstep_resync::{JobProgress, Peer, PeerError, ResyncSource, send_content};
use lockstep_types::{Ino, MetaRequest, NodeKind};
use lockstep_verify::report::LISTED_MAX;
use lockstep_verify::{Report, compare};

use super::nodes::{FreeLocks, LocalPeer, Node, name, send_namespace};

/// Two nodes with the same tree: `/d/e/small` (9000 bytes), `/long` (3 MiB and a hole up to 4 GiB).
struct Pair {
    primary: Node,
    secondary: Node,
    directory: Ino,
    small: Ino,
    long: Ino,
}

impl Pair {
    fn new() -> Self {
        let primary = Node::new();
        let outer = primary.create(Ino::ROOT, "d", NodeKind::Directory).unwrap();
        let directory = primary.create(outer, "e", NodeKind::Directory).unwrap();
        let small = primary.create(directory, "small", NodeKind::File).unwrap();
        primary.write(small, 0, &[1; 9000]);
        primary.xattr(small, "user.a", b"one");
        let long = primary.file("long", &vec![2; 3 << 20]);
        primary.meta(MetaRequest::Truncate {
            ino: long,
            size: 4 << 30,
            drop_set_id: false,
        });
        let mut secondary = Node::new();
        let peer = LocalPeer::new(&secondary);
        let progress = JobProgress::default();
        send_namespace(primary.store(), &peer).unwrap();
        let view = primary.store().tree();
        let source = ResyncSource::new(&view, primary.store());
        send_content(source, &peer, &FreeLocks, &progress, None, &drop).unwrap();
        // Closed and opened again, so that the store has no content open that the test damages, and
        // gives out inode numbers of its own.
        secondary.store().close().unwrap();
        secondary.restart();
        secondary.later_than(1000);
        Self {
            primary,
            secondary,
            directory,
            small,
            long,
        }
    }

    fn compare(&self) -> Report {
        let peer = LocalPeer::new(&self.secondary);
        compare(
            &self.primary.store().tree(),
            &peer,
            &FreeLocks,
            &JobProgress::default(),
        )
        .unwrap()
    }

    /// The found differences, one text for each.
    fn found(&self) -> Vec<String> {
        let report = self.compare();
        assert_eq!(report.total, report.differences.len() as u64);
        report.differences.iter().map(ToString::to_string).collect()
    }

    fn damage(&self, ino: Ino, offset: u64, bytes: &[u8]) {
        let path = self.secondary.content_path(ino);
        let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        file.write_all_at(bytes, offset).unwrap();
    }
}

#[track_caller]
fn assert_named(found: &[String], expected: &[&str]) {
    for text in expected {
        assert!(
            found.iter().any(|line| line.contains(text)),
            "{text} is not in {found:#?}"
        );
    }
}

#[test]
fn equal_stores_are_identical() {
    let pair = Pair::new();
    let report = pair.compare();
    assert!(report.is_identical());
    assert_eq!((report.inodes, report.bytes), (5, (4 << 30) + 9000));
}

#[test]
fn bytes_of_a_small_file() {
    let pair = Pair::new();
    pair.damage(pair.small, 4100, b"x");
    let expected = format!(
        "/d/e/small (inode {}): content differs in 4096 bytes from byte 4096 on",
        pair.small
    );
    assert_eq!(pair.found(), [expected]);
}

#[test]
fn bytes_of_a_long_file() {
    let pair = Pair::new();
    pair.damage(pair.long, (1 << 20) - 1, b"xx");
    pair.damage(pair.long, 2 << 20, &[7; 8192]);
    let prefix = format!("/long (inode {}): content differs in 8192 bytes", pair.long);
    let expected = [
        format!("{prefix} from byte {} on", (1 << 20) - 4096),
        format!("{prefix} from byte {} on", 2 << 20),
    ];
    assert_eq!(pair.found(), expected);
}

#[test]
fn data_where_there_is_a_hole() {
    let pair = Pair::new();
    pair.damage(pair.long, 1 << 30, &[0; 100]);
    assert!(pair.found().is_empty(), "zeros are as good as a hole");
    pair.damage(pair.long, 1 << 30, b"x");
    assert_named(&pair.found(), &["/long", "content differs"]);
}

#[test]
fn content_that_is_cut_or_missing() {
    let pair = Pair::new();
    std::fs::remove_file(pair.secondary.content_path(pair.small)).unwrap();
    let path = pair.secondary.content_path(pair.long);
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(1 << 21).unwrap();
    let found = pair.found();
    assert_named(
        &found,
        &[
            "content on disk is 9000 bytes long here and 0 on the peer",
            "content differs in 9000 bytes from byte 0 on",
            "content on disk is 4294967296 bytes long here and 2097152 on the peer",
            "content differs in 1048576 bytes from byte 2097152 on",
        ],
    );
    assert_eq!(found.len(), 4);
}

#[test]
fn attributes() {
    let pair = Pair::new();
    pair.secondary.meta(MetaRequest::SetAttr {
        ino: pair.directory,
        mode: Some(0o700),
        uid: Some(77),
        gid: None,
        atime: None,
        mtime: None,
    });
    let found = pair.found();
    assert_named(
        &found,
        &[
            "/d/e (inode",
            "mode is 644 here and 700",
            "owner is 3 here and 77",
            "ctime is 3.000000005 here and 1000.000000005 on the peer",
            "last op",
        ],
    );
    assert_eq!(found.len(), 4);
}

#[test]
fn extended_attributes() {
    let pair = Pair::new();
    pair.secondary.xattr(pair.small, "user.a", b"two");
    pair.secondary.xattr(pair.small, "user.b", b"new");
    pair.primary.xattr(pair.small, "user.c", b"new");
    assert_named(
        &pair.found(),
        &[
            "extended attribute user.a differs",
            "extended attribute user.b exists on the peer only",
            "extended attribute user.c exists on this node only",
        ],
    );
}

#[test]
fn names_and_inodes() {
    let pair = Pair::new();
    let there = pair.secondary.file("only there", &[1; 10]);
    pair.primary.store().next_ino().unwrap();
    let here = pair.primary.file("only here", &[1; 10]);
    pair.secondary.meta(MetaRequest::Unlink {
        parent: pair.directory,
        name: name("small"),
    });
    let found = pair.found();
    assert_named(
        &found,
        &[
            "/ (inode 1): directory entry only there exists on the peer only",
            "/ (inode 1): directory entry only here exists on this node only",
            &format!("inode {there}: exists on the peer only"),
            &format!("/only here (inode {here}): exists on this node only"),
            "/d/e (inode 3): directory entry small exists on this node only",
            "/d/e (inode 3): number of entries is 1 here and 0 on the peer",
            "mark of having no name",
            "link count is 1 here and 0 on the peer",
        ],
    );
}

#[test]
fn more_differences_than_are_listed_are_counted() {
    let pair = Pair::new();
    let extra = LISTED_MAX as u64 + 500;
    for number in 0..extra {
        pair.secondary
            .xattr(pair.small, &format!("user.{number}"), b"v");
    }
    let report = pair.compare();
    assert!(report.total > extra);
    assert_eq!(report.differences.len(), LISTED_MAX);
}

#[test]
fn inodes_beyond_the_primarys_last_inode_are_found_over_many_answers() {
    let pair = Pair::new();
    for number in 0..2100 {
        pair.secondary
            .create(pair.directory, &format!("{number}"), NodeKind::Fifo);
    }
    let report = pair.compare();
    assert!(report.total > 2100 && report.differences.len() == LISTED_MAX);
    let ask = |from| Request::Digests {
        from,
        to: u64::MAX,
        source: ContentSource::Memory,
    };
    let first = lockstep_verify::answer(&pair.secondary.store().tree(), &ask(1)).unwrap();
    let Response::Digests { to, digests, .. } = first else {
        panic!("{first:?}");
    };
    assert_eq!(digests.len(), 2048);
    assert!(digests.iter().all(|(number, _)| *number < to));
    let rest = lockstep_verify::answer(&pair.secondary.store().tree(), &ask(to)).unwrap();
    let Response::Digests { to, digests, .. } = rest else {
        panic!("{rest:?}");
    };
    assert_eq!((to, digests.len()), (u64::MAX, 2105 - 2048));
}

#[test]
fn many_inodes_take_few_requests() {
    let primary = Node::new();
    for number in 0..1000 {
        primary.file(&format!("{number}"), &[1; 100]);
    }
    let secondary = Node::new();
    let peer = LocalPeer::new(&secondary);
    let progress = JobProgress::default();
    send_namespace(primary.store(), &peer).unwrap();
    let view = primary.store().tree();
    let source = ResyncSource::new(&view, primary.store());
    send_content(source, &peer, &FreeLocks, &progress, None, &drop).unwrap();
    let peer = LocalPeer::new(&secondary);
    let report = compare(&primary.store().tree(), &peer, &FreeLocks, &progress).unwrap();
    assert!(report.is_identical());
    assert_eq!((report.inodes, progress.inodes_done.get()), (1001, 1001));
    assert!(peer.asked.load(Ordering::Relaxed) < 30);
}

/// A peer that counts the questions for digests: of batches, and of each inode.
struct CountingPeer<'a> {
    secondary: LocalPeer<'a>,
    batches: AtomicU64,
    lists: AtomicU64,
}

impl Peer for CountingPeer<'_> {
    fn ask(&self, request: Request, payload: &[u8]) -> Result<Response, PeerError> {
        match &request {
            Request::DigestOfBatch { .. } => drop(self.batches.fetch_add(1, Ordering::Relaxed)),
            Request::Digests { .. } => drop(self.lists.fetch_add(1, Ordering::Relaxed)),
            _ => {}
        }
        self.secondary.ask(request, payload)
    }
}

#[test]
fn inodes_that_are_equal_cost_one_hash_for_a_batch() {
    let (primary, secondary) = (Node::new(), Node::new());
    for node in [&primary, &secondary] {
        for number in 0..700 {
            node.file(&format!("file {number}"), &[1; 100]);
        }
    }
    let questions = || {
        let peer = CountingPeer {
            secondary: LocalPeer::new(&secondary),
            batches: AtomicU64::new(0),
            lists: AtomicU64::new(0),
        };
        let (view, progress) = (primary.store().tree(), JobProgress::default());
        let report = compare(&view, &peer, &FreeLocks, &progress).unwrap();
        (
            report.total,
            peer.batches.into_inner(),
            peer.lists.into_inner(),
        )
    };
    // 701 inodes with the root.
    assert_eq!(questions(), (0, 3, 0));
    primary.write(Ino::new(300).unwrap(), 0, b"other");
    let (total, batches, lists) = questions();
    assert!(
        total > 0 && batches == 3,
        "{total} differences, {batches} batches"
    );
    // One for the batch, and one for the second look.
    assert_eq!(lists, 2);
}
