//! The changes on the disk at a start, their order, and whether the copy is in sync after them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use lockstep_fs::{InoRanges, StoreView};
use lockstep_paw_saw::InFlightEntry;
use lockstep_repl::core::{ConnectionId, Effect, Effects, Transfer};
use lockstep_repl::message::Request;
use lockstep_types::settings::{Durability, Encryption, OnPowerLoss, Role, TrashAge};
use lockstep_types::{
    BootId, DatastoreUuid, FileName, Generation, Ino, MetaOp, MetaRequest, NodeKind, Osn,
    Timestamp, WriteVerifier,
};

use super::*;
use crate::config::{PeerConfig, Policies};
use crate::host::ThreadKind;
use crate::service_gate::{RequestKind, Standing};
use crate::session::Session;
use crate::session::standby::StandbySession;

/// A wait that takes longer never ends.
const LONG_ENOUGH: Duration = Duration::from_secs(60);

/// A node's store in a directory of its own.
pub(crate) struct Place {
    dir: tempfile::TempDir,
    config: DatastoreConfig,
}

impl Place {
    /// A store that was open, in sync, and closed cleanly while one write was in flight.
    pub(crate) fn in_sync() -> Self {
        Self::in_sync_as(Role::Primary)
    }

    fn in_sync_as(role: Role) -> Self {
        let mut place = Self::vacant();
        place.config.role = role;
        let backing = place.backing();
        let log = LogOptions {
            segment_bytes: 64 << 10,
            ..LogOptions::default()
        };
        Store::create(&backing, place.config.uuid, &log).unwrap();
        drop(backing);
        let datastore = place.start().unwrap();
        datastore
            .engine()
            .role_file
            .mark(Generation::FIRST, true)
            .unwrap();
        if let Ok(primary) = datastore.primary() {
            let _waiting = primary.content.paw.insert(entry()).unwrap();
        }
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
            ino_ranges: InoRanges::default(),
            witness: None,
        };
        let places = [dir.path().to_owned(), PathBuf::from("/nonexistent/mount")];
        let config = DatastoreConfig {
            policies: Policies {
                on_power_loss: OnPowerLoss::Serve,
                ..Policies::default()
            },
            peer: Some(peer),
            ..DatastoreConfig::new("alpha", DatastoreUuid::random(), places, Role::Primary)
        };
        Self { dir, config }
    }

    pub(crate) const fn config(&self) -> &DatastoreConfig {
        &self.config
    }

    pub(crate) fn backing(&self) -> Arc<dyn Backing> {
        Arc::new(OsBacking::open(self.dir.path()).unwrap())
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join(file)
    }

    pub(crate) fn start(&self) -> Result<Arc<Datastore>, DatastoreError> {
        prepare(
            self.config.clone(),
            super::Place::on_this_machine(&self.config)?,
        )?
        .open()
    }

    /// The same node, with a witness.
    pub(crate) fn with_witness(mut self, failover_after: Duration) -> Self {
        self.config.failover_after = Some(failover_after);
        self
    }

    /// The same node, which keeps what programs delete.
    pub(crate) fn with_trash(mut self, age: TrashAge) -> Self {
        self.config.policies.trash.age = age;
        self
    }

    /// A datastore whose secondary was given up before.
    pub(crate) fn start_out_of_sync(&self) -> Arc<Datastore> {
        let datastore = self.start().unwrap();
        datastore
            .engine()
            .role_file
            .mark(Generation::FIRST, false)
            .unwrap();
        end(&datastore);
        drop(datastore);
        self.start().unwrap()
    }

    /// The state in the role file.
    fn role(&self) -> RoleState {
        RoleFile::read(self.backing().as_ref(), Role::Primary, SlotChoice::Last).unwrap()
    }

    /// Changes the role file as if the machine had gone down with the store open.
    fn lose_power(&self) {
        let role = self.role();
        let boot = BootId::from_bytes([7; 16]);
        RoleFile::open(self.backing(), role, boot, role.record).unwrap();
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

    /// Checks that a start fails with an error that contains `expected`, and changes nothing.
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

/// The writes of the previous process, and the number of all entries.
fn paw(datastore: &Datastore) -> (Vec<InFlightEntry>, usize) {
    let primary = datastore.primary().unwrap();
    let paw = &primary.content.paw;
    (paw.old_entries(), paw.len())
}

fn secondary(datastore: &Datastore) -> Arc<StandbySession> {
    match datastore.session() {
        Session::Undecided(session) | Session::Secondary(session) => session,
        Session::Primary(_) => panic!("a primary"),
    }
}

fn end(datastore: &Arc<Datastore>) {
    datastore.stop();
    datastore.close();
}

#[test]
fn a_copy_in_sync_stays_in_sync_and_knows_its_writes_in_flight() {
    let place = Place::in_sync();
    assert_eq!(place.role().boot, None);
    let datastore = place.start().unwrap();
    assert!(datastore.engine().role_file.state().is_in_sync());
    assert_eq!(paw(&datastore).0, [entry()]);
    assert_eq!(place.role().boot, Some(boot_id()));
    end(&datastore);
}

/// The disk of a restarted primary shows the new size of a file, and the other node may not have the write.
#[test]
fn nobody_sees_a_size_in_doubt() {
    for (file_bytes, is_in_doubt) in [(4000, true), (4097, false)] {
        let mut place = Place::in_sync();
        place.config.pause_limit = Duration::from_millis(1);
        leave_a_write_under_way(&place, file_bytes);
        let datastore = place.start().unwrap();
        let expected = if is_in_doubt {
            Err(Standing::Undecided)
        } else {
            Ok(())
        };
        assert_eq!(enter(&datastore), expected);
        until_alone(&datastore);
        assert_eq!(enter(&datastore), Ok(()));
        end(&datastore);
    }
}

/// Otherwise a rename of a killed process would take effect after a program had found the old name, and had opened the file by
/// that name to write it anew.
#[test]
fn nobody_sees_names_in_doubt() {
    let mut place = Place::in_sync();
    place.config.pause_limit = Duration::from_millis(1);
    let datastore = place.start().unwrap();
    leave_an_operation_in_doubt(&datastore);
    end(&datastore);
    drop(datastore);
    let datastore = place.start().unwrap();
    assert_eq!(enter(&datastore), Err(Standing::Undecided));
    until_alone(&datastore);
    assert_eq!(enter(&datastore), Ok(()));
    let name = FileName::new(b"doubtful").unwrap();
    let found = datastore.store().tree().lookup(Ino::ROOT, &name);
    assert!(found.is_ok(), "the operation has happened: {found:?}");
    end(&datastore);
}

/// Tries to let a request in.
fn enter(datastore: &Datastore) -> Result<(), Standing> {
    let host = &*datastore.engine().host;
    datastore.gate().enter(host, RequestKind::Program).map(drop)
}

/// Waits until the pause has ended, and this node lets requests in without the other one.
fn until_alone(datastore: &Datastore) {
    let until = Instant::now() + LONG_ENOUGH;
    while enter(datastore).is_err() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(2));
        datastore.session().tick();
    }
}

/// Rule P12: the tables that name what was under way are lost, and the other node may yet take over without any of that.
#[test]
fn nobody_sees_what_was_under_way_at_a_loss_of_power() {
    let mut place = Place::in_sync();
    place.config.pause_limit = Duration::from_millis(1);
    place.config.policies.durability = Durability::Always;
    let datastore = place.start().unwrap();
    leave_an_operation_in_doubt(&datastore);
    end(&datastore);
    drop(datastore);
    place.lose_power();
    let datastore = place.start().unwrap();
    let role = datastore.engine().role_file.state();
    assert!(role.is_in_sync() && !role.has_kept_sync());
    assert_eq!(enter(&datastore), Err(Standing::Undecided));
    assert_eq!(datastore.store().intents().in_doubt(), [], "it is void");
    until_alone(&datastore);
    assert_eq!(enter(&datastore), Ok(()));
    assert!(!datastore.engine().role_file.state().is_in_sync());
    end(&datastore);
}

/// Logs the creation of a file, without its outcome.
fn leave_an_operation_in_doubt(datastore: &Datastore) {
    let (primary, store) = (datastore.primary().unwrap(), datastore.store());
    let op = MetaOp {
        osn: primary.replication.core.lock().next_osn(),
        time: Timestamp { secs: 1, nanos: 0 },
        request: creation(store.next_ino().unwrap(), "doubtful", NodeKind::File),
    };
    let _intent = store.intents().log(&op).unwrap();
}

/// The creation of an inode with a name in the root.
pub(crate) fn creation(ino: Ino, name: &str, kind: NodeKind) -> MetaRequest {
    let name = FileName::new(name.as_bytes()).unwrap();
    let creation = MetaRequest::creation(Ino::ROOT, name, ino, kind);
    creation.mode(0o755).request()
}

/// Makes a file in the root of a primary's store.
pub(crate) fn make_file(datastore: &Datastore, name: &str) -> Ino {
    let (primary, store) = (datastore.primary().unwrap(), datastore.store());
    let ino = store.next_ino().unwrap();
    let op = MetaOp {
        osn: primary.replication.core.lock().next_osn(),
        time: Timestamp { secs: 1, nanos: 0 },
        request: creation(ino, name, NodeKind::File),
    };
    store.commit(&op).unwrap();
    ino
}

/// Stops a primary that has a file of a length, whose first 4,000 bytes are being written.
fn leave_a_write_under_way(place: &Place, file_bytes: usize) {
    let datastore = place.start().unwrap();
    let (primary, store) = (datastore.primary().unwrap(), datastore.store());
    let ino = make_file(&datastore, "longer");
    let osn = primary.replication.core.lock().next_osn();
    let time = Timestamp { secs: 1, nanos: 0 };
    store
        .write(ino, 0, &vec![1; file_bytes], osn, time)
        .unwrap();
    let write = InFlightEntry {
        ino,
        offset: 0,
        length: 4000,
        ..entry()
    };
    let _waiting = primary.content.paw.insert(write).unwrap();
    end(&datastore);
}

#[test]
fn a_refused_store_stays_as_it_was() {
    let place = Place::in_sync();
    let format = std::fs::read(place.path("format.json")).unwrap();
    place.tamper("format.json", |bytes| {
        *bytes = b"{\"lockstep_store\": 5}".to_vec();
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
    // Both slots are damaged: the file survives damage to one.
    place.tamper("role.json", |bytes| bytes[40] ^= 4);
    place.tamper("role.json", |bytes| bytes[4096 + 40] ^= 4);
    place.refuses("role.json is damaged");
    place.tamper("role.json", |bytes| bytes[40] ^= 4);
    place.tamper("tables/paw", |bytes| bytes.truncate(4096));
    place.refuses("tables/paw is damaged: it has 4096 bytes");
}

#[test]
fn without_a_table_the_copy_is_out_of_sync_for_good() {
    for file in ["tables/paw", "tables/saw", "tables/count"] {
        let place = Place::in_sync();
        std::fs::remove_file(place.path(file)).unwrap();
        let datastore = place.start().unwrap();
        assert!(!place.role().is_in_sync());
        assert!(paw(&datastore).0.is_empty());
        end(&datastore);
        drop(datastore);
        let again = place.start().unwrap();
        assert!(!again.engine().role_file.state().is_in_sync());
        end(&again);
    }
}

/// The tables have no meaning after a power loss, and are no reason to refuse the store.
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
    assert!(!place.role().is_in_sync());
    assert_eq!(paw(&datastore).1, 0);
    end(&datastore);
    drop(datastore);
    assert!(
        !place
            .start()
            .unwrap()
            .engine()
            .role_file
            .state()
            .is_in_sync()
    );
}

/// The disk is most likely not mounted. An empty store in its place would be served as the datastore.
#[test]
fn a_missing_store_is_refused_and_made_on_request() {
    let place = Place::vacant();
    place.refuses("the directory is empty");
    place.refuses("is not mounted");
    place.refuses("`lockstep create-store alpha`");
    std::fs::write(place.path("format.json.new"), b"half").unwrap();
    place.refuses("the creation of one was interrupted");
    assert!(make_store_on_this_machine(&place.config).unwrap());
    // The first caller left its lock file in the directory.
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
fn a_directory_with_other_files_is_left_alone() {
    let place = Place::vacant();
    std::fs::write(place.path("precious"), b"mine").unwrap();
    place.refuses("but precious,");
}

/// A resync begins with the mark. A request that changes the copy without the mark is late, from a resync that is
/// over.
#[test]
fn a_copy_in_sync_takes_nothing_of_a_resync_that_was_not_begun() {
    let place = Place::in_sync_as(Role::Secondary);
    let datastore = place.start().unwrap();
    let late = [
        Request::ImageChunk,
        Request::EndImage {
            applied: Osn::ZERO,
            inos_below: 9,
        },
        Request::SetFiles { files: Vec::new() },
    ];
    for request in late {
        let refused = secondary(&datastore)
            .responder
            .response(&request, &[])
            .unwrap()
            .unwrap_err();
        assert!(refused.0.contains("a copy that is in sync"), "{refused}");
    }
    assert!(datastore.engine().role_file.state().is_in_sync());
    end(&datastore);
}

/// Another sync begins with `BeginResync`, which ends the earlier one.
#[test]
fn a_copy_in_sync_does_not_enter_another_sync() {
    let place = Place::in_sync_as(Role::Secondary);
    let datastore = place.start().unwrap();
    let before = datastore.engine().role_file.state();
    let verifier = WriteVerifier::from_bytes([8; 16]);
    let refused = secondary(&datastore)
        .responder
        .response(&Request::InSync { verifier }, &[]);
    assert!(refused.unwrap().unwrap_err().0.contains("which it is"));
    assert_eq!(datastore.engine().role_file.state(), before);
    end(&datastore);
}

/// The core decided on the transfer before the connection was lost.
#[test]
fn a_transfer_of_a_connection_that_is_gone_does_nothing() {
    let place = Place::in_sync();
    let datastore = place.start().unwrap();
    let transfer = Effect::Transfer(Transfer::SendImage, ConnectionId(7));
    let session = datastore.session();
    let replication = session.replication();
    replication.run_effects(ThreadKind::MayWait, Effects::from_slice(&[transfer]));
    end(&datastore);
    assert!(!place.role().lineage.was_resynced);
}
