//! A mount is resumed after the other node has served: the kernel sends requests again that the earlier process has executed,
//! and knows what was true before.
//!
//! The other node is the model itself, which the test changes.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use lockstep_driver::client::{FileService, Standing, WriteData, WriteOptions};
use lockstep_types::{FileName, Ino, MetaRequest, NodeKind};
use rustix::fs::{
    CWD, FallocateFlags, RenameFlags, XattrFlags, copy_file_range, fallocate, removexattr,
    renameat_with, setxattr,
};
use rustix::io::Errno;

use crate::answers::file;
use crate::gated::{Gated, await_true};
use crate::interrupted::{StopPoint, interrupt_at};
use crate::model::ModelFs;

/// A request that is not answered by then waits.
const LONG: Duration = Duration::from_secs(10);

fn name(text: &str) -> FileName {
    FileName::new(text.as_bytes()).unwrap()
}

fn find(model: &ModelFs, text: &str) -> Option<Ino> {
    let found = model.lookup(Ino::ROOT, &name(text));
    found.ok().map(|attr| attr.ino)
}

fn change(model: &ModelFs, request: MetaRequest) {
    let done = Box::new(|outcome: Result<_, _>| {
        outcome.unwrap();
    });
    model.change(request, done);
}

/// Makes a file, if the name is free.
fn make(model: &ModelFs, text: &str) {
    if find(model, text).is_none() {
        let ino = model.next_ino().unwrap();
        let create = MetaRequest::creation(Ino::ROOT, name(text), ino, NodeKind::File)
            .mode(0o600)
            .request();
        change(model, create);
    }
}

/// The node of the next process, which does not know yet whether it serves.
fn undecided(model: &Arc<ModelFs>) -> Arc<Gated> {
    let node = Gated::new(Arc::clone(model));
    node.stand(Standing::Undecided);
    node
}

/// The first process executes a change and does not answer. Then the other node serves, and makes files of its own. The
/// program gets an error, and its change does not happen again.
fn refuse<T: Send>(
    kind: &'static str,
    prepare: impl FnOnce(&Path) -> T,
    act: impl FnOnce(&Path, &T) -> io::Result<()> + Send,
) {
    let (tell, told) = channel();
    let act = |dir: &Path, prepared: T| {
        let outcome = act(dir, &prepared).map_err(|error| error.raw_os_error());
        tell.send(()).unwrap();
        assert_eq!(outcome, Err(Some(Errno::IO.raw_os_error())));
        // The kernel has dropped the names from before a moment later.
        await_true(|| ["a", "b"].iter().all(|left| dir.join(left).exists()));
    };
    interrupt_at((kind, StopPoint::AfterExecution), prepare, act, |model| {
        let node = undecided(&model);
        let service = Arc::<Gated>::clone(&node);
        let meanwhile = move || {
            node.await_refused_programs(1);
            make(&model, "a");
            make(&model, "b");
            node.stand(Standing::Following);
            // A request that waits on is answered when this node serves.
            let _told = told.recv_timeout(LONG);
            node.stand(Standing::Serving);
        };
        (service, Box::new(meanwhile))
    });
}

/// Every kind of change.
pub fn changes_fail() {
    let nothing = |_: &Path| ();
    let one = |dir: &Path| file(&dir.join("a"));
    let marked = |dir: &Path| {
        let file = file(&dir.join("a"));
        setxattr(dir.join("a"), "user.x", b"old", XattrFlags::empty()).unwrap();
        file
    };
    refuse("Create", nothing, |dir, ()| {
        File::create_new(dir.join("new")).map(drop)
    });
    refuse("Create", nothing, |dir, ()| fs::create_dir(dir.join("new")));
    refuse("Link", one, |dir, _| {
        fs::hard_link(dir.join("a"), dir.join("b"))
    });
    refuse("Unlink", one, |dir, _| fs::remove_file(dir.join("a")));
    refuse("Rename", one, |dir, _| {
        fs::rename(dir.join("a"), dir.join("b"))
    });
    refuse("Rename", one, |dir, _| {
        fs::write(dir.join("b"), "b").unwrap();
        let flags = RenameFlags::EXCHANGE;
        Ok(renameat_with(
            CWD,
            dir.join("a"),
            CWD,
            dir.join("b"),
            flags,
        )?)
    });
    refuse("SetXattr", one, |dir, _| {
        Ok(setxattr(
            dir.join("a"),
            "user.x",
            b"new",
            XattrFlags::empty(),
        )?)
    });
    refuse("RemoveXattr", marked, |dir, _| {
        Ok(removexattr(dir.join("a"), "user.x")?)
    });
    refuse("SetAttr", one, |dir, _| {
        fs::set_permissions(dir.join("a"), fs::Permissions::from_mode(0o600))
    });
    refuse("Truncate", one, |_, file| file.set_len(5));
    refuse("Allocate", one, |_, file| {
        Ok(fallocate(file, FallocateFlags::empty(), 0, 9)?)
    });
    refuse("write", one, |_, file| file.write_all_at(b"bytes", 3));
    let pair = |dir: &Path| {
        fs::write(dir.join("a"), "copied").unwrap();
        (file(&dir.join("a")), file(&dir.join("b")))
    };
    refuse("copy", pair, |_, (from, to)| {
        Ok(copy_file_range(from.as_fd(), None, to.as_fd(), None, 6).map(drop)?)
    });
}

/// The process that learned of the other node was killed before it read the request. The next one follows from the start.
pub fn changes_fail_on_a_node_that_follows() {
    let (tell, told) = channel();
    let act = |dir: &Path, ()| {
        let removed = fs::remove_file(dir.join("a")).map_err(|error| error.raw_os_error());
        tell.send(()).unwrap();
        assert_eq!(removed, Err(Some(Errno::IO.raw_os_error())));
        await_true(|| dir.join("a").exists());
    };
    let prepare = |dir: &Path| drop(file(&dir.join("a")));
    interrupt_at(
        ("Unlink", StopPoint::AfterExecution),
        prepare,
        act,
        |model| {
            make(&model, "a");
            let node = Gated::new(model);
            node.stand(Standing::Following);
            let service = Arc::<Gated>::clone(&node);
            let meanwhile = move || {
                // A request that waits on is answered when this node serves.
                let _told = told.recv_timeout(LONG);
                node.stand(Standing::Serving);
            };
            (service, Box::new(meanwhile))
        },
    );
}

/// A change that waits for this node to serve waits on in the next process. It runs once, unless the other node has served
/// meanwhile: then it fails, although no process has executed it.
pub fn waiting_changes_wait_on() {
    waiting_change(&[Standing::Serving], Ok(()));
    let refused = Err(Some(Errno::ROFS.raw_os_error()));
    waiting_change(&[Standing::Following, Standing::Serving], refused);
}

fn waiting_change(then: &'static [Standing], expected: Result<(), Option<i32>>) {
    // The kernel asks nothing before this change.
    let act = move |_: &Path, file: File| {
        let changed = file.set_permissions(fs::Permissions::from_mode(0o640));
        assert_eq!(changed.map_err(|error| error.raw_os_error()), expected);
        await_true(|| {
            let metadata = file.metadata();
            metadata.is_ok_and(|metadata| (metadata.mode() & 0o777 == 0o640) == expected.is_ok())
        });
    };
    let one = |dir: &Path| file(&dir.join("a"));
    interrupt_at(("SetAttr", StopPoint::Parked), one, act, |model| {
        let node = undecided(&model);
        let service = Arc::<Gated>::clone(&node);
        let meanwhile = move || {
            node.await_refused_programs(1);
            for standing in then {
                node.stand(*standing);
            }
        };
        (service, Box::new(meanwhile))
    });
}

/// A question is asked again, and gets the answer of the time after the other node.
pub fn questions_wait() {
    let prepare = |dir: &Path| {
        fs::write(dir.join("a"), "before").unwrap();
        file(&dir.join("a"))
    };
    let act = |_: &Path, file: File| {
        let mut bytes = [0; 6];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"behind");
    };
    interrupt_at(("read", StopPoint::AfterExecution), prepare, act, |model| {
        let node = undecided(&model);
        let service = Arc::<Gated>::clone(&node);
        let meanwhile = move || {
            node.await_refused_programs(1);
            node.stand(Standing::Following);
            let ino = find(&model, "a").unwrap();
            let done = Box::new(|outcome: Result<(), _>| outcome.unwrap());
            let data = WriteData::Borrowed(b"behind");
            model.write(ino, 0, data, WriteOptions::default(), done);
            node.stand(Standing::Serving);
        };
        (service, Box::new(meanwhile))
    });
}

/// The kernel keeps attributes for a day. The next process finds that the other node serves.
pub fn old_attributes_go() {
    let prepare = |dir: &Path| {
        fs::write(dir.join("a"), "before").unwrap();
        assert_eq!(fs::metadata(dir.join("a")).unwrap().len(), 6);
        file(&dir.join("b"))
    };
    let act = |dir: &Path, file: File| {
        file.sync_all().unwrap();
        await_true(|| fs::metadata(dir.join("a")).unwrap().len() == 3);
    };
    interrupt_at(("sync", StopPoint::AfterExecution), prepare, act, |model| {
        let node = Gated::new(Arc::clone(&model));
        node.stand(Standing::Following);
        let service = Arc::<Gated>::clone(&node);
        let meanwhile = move || {
            node.await_refused_programs(1);
            let cut = MetaRequest::Truncate {
                ino: find(&model, "a").unwrap(),
                size: 3,
                drop_set_id: false,
            };
            change(&model, cut);
            node.stand(Standing::Serving);
        };
        (service, Box::new(meanwhile))
    });
}
