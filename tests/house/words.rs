//! Rule: words that were given up do not come back, neither as names in code nor in prose.

use std::collections::BTreeMap;

use crate::Finding;
use crate::paths::Documents;
use crate::workspace::{Workspace, split_path};

/// Names that are gone, each with the name in its place.
pub const GONE: &[(&str, &str)] = &[
    ("AdmissionWish", "RequestClass"),
    ("Admissions", "StandbyQueue"),
    ("Applicant", "SpaceRequest"),
    ("Arbiter", "SimWitness"),
    ("Arbitration", "WitnessLoop"),
    ("Attendee", "RolePeer"),
    ("ChangeTrace", "DeltaTracker"),
    ("Course", "ActiveConnection"),
    ("CutArbiter", "CutWitness"),
    ("Debt", "UnrecordedPromotion"),
    ("Discord", "RoleConflict"),
    ("Doubt", "VisibilityHold"),
    ("ForcedWord", "ForcedClaim"),
    ("Journal", "MetadataLog"),
    ("Judgment", "Decision"),
    ("Keeper", "SpillBuffer"),
    ("Keeping", "Preservation"),
    ("Kept", "Spilled"),
    ("KeptBytes", "SpilledBytes"),
    ("Kinship", "Lineage"),
    ("Meet", "RoleOffer"),
    ("Meets", "RoleOffer"),
    ("RequestForm", "RequestInfo"),
    ("RequestGate", "InFlightRequests"),
    ("Rooms", "SpaceLedger"),
    ("Ruling", "QueryResult"),
    ("SecondarySession", "StandbySession"),
    ("SessionPart", "RoleChange"),
    ("Silence", "Disconnection"),
    ("SpaceAdmission", "SpaceCheck"),
    ("StartGate", "StartBarrier"),
    ("Term", "Replication"),
    ("Told", "RoleOffer"),
    ("WitnessLine", "BoundWitness"),
    ("WitnessView", "WitnessState"),
    ("WitnessWord", "WitnessProtection"),
    ("WriteBytes", "WriteData"),
    ("begin_anew", "skip_numbers_and_renew_verifier"),
    ("begin_as", "switch_role"),
    ("carried_over", "was_resynced"),
    ("change_trace", "delta"),
    ("deposed_in_sync", "deposed_base"),
    ("forced_word", "forced_claim"),
    ("gave_up", "discarded_own_changes"),
    ("give_sync_up", "mark_incomplete"),
    ("goes_back", "acknowledged_may_be_lost"),
    ("has_paused", "peer_could_have_served"),
    ("lapse", "lease_expiry"),
    ("lapsed", "lease_expired"),
    ("latest_met", "latest_generation"),
    ("leads_without", "needs_new_verifier"),
    ("leave_out_inos", "skip_inos"),
    ("leaves_sync", "asks_peer_to_mark_incomplete"),
    ("note_rival", "note_peer_generation"),
    ("rival", "peer_generation"),
    ("tell_witness", "ForcedPromotion"),
    ("watch_lease", "run_lease_timer"),
    ("write_admission", "write_backpressure"),
];

/// Names that are going: an entry moves to [`GONE`] once no file has the name any more.
pub const GOING: &[(&str, &str)] = &[];

/// Phrases that are gone from comments, messages and documents, each with the words in their place.
pub const GONE_PHRASES: &[(&str, &str)] = &[
    ("change trace", "delta"),
    ("in a later part", "later"),
    ("is the first part", "is the first version"),
    ("limit of this part", "limit"),
    ("of this part", "of this version"),
    ("permit to serve", "solo grant"),
    ("waiting file", "spill file"),
    ("word of the witness", "answer of the witness, or claim"),
];

/// Phrases that are going.
pub const GOING_PHRASES: &[(&str, &str)] = &[];

/// Uses of words that are gone.
pub fn check(workspace: &Workspace, documents: &Documents) -> Vec<Finding> {
    let mut found = uses(GONE, &identifiers(workspace, documents), has_word);
    found.extend(uses(
        GONE_PHRASES,
        &prose(workspace, documents),
        |text, phrase| text.contains(phrase),
    ));
    found
}

/// Words of the lists of those that are going which no file has any more.
pub fn clean(workspace: &Workspace, documents: &Documents) -> Vec<&'static str> {
    let identifiers = identifiers(workspace, documents);
    let prose = prose(workspace, documents);
    let words = GOING.iter().map(|it| it.0);
    let words = words.filter(|word| !identifiers.values().any(|it| has_word(it, word)));
    let phrases = GOING_PHRASES.iter().map(|it| it.0);
    let phrases = phrases.filter(|phrase| !prose.values().any(|it| it.contains(phrase)));
    words.chain(phrases).collect()
}

fn has_word(text: &str, word: &str) -> bool {
    let mut words = text.split(|it: char| !it.is_alphanumeric() && it != '_');
    words.any(|it| it == word)
}

fn uses(
    words: &[(&str, &str)],
    texts: &BTreeMap<&str, String>,
    has: impl Fn(&str, &str) -> bool,
) -> Vec<Finding> {
    let mut found = Vec::new();
    for (file, text) in texts {
        for (word, instead) in words.iter().filter(|it| has(text, it.0)) {
            let folder = split_path(file).map_or("docs", |it| it.0);
            found.push(Finding::new(
                folder,
                format!("{file} has {word:?}: {instead:?} took its place"),
            ));
        }
    }
    found
}

/// The code of sources without comments, and the quoted code of documents.
fn identifiers<'a>(
    workspace: &'a Workspace,
    documents: &'a Documents,
) -> BTreeMap<&'a str, String> {
    let code = |text: &str| {
        text.lines()
            .map(|it| it.split("//").next().unwrap_or(it))
            .collect::<Vec<_>>()
            .join("\n")
    };
    let quoted = |text: &str| {
        text.split('`')
            .skip(1)
            .step_by(2)
            .collect::<Vec<_>>()
            .join("\n")
    };
    let sources = sources(workspace).map(|(file, text)| (file, code(text)));
    let documents = documents
        .iter()
        .map(|(file, text)| (file.as_str(), quoted(text)));
    sources.chain(documents).collect()
}

/// Sources and documents in lower case and on one line, without the marks of comments.
fn prose<'a>(workspace: &'a Workspace, documents: &'a Documents) -> BTreeMap<&'a str, String> {
    let words = |text: &str| {
        let words = text
            .split_whitespace()
            .filter(|it| !matches!(*it, "//" | "///" | "//!" | "\\"));
        words.collect::<Vec<_>>().join(" ").to_lowercase()
    };
    let documents = documents
        .iter()
        .map(|(file, text)| (file.as_str(), text.as_str()));
    let texts = sources(workspace).chain(documents);
    texts.map(|(file, text)| (file, words(text))).collect()
}

/// All sources but this list and its tests.
fn sources(workspace: &Workspace) -> impl Iterator<Item = (&str, &str)> {
    let texts = workspace
        .texts
        .iter()
        .map(|(file, text)| (file.as_str(), text.as_str()));
    texts.filter(|it| !it.0.starts_with("tests/house"))
}
