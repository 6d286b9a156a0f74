//! Every command that `lockstep status` or `lockstep why` names is allowed in the state in which the text says so, and harmless.
//!
//! The test makes every combination of the values on which the texts depend, also those that no node can be in.

use lockstep_driver::report::{DiskStallStatus, WitnessStatus};

use super::*;

/// The combinations of a datastore with a peer.
fn states() -> Vec<DatastoreStatus> {
    let mut states: Vec<DatastoreStatus> = Vec::new();
    for service in ServiceStatus::ALL.iter().map(|(service, _)| *service) {
        for bits in 0..(1_u32 << 10) {
            let bit = |number: u32| bits & (1 << number) != 0;
            let role = if bit(0) {
                Role::Primary
            } else {
                Role::Secondary
            };
            // Only a primary serves.
            if role == Role::Secondary && service != ServiceStatus::None {
                continue;
            }
            let mut state = primary(service, bit(1), bit(2));
            state.settings.role = role;
            state.sync.copy.complete = if role == Role::Primary {
                bit(3)
            } else {
                bit(2)
            };
            state.sync.in_sync = bit(1) && bit(2) && bit(4);
            if bit(5) {
                state = with_failed_disk(state);
            }
            state.sync.disk_stall = bit(6).then_some(DiskStallStatus {
                silent_ms: 60_000,
                gave_way: bit(4),
            });
            let peer = state.peer.as_mut().unwrap();
            peer.disk_failed = bit(7);
            peer.obstacle = bit(8);
            peer.disk_silent_ms = bit(9).then_some(60_000);
            states.extend(with_each_witness(&state));
        }
    }
    states
}

/// The state without a witness, and with each answer of a witness.
fn with_each_witness(state: &DatastoreStatus) -> impl Iterator<Item = DatastoreStatus> + '_ {
    let witness = |answers, protects, trouble: Option<&str>| {
        Some(WitnessStatus {
            address: "10.0.0.3:7500".to_owned(),
            answers,
            protects,
            trouble: trouble.map(str::to_owned),
            unaware: false,
        })
    };
    [
        None,
        witness(true, true, None),
        witness(true, false, None),
        witness(true, false, Some("it has no record")),
        witness(false, false, Some("it does not answer")),
        witness(false, false, None),
    ]
    .into_iter()
    .map(|witness| DatastoreStatus {
        witness,
        ..state.clone()
    })
}

/// A command that a text names: its words, and the text after them.
struct Named<'a> {
    words: &'a str,
    line: &'a str,
    after: &'a str,
}

fn named(text: &str) -> Vec<Named<'_>> {
    let mut found = Vec::new();
    for line in text.lines() {
        let mut rest = line;
        while let Some((_, begun)) = rest.split_once("`lockstep ") {
            let (words, after) = begun.split_once('`').unwrap();
            found.push(Named { words, line, after });
            rest = after;
        }
    }
    found
}

/// Why a command that a text names must not be named there; `None` for a command that is allowed and harmless.
fn harm(command: &Named<'_>, state: &DatastoreStatus) -> Option<&'static str> {
    let is_there = ["there", "on the other node"]
        .iter()
        .any(|place| command.after.trim_start().starts_with(place));
    let accepts_loss = command.words.contains("--force-data-loss");
    let verb = command.words.split(' ').next().unwrap_or_default();
    match verb {
        "promote" if is_there => harm_there(state, accepts_loss),
        "promote" => harm_here(command, state, accepts_loss),
        // For a failed disk only. The flag is needed where no other copy is complete.
        "clear-poison" if state.poisoned.is_none() => Some("the disk has not failed"),
        // The others change nothing.
        "clear-poison" | "status" | "why" | "verify" => None,
        _ => Some("a command that this test does not know"),
    }
}

fn harm_there(state: &DatastoreStatus, accepts_loss: bool) -> Option<&'static str> {
    let peer = state.peer.as_ref().unwrap();
    if state.settings.role != Role::Primary {
        return Some("the other node is the primary");
    }
    if !state.sync.copy.marked_in_sync {
        return Some("the other copy lacks acknowledged changes");
    }
    if peer.disk_failed || peer.disk_silent_ms.is_some() {
        return Some("the disk of the other node does not work");
    }
    (state.witness.is_some() != accepts_loss)
        .then_some("the node refuses the command with this flag, or without it")
}

fn harm_here(
    command: &Named<'_>,
    state: &DatastoreStatus,
    accepts_loss: bool,
) -> Option<&'static str> {
    if state.poisoned.is_some() || state.sync.disk_stall.is_some() {
        return Some("the disk of this node does not work");
    }
    if state.witness.is_some() != accepts_loss {
        return Some("the node refuses the command with this flag, or without it");
    }
    let is_for_a_dead_witness = [
        "lost for good",
        "dead for good",
        "comes back",
        "brought back",
    ]
    .iter()
    .any(|condition| command.line.contains(condition));
    if accepts_loss {
        return (!is_for_a_dead_witness).then_some("a loss is accepted without need");
    }
    (!state.sync.copy.complete).then_some("this copy lacks acknowledged changes")
}

#[test]
fn every_command_that_a_text_names_is_allowed_and_harmless() {
    let mut commands = 0;
    for state in states() {
        let texts = [status::tests::text_of(&state), explain("a", &state)];
        for text in &texts {
            for command in named(text) {
                commands += 1;
                if let Some(harm) = harm(&command, &state) {
                    panic!("`lockstep {}`: {harm}:\n{text}\n{state:#?}", command.words);
                }
            }
        }
    }
    assert!(commands > 10_000, "{commands}");
}
