//! Seeds: an import makes a store that shows the moment of the snapshot, and a seed with other bytes is refused.

use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use lockstep_fs::export::ExportError;
use lockstep_fs::paths::content_path;
use lockstep_fs::seed::{
    ImportOptions, ImportPhase, ImportPlaces, ImportProgress, MANIFEST_FILE, SeedError, SeedOrder,
    export_seed,
};
use lockstep_fs::snapshot_list::{SnapshotBytes, SnapshotRecord};
use lockstep_fs::store::{AdoptWay, SnapshotAccess};
use lockstep_fs::{Store, StoreView};
use lockstep_lossy::disk::{CallClass, Disk, DiskOptions};
use lockstep_model::Model;
use lockstep_types::{DatastoreUuid, Errno, Ino, NodeKind, Osn, SnapshotId};
use proptest::prelude::*;

use crate::harness::{
    BOOT, Node, SURVIVORS, UUID, after_power_loss, log_options, open, try_open_in,
};
use crate::seed_place::{
    LINEAGE, RealPlace, Source, copy, copy_until, import_with, options, origin, record_of,
    snapshot, write,
};
use crate::snapshots::{PastWorld, past_step, take_local};

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 100,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// A store that is made of a seed is the datastore at the moment of the snapshot, after any changes before and since.
    #[test]
    fn a_seed_shows_the_moment_of_its_snapshot(steps in prop::collection::vec(past_step(4), 1..40)) {
        let mut world = PastWorld::new();
        for step in &steps {
            world.step(step);
        }
        let made: Vec<(SnapshotId, &Model)> = world.moments().into_iter().filter(|(id, _)| !id.is_local()).collect();
        for (id, model) in made {
            let (seed, disk) = (Disk::default(), Disk::default());
            let manifest = write(world.store(), id, &seed).unwrap();
            assert_eq!(manifest.snapshot.osn, id.osn);
            let summary = copy(&seed, &disk).unwrap();
            assert_eq!(summary.totals, manifest.totals);
            let store = open(&disk);
            world.present.compare_past(&store.tree(), model);
            assert_eq!(store.applied(), id.osn);
            assert_eq!(store.image().inos_below(), manifest.snapshot.inos_below);
        }
    }
}

#[test]
fn an_import_that_stops_at_any_step_goes_on_also_after_a_loss_of_power() {
    let source = Source::new();
    let seed = source.seed();
    let mut survivors = SURVIVORS.into_iter().cycle();
    for steps in 1.. {
        let mut disk = Disk::default();
        if steps % 3 == 0 {
            // A store that was just made takes a seed, too.
            Store::create(&disk.mount(), UUID, &log_options()).unwrap();
        }
        match copy_until(&seed, &disk, steps) {
            Ok(summary) => {
                assert!(steps > 20 && !summary.went_on, "{steps} steps");
                break;
            }
            Err(error) => assert!(matches!(error, SeedError::Stopped), "{error}"),
        }
        if steps % 2 == 0 {
            disk = disk.after_power_loss(survivors.next().unwrap(), steps as u64);
        }
        let is_vacant = Store::check_vacant(&disk.mount()).is_ok();
        let has_store = disk.files().contains(&"format.json".to_owned());
        let has_note = disk.files().contains(&"import.json".to_owned());
        if has_note {
            assert!(!is_vacant, "step {steps}");
            let refused = try_open_in(&disk.fork(), BOOT).err();
            let refused = refused.map(|error| error.to_string()).unwrap_or_default();
            assert!(refused.contains("has not ended"), "step {steps}: {refused}");
        } else {
            let was_made = steps % 3 == 0;
            assert!(is_vacant || was_made && has_store, "step {steps}");
        }
        // A second stop, and then to the end.
        let _stopped = copy_until(&seed, &disk, steps / 2 + 1);
        let is_done = disk.files().contains(&LINEAGE.to_owned())
            && !disk.files().contains(&"import.json".to_owned());
        if !is_done {
            copy(&seed, &disk).unwrap();
        }
        let disk = after_power_loss(&disk);
        assert!(disk.read_all(LINEAGE).is_some());
        source.compare(&open(&disk));
        let refused = copy(&seed, &disk).unwrap_err();
        assert!(matches!(refused, SeedError::Used), "{refused}");
    }
}

/// Each damage of a seed is found, and leaves no store.
#[test]
fn a_damaged_seed_is_refused() {
    let source = Source::new();
    let seed = source.seed();
    let refused = |seed: &Disk, what: &str| {
        let disk = Disk::default();
        let error = copy(seed, &disk).unwrap_err().to_string();
        assert!(error.contains("cure:"), "{what}: {error}");
        assert!(!disk.files().contains(&"format.json".to_owned()), "{what}");
        error
    };
    let content = |number: usize| content_path(source.files[number].0);
    // No manifest: the export was cut off.
    let cut_off = seed.fork();
    cut_off.mount().remove(MANIFEST_FILE).unwrap();
    assert!(refused(&cut_off, "no manifest").contains("no complete seed"));
    for (number, what) in [(3, "file"), (7, "sparse file")] {
        let missing = seed.fork();
        missing.mount().remove(&content(number)).unwrap();
        assert!(refused(&missing, what).contains("it is missing"));
        for (length, what) in [(-1, "cut"), (1, "too long")] {
            let other = seed.fork();
            let edit = |bytes: &mut Vec<u8>| {
                let length = i64::try_from(bytes.len()).unwrap() + length;
                bytes.resize(usize::try_from(length).unwrap(), 0);
            };
            other.edit(&content(number), edit).unwrap();
            assert!(refused(&other, what).contains("bytes long"), "{what}");
        }
    }
    let files: Vec<String> = seed.files();
    for path in &files {
        let length = seed.read_all(path).unwrap().len();
        let stride = (length / 40).max(1);
        for at in (0..length)
            .step_by(stride)
            .chain([length.saturating_sub(1)])
        {
            if length == 0 {
                continue;
            }
            let other = seed.fork();
            other
                .edit(path, |bytes| bytes[at] ^= 1 << (at % 8))
                .unwrap();
            refused(&other, &format!("{path} at {at}"));
        }
        for cut in [0, length / 2, length.saturating_sub(1)] {
            if cut < length {
                let other = seed.fork();
                other.edit(path, |bytes| bytes.truncate(cut)).unwrap();
                refused(&other, &format!("{path} cut at {cut}"));
            }
        }
    }
    let is_of_seed = |path: &String| {
        path == "records"
            || path == "contents"
            || path == MANIFEST_FILE
            || path.starts_with("content/")
    };
    assert!(files.iter().all(is_of_seed), "{files:?}");
    assert_eq!(files.len(), 3 + 8);
    // A sound seed is taken after all of this.
    let disk = Disk::default();
    copy(&seed, &disk).unwrap();
    source.compare(&open(&disk));
}

/// The parts of two seeds of one datastore do not fit each other.
#[test]
fn a_seed_with_a_file_of_another_snapshot_is_refused() {
    let source = Source::new();
    let first = source.seed();
    let id = snapshot(&source.node, 202);
    let second = Disk::default();
    write(&source.node.store, id, &second).unwrap();
    let (ino, _) = source.files[6];
    for path in ["records", "contents", MANIFEST_FILE, &content_path(ino)] {
        let mixed = first.fork();
        mixed.put(path, &second.read_all(path).unwrap()).unwrap();
        assert_ne!(mixed.read_all(path), first.read_all(path), "{path}");
        let refused = copy(&mixed, &Disk::default()).unwrap_err();
        assert!(
            matches!(refused, SeedError::Damaged { .. }),
            "{path}: {refused}"
        );
    }
}

#[test]
fn a_full_or_failing_disk_ends_an_export_without_a_manifest_and_an_import_without_a_store() {
    let source = Source::new();
    let small = Disk::new(DiskOptions {
        capacity_bytes: 8 << 10,
        capacity_files: 1 << 10,
    });
    let refused = write(&source.node.store, source.id, &small).unwrap_err();
    assert!(refused.to_string().contains("more room"), "{refused}");
    assert!(!small.files().contains(&MANIFEST_FILE.to_owned()));
    let seed = source.seed();
    let small = Disk::new(DiskOptions {
        capacity_bytes: 1 << 20,
        capacity_files: 1 << 10,
    });
    let refused = copy(&seed, &small).unwrap_err();
    assert!(matches!(refused, SeedError::NoRoom { .. }), "{refused}");
    assert_eq!(small.files(), Vec::<String>::new());
    // Room that other programs take meanwhile.
    for class in [CallClass::Write, CallClass::Sync, CallClass::Name] {
        for nth in 0..12 {
            let disk = Disk::default();
            disk.fail_call(class, nth, Errno::NoSpace);
            if copy(&seed, &disk).is_ok() {
                continue;
            }
            disk.stop_failing();
            copy(&seed, &disk).unwrap();
            source.compare(&open(&disk));
        }
    }
}

#[test]
fn a_seed_in_a_directory_is_moved_or_shared_or_copied() {
    let source = Source::new();
    for way in [AdoptWay::Move, AdoptWay::Copy, AdoptWay::Reflink] {
        let place = RealPlace::of(&source);
        let mode = fs::metadata(place.seed.join(content_path(source.files[1].0)));
        assert_eq!(mode.unwrap().mode() & 0o777, 0o600);
        let first = fs::read(place.seed.join(MANIFEST_FILE)).unwrap();
        let imported = place.import(Some(way), &mut |_| ControlFlow::Continue(()));
        match imported {
            Err(SeedError::CannotReflink) if way == AdoptWay::Reflink => continue,
            imported => assert_eq!(imported.unwrap().way, way),
        }
        source.compare(&place.open());
        if way == AdoptWay::Move {
            assert_eq!(fs::read_dir(&place.seed).unwrap().count(), 0);
        } else {
            assert_eq!(fs::read(place.seed.join(MANIFEST_FILE)).unwrap(), first);
        }
    }
}

#[test]
fn a_move_that_stops_at_any_step_goes_on() {
    let source = Source::new();
    let mut phases = Vec::new();
    for steps in 1.. {
        let place = RealPlace::of(&source);
        let mut left = steps;
        let stopped = place.import(Some(AdoptWay::Move), &mut |progress| {
            if !phases.contains(&progress.phase) {
                phases.push(progress.phase);
            }
            left -= 1;
            if left == 0 {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        if stopped.is_ok() {
            assert!(steps > 20, "{steps} steps");
            break;
        }
        let again = place.import(None, &mut |_| ControlFlow::Continue(()));
        let has_begun = again.as_ref().is_ok_and(|summary| summary.went_on);
        let way = again.unwrap().way;
        assert!(way == AdoptWay::Move || !has_begun, "step {steps}");
        source.compare(&place.open());
    }
    let all = [
        ImportPhase::Names,
        ImportPhase::Checking,
        ImportPhase::Taking,
        ImportPhase::Finishing,
        ImportPhase::Emptying,
    ];
    assert_eq!(phases, all);
}

/// A move takes nothing of a seed that is damaged, and nothing that programs reach by another name.
#[test]
fn a_move_of_a_seed_that_is_not_whole_or_not_alone_takes_nothing() {
    let source = Source::new();
    let place = RealPlace::of(&source);
    let mut go_on = |_: &ImportProgress| ControlFlow::Continue(());
    let path = place.seed.join(content_path(source.files[6].0));
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, vec![0xee; bytes.len()]).unwrap();
    let refused = place.import(Some(AdoptWay::Move), &mut go_on).unwrap_err();
    assert!(matches!(refused, SeedError::Damaged { .. }), "{refused}");
    assert_eq!(fs::read_dir(&place.store).unwrap().count(), 0);
    fs::write(&path, bytes).unwrap();
    let elsewhere = place.seed.with_file_name("elsewhere");
    fs::hard_link(&path, &elsewhere).unwrap();
    let refused = place.import(Some(AdoptWay::Move), &mut go_on).unwrap_err();
    assert!(
        matches!(refused, SeedError::NamesOutside { .. }),
        "{refused}"
    );
    fs::remove_file(&elsewhere).unwrap();
    place.import(Some(AdoptWay::Move), &mut go_on).unwrap();
    source.compare(&place.open());
}

#[test]
fn a_store_in_use_another_datastore_and_another_seed_are_refused() {
    let source = Source::new();
    let seed = source.seed();
    let used = Node::new();
    used.store.checkpoint().unwrap();
    let refused = copy(&seed, &used.disk).unwrap_err();
    assert!(matches!(refused, SeedError::Used), "{refused}");
    let disk = Disk::default();
    let mut places = ImportPlaces::of_disks(disk.mount(), seed.mount());
    let other = ImportOptions {
        datastore: DatastoreUuid::from_bytes([6; 16]),
        ..options(None)
    };
    let mut go_on = |_: &ImportProgress| ControlFlow::Continue(());
    let refused = import_with(&mut places, &*disk.mount(), &other, &mut go_on).unwrap_err();
    assert!(
        matches!(refused, SeedError::OtherDatastore { .. }),
        "{refused}"
    );
    assert_eq!(disk.files(), Vec::<String>::new());
    // An import of one seed does not go on with another one.
    for steps in 1.. {
        let stopped = copy_until(&seed, &disk, steps);
        assert!(matches!(stopped, Err(SeedError::Stopped)), "{stopped:?}");
        if disk.files().contains(&"import.json".to_owned()) {
            break;
        }
    }
    let id = snapshot(&source.node, 202);
    let second = Disk::default();
    write(&source.node.store, id, &second).unwrap();
    let refused = copy(&second, &disk).unwrap_err();
    assert!(matches!(refused, SeedError::Other { .. }), "{refused}");
    copy(&seed, &disk).unwrap();
}

#[test]
fn an_export_writes_only_whole_snapshots_of_the_datastore_and_overwrites_nothing() {
    let source = Source::new();
    let directory = tempfile::tempdir().unwrap();
    let beside = directory.path().join("none");
    let export = |at: &str, dest: &Path, stop: bool| {
        let order = SeedOrder {
            at,
            dest,
            origin: origin(),
        };
        export_seed((&beside, &source.node.store), order, &mut |_| {
            if stop {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })
    };
    let dest = directory.path().join("seed");
    let refused = export("none", &dest, false).unwrap_err();
    assert!(
        matches!(refused, ExportError::NoSnapshot { .. }),
        "{refused}"
    );
    take_local(&source.node.store);
    let refused = export("s", &dest, false).unwrap_err();
    assert!(
        matches!(refused, ExportError::NotOfDatastore { .. }),
        "{refused}"
    );
    for (sequence, name, bytes) in [
        (210, "torn", SnapshotBytes::Torn),
        (211, "missing", SnapshotBytes::Missing),
    ] {
        let id = SnapshotId::of_operation(Osn {
            sequence,
            ..source.id.osn
        });
        let record = SnapshotRecord {
            name: name.to_owned(),
            ..record_of(&source.node.store, bytes)
        };
        SnapshotAccess::of(&source.node.store)
            .create(id, record)
            .unwrap();
        let refused = export(name, &dest, false).unwrap_err().to_string();
        assert!(
            refused.contains(name) && refused.contains("cure:"),
            "{refused}"
        );
    }
    assert!(!dest.exists());
    // A stopped export leaves a part, which the next one does not touch.
    let stopped = export("before", &dest, true).unwrap_err().to_string();
    assert!(stopped.contains("INCOMPLETE"), "{stopped}");
    let part = directory.path().join("seed.partial");
    assert!(part.exists() && !part.join(MANIFEST_FILE).exists());
    let refused = export("before", &dest, false).unwrap_err();
    assert!(
        matches!(refused, ExportError::PartExists { .. }),
        "{refused}"
    );
    fs::remove_dir_all(&part).unwrap();
    export("before", &dest, false).unwrap();
    assert!(dest.join(MANIFEST_FILE).exists() && !part.exists());
    let refused = export("before", &dest, false).unwrap_err();
    assert!(matches!(refused, ExportError::NotEmpty { .. }), "{refused}");
    assert_eq!(
        source.node.store.tree().getattr(Ino::ROOT).unwrap().kind,
        NodeKind::Directory
    );
}
