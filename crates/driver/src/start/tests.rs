//! What a start changes on the disk, when, and whether the copy counts as in sync after it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use lockstep_paw_saw::InFlightEntry;
use lockstep_repl::core::{ConnectionId, Effect, Effects, Transfer};
use lockstep_repl::message::Request;
use lockstep_types::settings::{Durability, Encryption, OnPeerLoss};
use lockstep_types::{BootId, DatastoreUuid, Generation, Ino};

use super::super::Thread;
use super::*;
use crate::config::{
    ANSWER_LIMIT_DEFAULT, FUSE_THREADS_DEFAULT, PAUSE_LIMIT_DEFAULT, PEER_TIMEOUT_DEFAULT,
    PeerConfig,
};

/// A node's store in a directory of its own.
pub(crate) struct Place {
    dir: tempfile::TempDir,
    config: DatastoreConfig,
}

impl Place {
    /// A store that was open, in sync, and closed in order while one write was in flight.
    pub(crate) fn in_sync() -> Self {
        let place = Self::vacant();
        let backing = place.backing();
        let log = LogOptions {
            segment_bytes: 64 << 10,
            ..LogOptions::default()
        };
        Store::create(&backing, place.config.uuid, &log).unwrap();
        drop(backing);
        let datastore = place.start().unwrap();
        datastore.role.mark(true).unwrap();
        let _waiting = datastore.paw.insert(entry()).unwrap();
        datastore.stop();
        datastore.close();
        place
    }

    fn vacant() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let peer = PeerConfig {
            address: "127.0.0.1:7401".parse().unwrap(),
            fingerprint: format!("SHA256:{:064x}", 1).parse().unwrap(),
            encryption: Encryption::On,
        };
        let config = DatastoreConfig {
            name: "alpha".to_owned(),
            uuid: DatastoreUuid::random(),
            store: dir.path().to_owned(),
            mount: PathBuf::from("/nonexistent/mount"),
            role: Role::Primary,
            durability: Durability::Posix,
            on_peer_loss: OnPeerLoss::Continue,
            pause_limit: PAUSE_LIMIT_DEFAULT,
            peer_timeout: PEER_TIMEOUT_DEFAULT,
            answer_limit: ANSWER_LIMIT_DEFAULT,
            fuse_threads: FUSE_THREADS_DEFAULT,
            peer: Some(peer),
        };
        Self { dir, config }
    }

    fn backing(&self) -> Arc<dyn Backing> {
        Arc::new(OsBacking::open(self.dir.path()).unwrap())
    }

    fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join(file)
    }

    pub(crate) fn start(&self) -> Result<Arc<Datastore>, DatastoreError> {
        prepare(
            self.config.clone(),
            super::Place::on_this_machine(&self.config)?,
        )?
        .open()
    }

    /// The same after the secondary was left behind.
    pub(crate) fn start_out_of_sync(&self) -> Arc<Datastore> {
        let datastore = self.start().unwrap();
        datastore.role.mark(false).unwrap();
        end(&datastore);
        drop(datastore);
        self.start().unwrap()
    }

    /// What the role file says.
    fn role(&self) -> RoleState {
        RoleFile::read(self.backing().as_ref(), Role::Primary).unwrap()
    }

    /// As if the machine had gone down with the store open.
    fn lose_power(&self) {
        RoleFile::open(
            self.backing(),
            self.role(),
            BootId::from_bytes([7; 16]),
            true,
        )
        .unwrap();
    }

    fn tamper(&self, file: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = std::fs::read(self.path(file)).unwrap();
        change(&mut bytes);
        std::fs::write(self.path(file), bytes).unwrap();
    }

    /// Every file with its bytes.
    fn all(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut found = BTreeMap::new();
        let mut todo = vec![self.dir.path().to_owned()];
        while let Some(dir) = todo.pop() {
            for entry in std::fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    todo.push(path);
                } else {
                    found.insert(path.clone(), std::fs::read(path).unwrap());
                }
            }
        }
        found
    }

    /// Refused with an error that says `expected`, and nothing changed.
    #[track_caller]
    fn refuses(&self, expected: &str) {
        let before = self.all();
        match self.start() {
            Ok(_) => panic!("started although: {expected}"),
            Err(error) => assert!(error.to_string().contains(expected), "{error}"),
        }
        assert!(self.all() == before, "something was changed: {expected}");
    }
}

fn entry() -> InFlightEntry {
    InFlightEntry {
        ino: Ino::ROOT,
        osn: Osn {
            generation: Generation::FIRST,
            sequence: 5,
        },
        offset: 4096,
        length: 100,
    }
}

fn end(datastore: &Arc<Datastore>) {
    datastore.stop();
    datastore.close();
}

#[test]
fn a_copy_in_sync_stays_so_and_knows_what_was_in_flight() {
    let place = Place::in_sync();
    assert_eq!(place.role().boot, None);
    let datastore = place.start().unwrap();
    assert!(datastore.role.state().in_sync);
    assert_eq!(datastore.old_entries(), [entry()]);
    assert_eq!(place.role().boot, Some(boot_id()));
    end(&datastore);
}

#[test]
fn what_is_refused_stays_as_it_was() {
    let place = Place::in_sync();
    let format = std::fs::read(place.path("format.json")).unwrap();
    place.tamper("format.json", |bytes| {
        *bytes = b"{\"lockstep_store\": 3}".to_vec();
    });
    place.refuses("use the newer program");
    place.tamper("format.json", |bytes| *bytes = format);
    for (file, at, expected) in [
        ("namespace.redb", 20, "namespace"),
        ("log/intent.0", 2048 + 20, "intent log"),
        ("tables/paw", 3, "tables/paw is damaged: slot 0"),
        ("tables/saw", 640, "tables/saw is damaged: slot 10"),
    ] {
        place.tamper(file, |bytes| bytes[at] ^= 4);
        place.refuses(expected);
        place.tamper(file, |bytes| bytes[at] ^= 4);
    }
    // Both slots: one alone is enough.
    place.tamper("role.json", |bytes| bytes[40] ^= 4);
    place.tamper("role.json", |bytes| bytes[4096 + 40] ^= 4);
    place.refuses("role.json is damaged");
    place.tamper("role.json", |bytes| bytes[40] ^= 4);
    place.tamper("tables/paw", |bytes| bytes.truncate(4096));
    place.refuses("tables/paw is damaged: it has 4096 bytes");
}

#[test]
fn without_a_table_the_copy_is_out_of_sync_for_good() {
    for file in ["tables/paw", "tables/saw"] {
        let place = Place::in_sync();
        std::fs::remove_file(place.path(file)).unwrap();
        let datastore = place.start().unwrap();
        assert!(!place.role().in_sync);
        assert!(datastore.old_entries().is_empty());
        end(&datastore);
        drop(datastore);
        let again = place.start().unwrap();
        assert!(!again.role.state().in_sync);
        end(&again);
    }
}

/// What a power loss leaves of the tables is of no use, and no reason to refuse.
#[test]
fn after_a_power_loss_the_copy_is_out_of_sync_for_good() {
    let place = Place::in_sync();
    place.lose_power();
    place.tamper("tables/paw", |bytes| bytes.truncate(100));
    // A start that is refused in between forgets nothing.
    place.tamper("namespace.redb", |bytes| bytes[20] ^= 4);
    place.refuses("namespace");
    place.tamper("namespace.redb", |bytes| bytes[20] ^= 4);
    let datastore = place.start().unwrap();
    assert!(!place.role().in_sync);
    assert!(datastore.paw.is_empty());
    end(&datastore);
    drop(datastore);
    assert!(!place.start().unwrap().role.state().in_sync);
}

/// Its disk is most likely not mounted: an empty store in its place would be served as the datastore.
#[test]
fn a_store_that_is_not_there_is_refused_and_made_when_asked_for() {
    let place = Place::vacant();
    place.refuses("the directory is empty");
    place.refuses("is not mounted");
    place.refuses("`lockstep create-store alpha`");
    std::fs::write(place.path("format.json.new"), b"half").unwrap();
    place.refuses("the creation of one was interrupted");
    assert!(make_store_on_this_machine(&place.config).unwrap());
    // Whoever takes a store leaves its lock file there.
    assert!(!make_store_on_this_machine(&place.config).unwrap());
    let made = place.all();
    assert!(!make_store_on_this_machine(&place.config).unwrap());
    assert!(place.all() == made, "a store that exists was changed");
    end(&place.start().unwrap());

    std::fs::remove_dir_all(place.dir.path()).unwrap();
    let missing = place.start().map(drop).unwrap_err().to_string();
    assert!(missing.contains("does not exist"), "{missing}");
    assert!(!place.dir.path().exists());
    assert!(make_store_on_this_machine(&place.config).unwrap());
    end(&place.start().unwrap());
}

#[test]
fn a_directory_of_something_else_is_left_alone() {
    let place = Place::vacant();
    std::fs::write(place.path("precious"), b"mine").unwrap();
    place.refuses("but precious,");
}

/// A resync begins with the mark: what asks for a change of the copy without it comes late, from one that
/// is over.
#[test]
fn a_copy_in_sync_takes_nothing_of_a_resync_that_was_not_begun() {
    let place = Place::in_sync();
    let datastore = place.start().unwrap();
    let late = [
        Request::ImageChunk,
        Request::EndImage {
            applied: Osn::ZERO,
            inos_below: 9,
        },
        Request::SettleFiles { files: Vec::new() },
    ];
    for request in late {
        let refused = datastore.response(&request, &[]).unwrap_err();
        assert!(refused.contains("a copy that is in sync"), "{refused}");
    }
    assert!(datastore.role.state().in_sync);
    end(&datastore);
}

/// Another sync begins with `BeginResync`, which ends the one before.
#[test]
fn a_copy_in_sync_is_told_of_no_other_sync() {
    let place = Place::in_sync();
    let datastore = place.start().unwrap();
    let before = datastore.role.state();
    let refused = datastore.response(&Request::InSync, &[]);
    assert!(refused.unwrap_err().contains("which it is"));
    assert_eq!(datastore.role.state(), before);
    end(&datastore);
}

/// Decided for a connection that is gone, and carried out late.
#[test]
fn a_transfer_of_a_connection_that_is_gone_does_nothing() {
    let place = Place::in_sync();
    let datastore = place.start().unwrap();
    let transfer = Effect::Transfer(Transfer::SendImage, ConnectionId(7));
    datastore.carry_out_all(Thread::MayWait, Effects::from_slice(&[transfer]), None);
    end(&datastore);
    assert!(!place.role().carried_over);
}
