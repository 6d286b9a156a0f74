//! Whether the store in use is still in its place. An operator may remove or replace a store under its node, which goes on with
//! the files that it has open. Then the node promises nothing more, as after a failure of the disk (rule P16). A store that is
//! only moved has all its files: the node says so in its log and its status, because its next start would not find the store.

use std::sync::atomic::Ordering;

use lockstep_types::backing::{Backing, FileIdentity};

use crate::durable::role_file::FILE;
use crate::engine::Engine;

/// Why the store is poisoned.
const REPLACED: &str = "the store was removed or replaced while the node used it: role.json is not the file that the node \
                        opened; stop the node, then put the right store in its place";

/// The cause and the cure while the path of the store does not lead to its directory.
pub(crate) const MOVED: &str = "the directory of the store was moved, or hidden by a mount, while the node uses it: bring it back before the node \
                     is started again";

/// The identity of the role file of an open store; `None` if the backing cannot tell.
pub(crate) fn identity_of(backing: &dyn Backing) -> Option<FileIdentity> {
    backing.identity(FILE).ok().flatten()
}

/// Poisons a store whose role file is another one than at its opening.
pub(crate) fn look(engine: &Engine) {
    let backing = engine.store.backing();
    let opened = engine.disk.role_file;
    let found = identity_of(backing.as_ref());
    if found.is_some() && found != opened {
        tracing::error!(datastore = engine.name(), "{REPLACED}");
        backing.poison(REPLACED);
    } else if let Ok(Some(is_in_place)) = backing.is_in_place() {
        note_place(engine, is_in_place);
    }
}

/// The reason that the status of a datastore shows: `reason`, and the cure for a store that is not in its place.
pub(crate) fn explain(engine: &Engine, reason: Option<String>) -> Option<String> {
    let moved = engine
        .disk
        .is_moved
        .load(Ordering::Relaxed)
        .then_some(MOVED);
    match (reason, moved) {
        (Some(reason), Some(moved)) => Some(format!("{reason}; {moved}")),
        (reason, moved) => reason.or(moved.map(str::to_owned)),
    }
}

fn note_place(engine: &Engine, is_in_place: bool) {
    let was_moved = engine.disk.is_moved.swap(!is_in_place, Ordering::Relaxed);
    if was_moved != is_in_place {
        return;
    }
    let config = engine.config.current();
    let (datastore, store) = (engine.name(), config.store.display());
    if is_in_place {
        tracing::info!(datastore, %store, "the directory of the store is in its place again");
    } else {
        tracing::error!(datastore, %store, "{MOVED}");
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::open::tests::Place;

    #[test]
    fn a_store_that_was_removed_or_replaced_under_its_node_is_poisoned() {
        let removes: [fn(&std::path::Path); 3] = [
            |store| fs::remove_file(store.join(FILE)).unwrap(),
            |store| fs::remove_dir_all(store).unwrap(),
            |store| {
                fs::copy(store.join(FILE), store.join("copy")).unwrap();
                fs::rename(store.join("copy"), store.join(FILE)).unwrap();
            },
        ];
        for remove in removes {
            let place = Place::in_sync();
            let datastore = place.start().unwrap();
            let engine = datastore.engine();
            look(engine);
            assert!(!engine.poison.has_failed());
            remove(&place.path(""));
            look(engine);
            let reason = engine.failure_reason().unwrap();
            assert!(reason.contains("removed or replaced"), "{reason}");
            datastore.stop();
        }
    }

    #[test]
    fn a_store_that_was_moved_under_its_node_is_explained_until_it_is_back() {
        let place = Place::in_sync();
        let datastore = place.start().unwrap();
        let engine = datastore.engine();
        let usual = datastore.status().sync.reason;
        let store = place.path("");
        let away = store.with_extension("away");
        fs::rename(&store, &away).unwrap();
        look(engine);
        assert!(!engine.poison.has_failed());
        let explained = datastore.status().sync.reason.unwrap();
        assert!(explained.ends_with(MOVED), "{explained}");
        assert!(explained.starts_with(&usual.clone().unwrap_or_default()));
        fs::rename(&away, &store).unwrap();
        look(engine);
        assert_eq!(datastore.status().sync.reason, usual);
        datastore.stop();
    }
}
