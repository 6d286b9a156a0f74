//! Files without a name: the space of a file that no program can reach any more is free on both nodes.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use lockstep_testbed::Which::{Primary as A, Secondary as B};
use lockstep_testbed::operator::{await_alone, await_in_sync, change, fail_over};
use lockstep_testbed::{Node, Pair, await_that};

/// Number of files of content in the store of a node.
fn content_files(node: &Node) -> usize {
    let dirs = fs::read_dir(node.store().join("content")).unwrap();
    let files = |dir: PathBuf| fs::read_dir(dir).map_or(0, Iterator::count);
    dirs.map(|dir| files(dir.unwrap().path())).sum()
}

fn await_content_files(pair: &Pair, count: usize) {
    for which in [A, B] {
        await_that(&format!("{count} files of content on {which:?}"), || {
            content_files(pair.node(which)) == count
        });
    }
}

/// An open file with content and without a name.
fn open_orphan(root: &Path) -> File {
    let path = root.join("orphan");
    fs::write(&path, "content").unwrap();
    let file = File::open(&path).unwrap();
    fs::remove_file(path).unwrap();
    file
}

/// A file is freed after the death of its program's node, on any node that serves next, and after a planned failover.
pub fn are_freed(pair: &mut Pair) {
    fs::write(pair.node(A).mount().join("kept"), "content").unwrap();
    await_content_files(pair, 1);

    let lost = open_orphan(&pair.node(A).mount());
    await_content_files(pair, 2);
    pair.node_mut(A).kill();
    drop(lost);
    pair.node_mut(A).start();
    await_in_sync(pair, A, 1);
    await_content_files(pair, 1);

    let lost = open_orphan(&pair.node(A).mount());
    await_content_files(pair, 2);
    pair.node_mut(A).kill();
    drop(lost);
    await_alone(pair.node(B));
    change(pair.node(B), "promote", &[]);
    pair.node_mut(A).start();
    await_in_sync(pair, B, 2);
    await_content_files(pair, 1);

    let closed = open_orphan(&pair.node(B).mount());
    await_content_files(pair, 2);
    fail_over(pair, B, 2);
    drop(closed);
    await_content_files(pair, 1);
    await_in_sync(pair, A, 3);
}
