use lockstep_fs::os_backing::OsBacking;
use lockstep_roles::RoleChangeKind;
use lockstep_types::SyncId;

use super::slots::parse;
use super::*;

const FIRST: Generation = Generation::FIRST;
const BOOT: BootId = BootId::from_bytes([3; 16]);

fn fresh(dir: &std::path::Path) -> RoleFile {
    let backing: Arc<dyn Backing> = Arc::new(OsBacking::open(dir).unwrap());
    let found = RoleFile::read(backing.as_ref(), Role::Secondary, SlotChoice::Last).unwrap();
    RoleFile::open(backing, found, BOOT, found.marked(true).record).unwrap()
}

/// A change between two records, of the kind that the role machine gives it.
fn between(from: RoleRecord, to: RoleRecord) -> RoleChange {
    let kind = match (from.is_primary(), to.is_primary()) {
        (true, false) if to.complete => RoleChangeKind::Grant,
        (true, false) => RoleChangeKind::Deposed,
        (false, true) => RoleChangeKind::TakeOver,
        _ => RoleChangeKind::Keep,
    };
    RoleChange::waiting(kind, from, to)
}

fn greeted(file: &RoleFile) -> Greeted {
    Greeted {
        words: file.words(),
        is_durable: true,
    }
}

fn again(dir: &std::path::Path) -> io::Result<RoleState> {
    RoleFile::read(
        &OsBacking::open(dir).unwrap(),
        Role::Primary,
        SlotChoice::Last,
    )
}

#[test]
fn the_last_change_is_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let file = fresh(dir.path());
    assert!(!file.was_killed());
    let found = again(dir.path()).unwrap();
    assert_eq!(found, file.state());
    assert!(found.is_in_sync() && found.record.role == Role::Secondary);
    assert!(!found.went_down(BOOT) && found.went_down(BootId::from_bytes([4; 16])));
    assert!(!found.lineage.was_resynced);
    let store = StoreId::from_bytes([9; 16]);
    file.follow(FIRST, store).unwrap();
    let sync = file
        .carry_over(FIRST, None, [8; 16], || true)
        .unwrap()
        .unwrap();
    let of_ended_connection = file.carry_over(FIRST, None, [7; 16], || false).unwrap();
    assert_eq!(of_ended_connection, None);
    file.mark(FIRST, true).unwrap();
    file.mark(FIRST, false).unwrap();
    let found = again(dir.path()).unwrap();
    assert!(
        found.lineage.was_resynced
            && found.lineage.store == Some(store)
            && found.lineage.sync.last == Some(sync)
    );
    let proposed = || again(dir.path()).unwrap().lineage.sync.proposed;
    file.propose(FIRST, found.lineage.sync, [6; 16]).unwrap();
    assert_eq!(proposed(), None, "not in sync");
    file.mark(FIRST, true).unwrap();
    file.propose(FIRST, found.lineage.sync, [6; 16]).unwrap();
    let names = file.state().lineage.sync;
    assert!(proposed().is_some_and(|name| name.is_unknown_to(Some(sync))));
    assert_eq!(again(dir.path()).unwrap().lineage.sync, names);
    file.propose(FIRST, names, [5; 16]).unwrap();
    assert_eq!(proposed(), names.proposed, "not known to be taken");
    file.take_name(FIRST, names.newest().unwrap()).unwrap();
    let taken = SyncNames::settled(names.proposed);
    assert_eq!(again(dir.path()).unwrap().lineage.sync, taken);
    file.follow(FIRST, StoreId::from_bytes([1; 16])).unwrap();
    assert!(again(dir.path()).unwrap().lineage.sync.last.is_none());
    file.closed().unwrap();
    let found = again(dir.path()).unwrap();
    assert!(
        !found.is_in_sync()
            && found.boot.is_none()
            && !found.went_down(BootId::from_bytes([4; 16]))
    );
}

/// The witness must know of a promotion by force, also after a restart of this process.
#[test]
fn an_unrecorded_promotion_lasts_as_long_as_its_lead() {
    let dir = tempfile::tempdir().unwrap();
    let file = fresh(dir.path());
    let change = |new: RoleRecord| {
        let change = between(file.state().record, new);
        assert!(file.replace(change, [5; 16]).unwrap());
    };
    let forced = FIRST.next().next();
    let candidate = RoleRecord {
        generation: forced,
        is_candidate: true,
        ..file.state().record
    };
    change(candidate);
    let promotion = UnrecordedPromotion {
        generation: forced,
        known: FIRST,
    };
    file.note_unrecorded(promotion).unwrap();
    change(file.state().record.lead(forced, false));
    assert_eq!(again(dir.path()).unwrap().unrecorded, Some(promotion));
    file.clear_unrecorded().unwrap();
    assert_eq!(again(dir.path()).unwrap().unrecorded, None);
    file.note_unrecorded(promotion).unwrap();
    change(file.state().record.follow(forced, false));
    assert_eq!(again(dir.path()).unwrap().unrecorded, None, "it follows");
}

/// A session whose generation is over changes nothing.
#[test]
fn a_change_of_an_earlier_generation_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = fresh(dir.path());
    let before = file.state().record;
    let lead = before.lead(FIRST.next(), false);
    let name = StoreId::from_bytes([5; 16]);
    assert!(file.replace(between(before, lead), [5; 16]).unwrap());
    assert!(
        !file.replace(between(before, before), [5; 16]).unwrap(),
        "it has changed"
    );
    assert_eq!(file.state().lineage.store, Some(name));
    assert!(file.mark(FIRST, false).is_err());
    assert_eq!(
        file.carry_over(FIRST, None, [1; 16], || true).unwrap(),
        None
    );
    assert_eq!(again(dir.path()).unwrap().record, lead);
    file.mark(FIRST.next(), true).unwrap();
    let record = file.state().record;
    assert!(record.complete && record.peer_complete && record.is_primary());
}

/// The copy of a deposed primary may hold changes of its own until the copy is in sync.
#[test]
fn a_deposed_primary_is_known_until_its_copy_is_in_sync() {
    let dir = tempfile::tempdir().unwrap();
    let file = fresh(dir.path());
    let change = |new: RoleRecord| {
        let change = between(file.state().record, new);
        assert!(file.replace(change, [5; 16]).unwrap());
    };
    change(file.state().record.lead(FIRST, false));
    change(file.state().record.grant());
    assert_eq!(
        file.state().lineage.deposed,
        None,
        "it gave its role away in order"
    );
    let second = FIRST.next();
    change(file.state().record.lead(second, false));
    change(file.state().record.follow(second.next(), false));
    let sync = SyncId::next(None, [8; 16]);
    file.take_over(second.next(), sync, None).unwrap();
    assert_eq!(again(dir.path()).unwrap().lineage.deposed, Some(second));
    file.mark(second.next(), true).unwrap();
    assert_eq!(again(dir.path()).unwrap().lineage.deposed, None);
}

/// A deposed primary that was in sync has a base until a resync begins; one that served alone or lost power has none.
#[test]
fn only_a_deposed_primary_that_was_in_sync_has_a_base() {
    for (complete, peer_complete) in [(true, true), (true, false), (false, true)] {
        let dir = tempfile::tempdir().unwrap();
        let file = fresh(dir.path());
        let change = |new: RoleRecord| {
            let change = between(file.state().record, new);
            assert!(file.replace(change, [5; 16]).unwrap());
        };
        change(RoleRecord {
            complete,
            ..file.state().record.lead(FIRST, peer_complete)
        });
        assert_eq!(file.state().base(), None, "a primary");
        let second = FIRST.next();
        change(file.state().record.follow(second, false));
        let base = (complete && peer_complete).then_some(FIRST);
        assert_eq!(again(dir.path()).unwrap().base(), base);
        assert_eq!(file.state().without_base().base(), None);
        let sync = SyncId::next(None, [8; 16]);
        file.take_over(second, sync, base).unwrap();
        assert_eq!(
            again(dir.path()).unwrap().base(),
            base,
            "of what has changed"
        );
        file.take_over(second, sync, None).unwrap();
        assert_eq!(again(dir.path()).unwrap().base(), None, "of everything");
        file.note_base(second, Some(second)).unwrap();
        assert_eq!(again(dir.path()).unwrap().base(), Some(second), "across");
        assert_eq!(file.state().without_base().base(), None);
        file.mark(second, true).unwrap();
        assert_eq!(again(dir.path()).unwrap().base(), Some(second), "in sync");
    }
}

/// A copy that leaves the sync keeps its base, which no role as the primary outlives (rule P24).
#[test]
fn the_base_of_a_resync_outlives_the_process_and_no_other_role() {
    let dir = tempfile::tempdir().unwrap();
    let file = fresh(dir.path());
    let earlier = RoleState {
        lineage: CopyLineage {
            resync_base: None,
            ..file.state().lineage
        },
        ..file.state()
    };
    file.leave_sync(FIRST, Some(FIRST)).unwrap();
    let found = again(dir.path()).unwrap();
    assert!(!found.record.complete && found.has_tables());
    assert_eq!(found.base(), Some(FIRST));
    assert_eq!(found.after_power_loss().base(), None);
    let lead = found.record.lead(FIRST.next(), false);
    assert!(file.replace(between(found.record, lead), [5; 16]).unwrap());
    assert_eq!(file.state().lineage.resync_base, None);
    // A state without a base is written as by a program that knows of none.
    let text = serde_json::to_string(&earlier).unwrap();
    assert!(!text.contains("resync_base"));
}

/// The secondary has the last name until it hears of the next one (rule P17).
#[test]
fn a_resync_of_which_the_secondary_has_not_heard_leaves_the_last_name() {
    let dir = tempfile::tempdir().unwrap();
    let file = fresh(dir.path());
    let carry_over = |told, drawn| file.carry_over(FIRST, told, drawn, || true).unwrap();
    let first = carry_over(None, [1; 16]);
    assert_eq!(file.state().lineage.sync, SyncNames::settled(first));
    let second = carry_over(first, [2; 16]);
    let names = again(dir.path()).unwrap().lineage.sync;
    assert_eq!((names.last, names.proposed), (first, second));
    let third = carry_over(first, [3; 16]);
    let names = file.state().lineage.sync;
    assert_eq!((names.last, names.proposed), (first, third));
    assert_ne!(second, third);
}

/// Rule P22.
#[test]
fn a_write_verifier_lasts_as_long_as_the_memory_of_its_copy() {
    let dir = tempfile::tempdir().unwrap();
    let file = fresh(dir.path());
    let none = file.state();
    assert_eq!(none.clients.verifier, WriteVerifier::NONE);
    let other_boot = BootId::from_bytes([4; 16]);
    let first = none.verified(BOOT, none.record, || [2; 16]);
    let later =
        |state: RoleState, boot, record| state.verified(boot, record, || [4; 16]).clients.verifier;
    assert_ne!(first.clients.verifier, WriteVerifier::NONE);
    assert_eq!(later(first, BOOT, first.record), first.clients.verifier);
    assert_ne!(
        later(first, other_boot, first.record),
        first.clients.verifier
    );
    let closed = RoleState {
        boot: None,
        ..first
    };
    assert_eq!(
        later(closed, other_boot, first.record),
        first.clients.verifier
    );
    let lost = RoleRecord {
        complete: false,
        ..first.record
    };
    assert_ne!(later(first, BOOT, lost), first.clients.verifier);
    let entered = file.enter_sync(FIRST, first.clients.verifier, greeted(&file));
    assert!(entered.unwrap());
    let found = again(dir.path()).unwrap();
    assert!(found.clients.verifier == first.clients.verifier && found.is_in_sync());
    file.renew_verifier([4; 16]).unwrap();
    assert_ne!(file.state().clients.verifier, first.clients.verifier);
}

/// Rule P22: the copy that counts from now on lacks what the other one has.
#[test]
fn a_copy_that_was_not_complete_leads_with_another_verifier() {
    let dir = tempfile::tempdir().unwrap();
    let file = fresh(dir.path());
    file.mark(FIRST, false).unwrap();
    file.adopt_verifier(FIRST, WriteVerifier::from_bytes([2; 16]))
        .unwrap();
    let found = file.state();
    let lead = found.record.lead(FIRST.next(), false);
    assert!(file.replace(between(found.record, lead), [4; 16]).unwrap());
    assert_eq!(
        file.state().clients.verifier,
        found.clients.verifier,
        "it does not serve yet"
    );
    let serve = lead.without_peer();
    let restarted = file.state().verified(BOOT, serve, || [4; 16]);
    assert_ne!(restarted.clients.verifier, found.clients.verifier);
    assert!(file.replace(between(lead, serve), [4; 16]).unwrap());
    assert_ne!(file.state().clients.verifier, found.clients.verifier);
}

/// The operations that a demoted node has acknowledged alone are given up, until its copy is in sync.
#[test]
fn a_demoted_node_that_served_alone_says_so_until_it_is_in_sync() {
    for peer_complete in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let file = fresh(dir.path());
        let change = |new: RoleRecord| {
            let change = between(file.state().record, new);
            assert!(file.replace(change, [5; 16]).unwrap());
        };
        change(file.state().record.lead(FIRST, peer_complete));
        let second = FIRST.next();
        change(file.state().record.follow(second, false));
        assert_eq!(
            again(dir.path()).unwrap().clients.discarded_own_changes,
            !peer_complete
        );
        file.mark(second, true).unwrap();
        assert!(!again(dir.path()).unwrap().clients.discarded_own_changes);
    }
}

/// Flipped bits and cuts anywhere in one slot do not change the state of the file.
#[test]
fn damage_to_one_slot_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let file = fresh(dir.path());
    let sync = SyncId::next(None, [8; 16]);
    file.take_over(FIRST, sync, None).unwrap();
    let state = file.state();
    let whole = std::fs::read(dir.path().join(FILE)).unwrap();
    for at in 0..whole.len() {
        for bit in 0..8 {
            let mut flipped = whole.clone();
            flipped[at] ^= 1 << bit;
            assert_eq!(
                parse(&flipped, SlotChoice::Last).unwrap().0,
                state,
                "byte {at} bit {bit}"
            );
        }
    }
    for length in BLOCK_BYTES..whole.len() {
        assert_eq!(
            parse(&whole[..length], SlotChoice::Last).unwrap().0,
            state,
            "{length} bytes"
        );
    }
}

#[test]
fn damage_to_both_slots_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    fresh(dir.path());
    let path = dir.path().join(FILE);
    let whole = std::fs::read(&path).unwrap();
    for length in 0..BLOCK_BYTES {
        refused(&path, &whole[..length]);
    }
    for at in (0..BLOCK_BYTES).step_by(7) {
        let mut flipped = whole.clone();
        flipped[at] ^= 4;
        flipped[BLOCK_BYTES + at] ^= 4;
        // A flip in the padding would make a text with the same meaning; this flip makes no blank.
        refused(&path, &flipped);
    }
}

/// Power may be lost between any two bytes that reach the disk: the state is the one before or after the change.
#[test]
fn an_interrupted_change_has_happened_or_not() {
    let dir = tempfile::tempdir().unwrap();
    let file = fresh(dir.path());
    let before = file.state();
    let old = std::fs::read(dir.path().join(FILE)).unwrap();
    file.mark(FIRST, false).unwrap();
    let after = file.state();
    let new = std::fs::read(dir.path().join(FILE)).unwrap();
    for reached in 0..=new.len() {
        let torn = [&new[..reached], &old[reached..]].concat();
        let (state, _) = parse(&torn, SlotChoice::Last).unwrap();
        assert!([before, after].contains(&state), "{reached} bytes");
        // All bytes of the first sync have reached the disk: then other parts may act on the change.
        assert!(reached < BLOCK_BYTES || state == after, "{reached} bytes");
    }
}

fn refused(path: &std::path::Path, text: &[u8]) {
    std::fs::write(path, text).unwrap();
    let error = again(path.parent().unwrap()).unwrap_err();
    assert!(error.to_string().contains("is damaged"), "{error}");
}

/// Rule R1: the primary may serve alone by the word. A mark that waited for the disk meanwhile must not come after it.
#[test]
fn a_copy_that_was_called_incomplete_becomes_complete_over_a_later_connection_only() {
    let dir = tempfile::tempdir().unwrap();
    let file = fresh(dir.path());
    file.mark(FIRST, false).unwrap();
    let verifier = WriteVerifier::from_bytes([2; 16]);
    let before = greeted(&file);
    assert!(!file.told().record.complete);
    assert!(!file.enter_sync(FIRST, verifier, before).unwrap());
    assert!(!again(dir.path()).unwrap().is_in_sync());
    let after = greeted(&file);
    assert!(file.enter_sync(FIRST, verifier, after).unwrap());
    assert!(file.told().record.complete);
    assert_eq!(greeted(&file), after, "a complete copy gives no such word");
}

/// Rule P12: where every acknowledged operation is durable, a loss of power takes none.
#[test]
fn a_copy_keeps_what_it_has_over_a_loss_of_power_if_it_always_syncs() {
    let other_boot = BootId::from_bytes([9; 16]);
    let dir = tempfile::tempdir().unwrap();
    let file = fresh(dir.path());
    let verifier = WriteVerifier::from_bytes([2; 16]);
    assert!(file.enter_sync(FIRST, verifier, greeted(&file)).unwrap());
    let found = again(dir.path()).unwrap();
    assert!(found.keeps_complete() && found.has_kept_sync() && found.base().is_some());
    let lost = found.after_power_loss().started(other_boot, true);
    assert!(lost.keeps_complete() && lost.is_in_sync());
    assert!(
        !lost.has_kept_sync() && lost.base().is_none(),
        "compare all"
    );
    assert!(lost.marked(false).marked(true).has_kept_sync());
    file.note_unsynced().unwrap();
    assert!(!again(dir.path()).unwrap().keeps_complete());
}

#[test]
fn a_copy_counts_as_synced_from_a_clean_shutdown_or_a_loss_of_power_on_only() {
    let dir = tempfile::tempdir().unwrap();
    let found = fresh(dir.path()).state();
    let started = |state: RoleState, boot, is_always: bool| {
        state.started(boot, is_always).lineage.power.all_synced
    };
    let killed = RoleState {
        boot: Some(BOOT),
        ..found
    };
    let closed = RoleState {
        boot: None,
        ..found
    };
    let other_boot = BootId::from_bytes([9; 16]);
    assert!(
        !started(killed, BOOT, true),
        "the killed process may have left unsynced data"
    );
    assert!(started(closed, BOOT, true) && started(killed, other_boot, true));
    assert!(!started(closed, BOOT, false));
}
