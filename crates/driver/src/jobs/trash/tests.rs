use std::sync::Arc;

use lockstep_fs::StoreView;
use lockstep_types::settings::TrashAge;
use lockstep_types::{Attr, Errno, FileName, Ino, MetaRequest, NodeKind};

use crate::client::FileService;
use crate::datastore::Datastore;
use crate::open::tests::{Place, creation};
use crate::report::{RestoreQuestion, TrashAnswer, TrashCommand};
use crate::service::DatastoreHandle;

fn change(datastore: &Arc<Datastore>, request: MetaRequest) -> Result<Option<Attr>, Errno> {
    let (told, outcome) = std::sync::mpsc::channel();
    let handle = DatastoreHandle::new(Arc::clone(datastore));
    let done = move |result: Result<Option<Attr>, Errno>| told.send(result).unwrap();
    handle.change(request, Box::new(done));
    outcome.recv().unwrap()
}

fn make(datastore: &Arc<Datastore>, name: &str) -> Ino {
    let ino = datastore.store().next_ino().unwrap();
    change(datastore, creation(ino, name, NodeKind::File)).unwrap();
    ino
}

fn unlink(datastore: &Arc<Datastore>, name: &str) {
    let request = MetaRequest::Unlink {
        parent: Ino::ROOT,
        name: FileName::new(name.as_bytes()).unwrap(),
    };
    change(datastore, request).unwrap();
}

fn listed(datastore: &Datastore) -> Vec<String> {
    match datastore.trash(&TrashCommand::List { from: 0 }).unwrap() {
        TrashAnswer::Page(page) => page.entries.into_iter().map(|it| it.path).collect(),
        other => panic!("{other:?}"),
    }
}

fn restore(datastore: &Datastore, path: &str) -> Result<u64, String> {
    let question = RestoreQuestion {
        path: path.as_bytes().to_vec(),
        ..RestoreQuestion::default()
    };
    match datastore.trash(&TrashCommand::Restore(question)) {
        Ok(TrashAnswer::Restored(restored)) => Ok(restored.restored),
        Ok(other) => panic!("{other:?}"),
        Err(failure) => Err(failure.to_string()),
    }
}

fn end(datastore: Arc<Datastore>) {
    datastore.stop();
    datastore.close();
    drop(datastore);
}

#[test]
fn a_file_in_the_trash_is_gone_for_clients_and_comes_back_after_a_restart() {
    let place = Place::in_sync().with_trash(TrashAge::Week);
    let datastore = place.start_out_of_sync();
    let [kept, open] = ["kept", "open"].map(|name| make(&datastore, name));
    let handle = DatastoreHandle::new(Arc::clone(&datastore));
    handle.opened(open).unwrap();
    for name in ["kept", "open"] {
        unlink(&datastore, name);
    }
    assert_eq!(handle.revive(kept).unwrap_err(), Errno::Stale);
    assert_eq!(handle.revive(open).unwrap().nlink, 0);
    handle.closed(open);
    assert_eq!(handle.revive(open).unwrap_err(), Errno::Stale);
    drop(handle);
    end(datastore);

    let datastore = place.start().unwrap();
    // A start frees the inodes without a name that are not in the trash.
    datastore.reap_orphans();
    make(&datastore, "other");
    assert_eq!(listed(&datastore), ["kept", "open"]);
    assert_eq!(restore(&datastore, "kept"), Ok(1));
    let handle = DatastoreHandle::new(Arc::clone(&datastore));
    assert_eq!(handle.revive(kept).unwrap().nlink, 1);
    let refusal = restore(&datastore, "kept").unwrap_err();
    assert!(refusal.contains("nothing in the trash"), "{refusal}");
    let refusal = restore(&datastore, "../kept").unwrap_err();
    assert!(refusal.contains("no path below"), "{refusal}");
    end(datastore);
}

#[test]
fn a_file_that_leaves_the_trash_is_freed_when_the_last_program_closes_it() {
    let place = Place::in_sync().with_trash(TrashAge::Week);
    let datastore = place.start_out_of_sync();
    let ino = make(&datastore, "a");
    let handle = DatastoreHandle::new(Arc::clone(&datastore));
    handle.opened(ino).unwrap();
    unlink(&datastore, "a");
    let empty = TrashCommand::Empty { before: None };
    assert_eq!(datastore.trash(&empty), Ok(TrashAnswer::Emptied(1)));
    let is_there = || lockstep_fs::plan::View::inode(&datastore.store().tree(), ino).unwrap();
    assert!(is_there().is_some() && listed(&datastore).is_empty());
    handle.closed(ino);
    while is_there().is_some() {
        std::thread::yield_now();
    }
    end(datastore);
}

#[test]
fn without_a_trash_nothing_gets_there_and_what_is_there_stays() {
    let place = Place::in_sync().with_trash(TrashAge::Week);
    let datastore = place.start_out_of_sync();
    make(&datastore, "before");
    unlink(&datastore, "before");
    end(datastore);
    let place = place.with_trash(TrashAge::Off);
    let datastore = place.start().unwrap();
    let ino = make(&datastore, "after");
    unlink(&datastore, "after");
    let tree = datastore.store().tree();
    while lockstep_fs::plan::View::inode(&tree, ino)
        .unwrap()
        .is_some()
    {
        std::thread::yield_now();
    }
    assert_eq!(tree.trash_mark(ino).unwrap(), None);
    assert_eq!(listed(&datastore), ["before"]);
    end(datastore);
}
