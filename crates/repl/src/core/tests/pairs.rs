//! Every pair of state and trigger, on a core with operations in flight: the core follows the
//! table, or refuses the trigger and does not change.

use std::collections::{HashSet, VecDeque};

use proptest::prelude::*;
use strum::VariantArray as _;

use super::*;
use crate::state::TABLE;

fn all_triggers() -> impl Iterator<Item = Trigger> {
    Trigger::VARIANTS.iter().copied()
}

/// The triggers that lead, by the table, from a possible first state of a core to `to`.
fn way_to(to: State) -> (State, Vec<Trigger>) {
    let starts = [
        State::Unmirrored,
        State::Synced,
        State::SecondaryDisconnected,
    ];
    let mut ways: VecDeque<_> = starts.map(|state| (state, state, Vec::new())).into();
    let mut seen = HashSet::from(starts);
    while let Some((start, at, way)) = ways.pop_front() {
        if at == to {
            return (start, way);
        }
        for &(_, trigger, next, _) in TABLE.iter().filter(|(state, ..)| *state == at) {
            if seen.insert(next) {
                ways.push_back((start, next, [&way[..], &[trigger]].concat()));
            }
        }
    }
    panic!("no way leads to {to:?}");
}

/// A core in `state` that began with a write, a metadata operation and a sync in flight.
fn busy(state: State) -> Core {
    let (start, way) = way_to(state);
    let mut core = core(start);
    for event in work() {
        core.on(event);
    }
    for trigger in way {
        core.on(event_of(trigger));
    }
    assert_eq!(core.state(), state);
    core
}

fn work() -> Vec<Event> {
    let submit = |op, kind, locks| Event::Submit {
        op: OpId(op),
        kind,
        locks,
        bytes: 0,
    };
    vec![
        submit(1, OpKind::Write, write_locks(5)),
        submit(2, OpKind::Meta, name_locks("a")),
        Event::Sequence(OpId(2)),
        submit(3, OpKind::Sync, LockSet::new()),
    ]
}

/// The event by which the driver reports a trigger.
fn event_of(trigger: Trigger) -> Event {
    let up = |in_sync| Event::LinkUp {
        connection: LINK,
        in_sync,
        peer_applied: Osn::ZERO,
    };
    match trigger {
        Trigger::LinkUpInSync => up(true),
        Trigger::LinkUpOutOfSync => up(false),
        trigger => Event::Trigger(trigger),
    }
}

/// The possible later events: the ends of the operations in flight, and then every trigger.
fn later_events() -> impl Iterator<Item = Event> {
    let ends = [
        Event::LocalDone(OpId(1), Ok(())),
        Event::WriteAcked(osn(1), None),
        Event::MetaAcked(osn(2), Ok(())),
        Event::LocalDone(OpId(2), Ok(())),
        Event::RangesRecovered,
        Event::LocalDone(OpId(3), Ok(())),
        Event::SyncAcked(OpId(3), None),
        Event::Beat,
        Event::Tick,
    ];
    ends.into_iter().chain(all_triggers().map(event_of))
}

/// The effect of an action, if the action always has this one effect at once.
fn effect_of(core: &Core, action: Action) -> Option<Effect> {
    Some(match action {
        Action::MarkInSync => Effect::Mark { in_sync: true },
        Action::MarkOutOfSync => Effect::Mark { in_sync: false },
        Action::DropLink => Effect::DropLink,
        Action::SendImage => Effect::Transfer(Transfer::SendImage, core.link.connection),
        Action::SendContent => Effect::Transfer(Transfer::SendContent, core.link.connection),
        Action::TellInSync => Effect::Transfer(Transfer::TellInSync, core.link.connection),
        // The effects depend on the operations in flight, or come later.
        Action::StartPause
        | Action::Recover
        | Action::FinishAlone
        | Action::Admit
        | Action::SendTail
        | Action::RefuseAll => return None,
    })
}

#[test]
fn a_handled_trigger_follows_the_table() {
    for &(state, trigger, next, actions) in TABLE {
        let pair = format!("{trigger:?} in {state:?}");
        let mut core = busy(state);
        let effects = core.on(event_of(trigger));
        assert_eq!(core.state(), next, "{pair}");
        let entered: Vec<_> = entered(&effects).collect();
        let changed = (state != next).then_some(next);
        assert_eq!(entered, Vec::from_iter(changed), "{pair}");
        let expected: Vec<_> = actions
            .iter()
            .filter_map(|a| effect_of(&core, *a))
            .collect();
        let done = effects.iter().filter(|effect| is_of_an_action(effect));
        assert!(done.eq(&expected), "{pair}: {effects:?}");
        assert!(!effects.iter().any(is_refused), "{pair}: {effects:?}");
    }
}

/// Whether [`effect_of`] returns this effect for some action.
const fn is_of_an_action(effect: &Effect) -> bool {
    matches!(
        effect,
        Effect::Mark { .. }
            | Effect::DropLink
            | Effect::Transfer(
                Transfer::SendImage | Transfer::SendContent | Transfer::TellInSync,
                _
            )
    )
}

fn entered(effects: &[Effect]) -> impl Iterator<Item = State> {
    effects.iter().filter_map(|effect| match effect {
        Effect::Entered(state) => Some(*state),
        _ => None,
    })
}

const fn is_refused(effect: &Effect) -> bool {
    matches!(effect, Effect::Refused(_))
}

#[test]
fn a_refused_trigger_changes_nothing() {
    for &state in State::VARIANTS {
        for trigger in all_triggers() {
            let Err(refused) = state.next(trigger) else {
                continue;
            };
            let (mut core, mut other) = (busy(state), busy(state));
            assert_eq!(core.on(event_of(trigger)), [Effect::Refused(refused)]);
            for event in later_events() {
                let expected = other.on(event.clone());
                assert_eq!(core.on(event), expected, "after {trigger:?} in {state:?}");
                assert_same(&core, &other);
            }
        }
    }
}

fn assert_same(core: &Core, other: &Core) {
    assert_eq!(core.state(), other.state());
    assert_eq!(core.in_flight(), other.in_flight());
    assert_eq!(core.held, other.held);
    assert_eq!(core.done_below(), other.done_below());
    assert_eq!(core.next_osn(), other.next_osn());
}

/// A change of the role ends the session with its states.
#[test]
fn nothing_changes_the_roles() {
    let is_secondary = |state: State| format!("{state:?}").starts_with("Secondary");
    for (state, trigger, next, _) in TABLE {
        let same = is_secondary(*state) == is_secondary(*next);
        assert!(same, "{trigger:?} in {state:?}");
    }
}

/// A second report of one connection is refused, and must not begin another recovery either.
#[test]
fn a_refused_connection_starts_no_recovery() {
    let mut core = busy(State::CatchingUp);
    let again = core.on(event_of(Trigger::LinkUpInSync));
    assert!(again.iter().all(is_refused), "{again:?}");
    assert_eq!(again.len(), 1);
}

fn any_event() -> impl Strategy<Value = Event> {
    let triggers: Vec<_> = all_triggers().map(event_of).collect();
    let sequence = 1_u64..8;
    prop_oneof![
        4 => prop::sample::select(triggers),
        2 => prop::sample::select(later_events().take(8).collect::<Vec<_>>()),
        1 => sequence.clone().prop_map(|number| Event::WriteAcked(osn(number), None)),
        1 => sequence.clone().prop_map(|number| Event::WriteAcked(osn(number), Some(Errno::Io))),
        1 => sequence.prop_map(|number| Event::MetaAcked(osn(number), Ok(()))),
    ]
}

proptest! {
    /// Holds after any earlier events.
    #[test]
    fn a_refused_trigger_changes_nothing_after_any_events(
        start in prop::sample::select(State::VARIANTS),
        events in prop::collection::vec(any_event(), 1..40),
    ) {
        let (mut core, mut other) = (busy(start), busy(start));
        for event in events {
            let trigger = match event {
                Event::Trigger(trigger) => Some(trigger),
                Event::LinkUp { in_sync: true, .. } => Some(Trigger::LinkUpInSync),
                Event::LinkUp { in_sync: false, .. } => Some(Trigger::LinkUpOutOfSync),
                _ => None,
            };
            let row = trigger.map(|trigger| other.state().next(trigger));
            let effects = core.on(event.clone());
            match row {
                Some(Err(refused)) => prop_assert_eq!(effects, [Effect::Refused(refused)]),
                Some(Ok((next, _))) => {
                    prop_assert_eq!(effects, other.on(event));
                    prop_assert_eq!(core.state(), next);
                }
                None => prop_assert_eq!(effects, other.on(event)),
            }
            assert_same(&core, &other);
        }
    }
}
