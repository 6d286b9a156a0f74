//! The stored form of a record: JSON that a person can read, in the witness's store and in etcd alike.
//!
//! The text says by fingerprint which node is the primary, and which nodes are in sync. The disk below finds damage;
//! this file refuses texts that are not whole or that a newer program has written.

use lockstep_link::Fingerprint;
use lockstep_roles::{InSyncSet, Member, WitnessRecord};
use lockstep_types::{Generation, SyncId};
use serde::{Deserialize, Serialize};

use crate::pair::NodePair;

/// Version of the text that this file describes.
const FORMAT: u32 = 1;

/// The record of a datastore, with the two nodes that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WitnessEntry {
    /// The two nodes.
    pub pair: NodePair,
    /// The record.
    pub record: WitnessRecord,
}

/// Why a stored text is no entry.
#[derive(Debug, thiserror::Error)]
pub enum EntryError {
    /// The text is not JSON, or has other keys.
    #[error("it is not the text of a record: {0}")]
    Text(#[from] serde_json::Error),
    /// A newer program has written the text.
    #[error("it has format {0}, and this program knows format {FORMAT}")]
    Format(u32),
    /// The nodes in the text contradict each other.
    #[error("it does not name two nodes in order, with a primary that is in sync")]
    Nodes,
}

/// The entry as the text has it.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EntryText {
    format: u32,
    nodes: [Fingerprint; 2],
    change: u64,
    generation: Generation,
    primary: Fingerprint,
    in_sync: Vec<Fingerprint>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sync: Option<SyncId>,
}

/// The key that every format has.
#[derive(Deserialize)]
struct FormatOnly {
    format: u32,
}

impl WitnessEntry {
    /// The text of the entry.
    ///
    /// # Errors
    /// [`EntryError::Text`], never in practice.
    pub fn to_text(&self) -> Result<Vec<u8>, EntryError> {
        let primary = self.primary();
        let text = EntryText {
            format: FORMAT,
            nodes: self.pair.both(),
            change: self.record.change,
            generation: self.record.generation,
            primary,
            in_sync: self.in_sync(),
            sync: self.record.sync,
        };
        Ok(serde_json::to_vec(&text)?)
    }

    /// Reads the text of an entry.
    ///
    /// # Errors
    /// An [`EntryError`] for any other text.
    pub fn from_text(text: &[u8]) -> Result<Self, EntryError> {
        let FormatOnly { format } = serde_json::from_slice(text)?;
        if format != FORMAT {
            return Err(EntryError::Format(format));
        }
        let text: EntryText = serde_json::from_slice(text)?;
        let pair = NodePair::in_order(text.nodes).ok_or(EntryError::Nodes)?;
        let primary = pair.member(text.primary).ok_or(EntryError::Nodes)?;
        let entry = |in_sync| Self {
            pair,
            record: WitnessRecord {
                change: text.change,
                generation: text.generation,
                primary,
                in_sync,
                sync: text.sync,
            },
        };
        [InSyncSet::PrimaryOnly, InSyncSet::Both]
            .map(entry)
            .into_iter()
            .find(|entry| entry.in_sync() == text.in_sync)
            .ok_or(EntryError::Nodes)
    }

    /// The fingerprint of the primary.
    pub const fn primary(&self) -> Fingerprint {
        self.pair.fingerprint(self.record.primary)
    }

    /// The fingerprints of the nodes in sync, the primary first.
    pub fn in_sync(&self) -> Vec<Fingerprint> {
        let secondary = match self.record.primary {
            Member::First => Member::Second,
            Member::Second => Member::First,
        };
        match self.record.in_sync {
            InSyncSet::PrimaryOnly => vec![self.primary()],
            InSyncSet::Both => vec![self.primary(), self.pair.fingerprint(secondary)],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries() -> Vec<WitnessEntry> {
        let pair = NodePair::new(
            Fingerprint::of_certificate(b"a"),
            Fingerprint::of_certificate(b"b"),
        )
        .unwrap();
        let mut all = Vec::new();
        for primary in [Member::First, Member::Second] {
            for in_sync in [InSyncSet::PrimaryOnly, InSyncSet::Both] {
                all.push(WitnessEntry {
                    pair,
                    record: WitnessRecord {
                        change: 7,
                        generation: Generation::new(3).unwrap(),
                        primary,
                        in_sync,
                        sync: Some(SyncId::next(None, [6; 16]))
                            .filter(|_| in_sync == InSyncSet::Both),
                    },
                });
            }
        }
        all
    }

    #[test]
    fn an_entry_is_read_as_it_was_written() {
        for entry in entries() {
            let text = entry.to_text().unwrap();
            assert_eq!(WitnessEntry::from_text(&text).unwrap(), entry);
        }
    }

    #[test]
    fn a_text_that_is_not_whole_is_refused() {
        let text = entries().first().unwrap().to_text().unwrap();
        for length in 0..text.len() {
            WitnessEntry::from_text(&text[..length]).unwrap_err();
        }
    }

    #[test]
    fn nodes_that_contradict_each_other_are_refused() {
        let entry = entries()[0];
        let text = String::from_utf8(entry.to_text().unwrap()).unwrap();
        let [first, second] = entry.pair.both().map(|node| node.to_string());
        let swapped = text
            .replace(&first, "x")
            .replace(&second, &first)
            .replace('x', &second);
        let foreign = text.replacen(&first, &Fingerprint::of_certificate(b"c").to_string(), 1);
        for wrong in [swapped, foreign, text.replace(&second, &first)] {
            let error = WitnessEntry::from_text(wrong.as_bytes()).unwrap_err();
            assert!(matches!(error, EntryError::Nodes), "{wrong}: {error}");
        }
    }

    #[test]
    fn a_newer_format_and_an_unknown_key_are_refused() {
        let text = String::from_utf8(entries()[0].to_text().unwrap()).unwrap();
        let newer = text.replace("\"format\":1", "\"format\":2,\"more\":0");
        let error = WitnessEntry::from_text(newer.as_bytes()).unwrap_err();
        assert!(matches!(error, EntryError::Format(2)), "{error}");
        let more = text.replace("\"format\":1", "\"format\":1,\"more\":0");
        let error = WitnessEntry::from_text(more.as_bytes()).unwrap_err();
        assert!(matches!(error, EntryError::Text(_)), "{error}");
    }
}
