//! A directory that is deleted on both servers comes back from a snapshot.

use std::fs;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::Demo;
use super::files::{DemoFiles, TREE};
use super::show::{count, duration};
use crate::config::DATASTORE;

const NAME: &str = "before";

impl Demo<'_> {
    /// Takes a snapshot, deletes the small files, and rolls them back.
    pub(super) fn take_a_deletion_back(&self, files: &DemoFiles) -> Result<()> {
        self.show
            .step("Take a snapshot, delete a directory, and get it back");
        let mount = self.cluster.mount()?;
        let (tree, past) = (
            mount.join(TREE),
            mount.join(".lockstep/snapshots").join(NAME).join(TREE),
        );
        self.snapshot("create", NAME)?;
        self.show.command(&format!("rm -r {}", tree.display()));
        fs::remove_dir_all(&tree).context("cannot delete the directory")?;
        ensure!(!tree.exists(), "the directory is still there");
        let left = fs::read_dir(&past).context("the snapshot cannot be read")?;
        self.show.good(&format!(
            "gone on both nodes; {} has all of its {} directories",
            past.display(),
            left.count()
        ));
        let started = Instant::now();
        self.snapshot("rollback", NAME)?;
        let taken = started.elapsed();
        files.check(&mount)?;
        self.show.good(&format!(
            "{} files are back, each compared with what was written, in {}",
            count(files.tree_files()),
            duration(taken)
        ));
        self.cluster
            .playground
            .delete_snapshots(self.cluster.primary)
    }

    fn snapshot(&self, verb: &str, name: &str) -> Result<()> {
        self.show
            .command(&format!("lockstep snapshot {verb} {DATASTORE} {name}"));
        self.cluster
            .playground
            .snapshot(self.cluster.primary, verb, name)
    }
}
