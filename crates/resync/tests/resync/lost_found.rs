//! A resync of a deposed node sets aside the data that only that node had, beside any work of clients and wherever its
//! process is killed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use lockstep_fs::StoreView;
use lockstep_fs::paths::{content_path, lost_found_dir};
use lockstep_types::{AllocateMode, Generation, Ino, MetaRequest, NodeKind};
use proptest::prelude::*;

use super::converge::{BusyLocks, assert_equal, resync, steps};
use super::nodes::{FreeLocks, LocalPeer, Node, name};
use super::steps::take_all;

const BLOCK: usize = 4096;

fn generation() -> Generation {
    Generation::new(3).unwrap()
}

fn directory(node: &Node) -> PathBuf {
    node.path(&lost_found_dir(generation()))
}

fn list(node: &Node) -> String {
    fs::read_to_string(directory(node).join("list.txt")).unwrap_or_default()
}

/// A resync of a deposed secondary, to the end.
fn resync_deposed(primary: &Node, secondary: &Node) {
    secondary.store().lost_found().begin(generation(), None);
    resync(primary, &LocalPeer::new(secondary), &FreeLocks).unwrap();
    complete(secondary);
}

fn complete(secondary: &Node) {
    secondary.store().lost_found().complete().unwrap();
    secondary.store().lost_found().end();
    secondary.store().collect_garbage().unwrap();
}

/// The blocks with data of all files, by inode and offset.
fn blocks(node: &Node) -> BTreeMap<(Ino, u64), Vec<u8>> {
    let store = node.store();
    let mut blocks = BTreeMap::new();
    for (ino, kind) in store.tree().inodes(1, u64::MAX, usize::MAX).unwrap() {
        if kind != NodeKind::File {
            continue;
        }
        let length = store.tree().content_bytes(ino).unwrap();
        let mut at = 0;
        while let Some(data) = store.tree().next_data(ino, at).unwrap() {
            let start = data - data % BLOCK as u64;
            let end = (start + BLOCK as u64).min(length);
            let mut block = vec![0; usize::try_from(end - start).unwrap()];
            store.tree().read_raw(ino, start, &mut block).unwrap();
            blocks.insert((ino, start), block);
            at = end;
        }
    }
    blocks
}

/// The blocks with data that the other node has not.
fn blocks_alone(node: &Node, other: &Node) -> BTreeMap<(Ino, u64), Vec<u8>> {
    let mut alone = blocks(node);
    alone.retain(|(ino, offset), bytes| {
        let mut there = vec![0; bytes.len()];
        other
            .store()
            .tree()
            .read_raw(*ino, *offset, &mut there)
            .unwrap();
        there != *bytes
    });
    alone
}

/// The kept files of an inode.
fn kept_of(node: &Node, ino: Ino) -> Vec<Vec<u8>> {
    let whole = directory(node).join(content_path(ino));
    let name = whole.file_name().unwrap().to_str().unwrap().to_owned();
    let Ok(entries) = fs::read_dir(whole.parent().unwrap()) else {
        return Vec::new();
    };
    let names = entries.map(|entry| entry.unwrap().path());
    let is_ours = |path: &PathBuf| {
        let found = path.file_name().unwrap().to_str().unwrap();
        found.split('.').next() == Some(&name)
    };
    names
        .filter(is_ours)
        .map(|path| sparse_head(&path))
        .collect()
}

/// The first bytes of a file. The tests write few blocks beyond, which are left out: the file may be huge and sparse.
fn sparse_head(path: &Path) -> Vec<u8> {
    use std::io::Read;
    let mut head = Vec::new();
    let file = fs::File::open(path).unwrap();
    file.take(HEAD_BYTES as u64).read_to_end(&mut head).unwrap();
    head
}

const HEAD_BYTES: usize = 4 << 20;

/// Checks that each block of `before` is still in its file, or is kept.
fn assert_nothing_is_lost(before: &BTreeMap<(Ino, u64), Vec<u8>>, node: &Node) {
    for ((ino, offset), old) in before {
        let mut now = vec![0; old.len()];
        node.store()
            .tree()
            .read_raw(*ino, *offset, &mut now)
            .unwrap();
        let at = usize::try_from(*offset).unwrap();
        if now == *old || at + old.len() > HEAD_BYTES {
            continue;
        }
        let kept = kept_of(node, *ino);
        assert!(
            kept.iter()
                .any(|file| file.get(at..at + old.len()) == Some(old)),
            "inode {ino:?}, offset {offset}: {} kept files\n{}",
            kept.len(),
            list(node)
        );
        let shown = format!("\t{:x}\t", ino.get());
        assert!(
            list(node).contains(&shown),
            "{ino:?} is not listed: {}",
            list(node)
        );
    }
}

#[test]
fn an_operator_finds_what_only_the_deposed_node_had() {
    let (primary, secondary) = (Node::new(), Node::new());
    for node in [&primary, &secondary] {
        let shared = node.file("shared", &[1; 3 * BLOCK]);
        node.file("same", &[5; 3 * BLOCK]);
        node.xattr(shared, "user.note", b"common");
        node.create(Ino::ROOT, "dir", NodeKind::Directory).unwrap();
    }
    let found = |text: &str| {
        secondary
            .store()
            .tree()
            .lookup(Ino::ROOT, &name(text))
            .unwrap()
            .ino
    };
    let (shared, dir) = (found("shared"), found("dir"));
    secondary.write(shared, BLOCK as u64, &[2; BLOCK]);
    secondary.write(shared, 3 * BLOCK as u64, &[3; 100]);
    secondary.xattr(shared, "user.note", b"of\tA");
    let alone = secondary.create(dir, "alone", NodeKind::File).unwrap();
    secondary.write(alone, 0, b"only here");
    primary.later_than(1000);
    resync_deposed(&primary, &secondary);
    assert_equal(&primary, &secondary);

    let ranges =
        fs::read(directory(&secondary).join(format!("{}.ranges", content_path(shared)))).unwrap();
    assert_eq!(ranges[BLOCK..2 * BLOCK], [2; BLOCK]);
    assert_eq!(ranges[3 * BLOCK..], [3; 100]);
    assert_eq!(
        ranges[..BLOCK],
        [0; BLOCK],
        "a block that stays is not kept"
    );
    let whole = directory(&secondary).join(content_path(alone));
    assert_eq!(fs::read(whole).unwrap(), b"only here");
    let list = list(&secondary);
    let (shared, alone) = (shared.get(), alone.get());
    for line in [
        format!("overwritten\t{shared:x}\t/shared\toffset 4096 length 4096\t"),
        format!("cut off\t{shared:x}\t/shared\toffset 12288 length 100\t"),
        format!("name\t{alone:x}\t/dir/alone\tthe name is gone\t"),
        format!("inode removed\t{alone:x}\t/dir/alone\tgid 4, kind file, mode 644,"),
        format!(
            "content removed\t{alone:x}\t/dir/alone\tlength 9\t.lockstep/lost+found/3/content/0/"
        ),
        format!("extended attribute\t{shared:x}\t/shared\tuser.note changed, before: of\\x09A"),
    ] {
        assert!(list.contains(&line), "{line}\nis not in\n{list}");
    }
    assert!(!list.contains("/same"), "{list}");
    let totals = || {
        secondary.store().lost_found().refresh().unwrap();
        secondary.store().lost_found().totals()
    };
    assert_eq!(totals().len(), 1);
    assert_eq!((totals()[0].0, totals()[0].1.files), (generation(), 2));
    fs::remove_dir_all(directory(&secondary)).unwrap();
    assert!(totals().is_empty(), "the operator has removed it");
}

#[test]
fn an_ordinary_secondary_and_equal_copies_leave_nothing() {
    let (primary, secondary) = (Node::new(), Node::new());
    primary.file("new", &[1; 2 * BLOCK]);
    secondary.file("old", &[2; 2 * BLOCK]);
    resync(&primary, &LocalPeer::new(&secondary), &FreeLocks).unwrap();
    assert!(!directory(&secondary).exists());
    resync_deposed(&primary, &secondary);
    assert!(!directory(&secondary).exists(), "{}", list(&secondary));
}

/// Punched and zeroed ranges are changes, too.
#[test]
fn bytes_that_the_primary_has_as_a_hole_or_as_zeros_are_kept() {
    let (primary, secondary) = (Node::new(), Node::new());
    let content = vec![7; 64 * BLOCK];
    let [here, there] = [&primary, &secondary].map(|node| node.file("file", &content));
    assert_eq!(here, there);
    for (mode, offset) in [(AllocateMode::PunchHole, 0), (AllocateMode::ZeroRange, 8)] {
        assert!(primary.meta(MetaRequest::Allocate {
            ino: here,
            offset: offset * BLOCK as u64,
            length: 4 * BLOCK as u64,
            mode,
        }));
    }
    let before = blocks_alone(&secondary, &primary);
    resync_deposed(&primary, &secondary);
    assert_equal(&primary, &secondary);
    assert_nothing_is_lost(&before, &secondary);
    let kept = kept_of(&secondary, there);
    assert_eq!(kept.len(), 1);
    assert_eq!(kept[0].len(), 12 * BLOCK);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn no_block_of_a_deposed_node_is_lost(
        common in steps(20),
        here in steps(30),
        there in steps(30),
        meanwhile in steps(30),
    ) {
        let (primary, secondary) = (Node::new(), Node::new());
        take_all(&primary, &common);
        take_all(&secondary, &common);
        take_all(&primary, &here);
        take_all(&secondary, &there);
        secondary.store().checkpoint().unwrap();
        let before = blocks_alone(&secondary, &primary);
        secondary.store().lost_found().begin(generation(), None);
        let locks = BusyLocks::new(&primary, &secondary, &meanwhile);
        resync(&primary, &LocalPeer::new(&secondary), &locks).unwrap();
        complete(&secondary);
        assert_equal(&primary, &secondary);
        assert_nothing_is_lost(&before, &secondary);
    }

    #[test]
    fn no_block_of_a_deposed_node_is_lost_if_its_process_is_killed(
        here in steps(30),
        there in steps(30),
        kills in prop::collection::vec(0..60u64, 1..4),
    ) {
        let (primary, mut secondary) = (Node::new(), Node::new());
        take_all(&primary, &here);
        take_all(&secondary, &there);
        secondary.store().checkpoint().unwrap();
        let before = blocks_alone(&secondary, &primary);
        for lost_at in kills {
            secondary.store().lost_found().begin(generation(), None);
            let peer = LocalPeer { lost_at, ..LocalPeer::new(&secondary) };
            let _cut = resync(&primary, &peer, &FreeLocks);
            secondary.restart();
        }
        resync_deposed(&primary, &secondary);
        assert_equal(&primary, &secondary);
        assert_nothing_is_lost(&before, &secondary);
    }
}
