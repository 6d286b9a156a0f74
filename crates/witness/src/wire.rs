//! Conversion between the messages of `proto/witness.proto` and the types of the witness.

use lockstep_link::FingerprintError;
use lockstep_roles::{InSyncSet, Member, WitnessRecord};
use lockstep_types::{DatastoreUuid, Generation, SyncId};

use crate::answer::{StoreTag, WitnessAnswer};
use crate::entry::WitnessEntry;
use crate::pair::{NodePair, WitnessedDatastore};
use crate::proto::own as proto;

/// A message that this program does not understand.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WireError {
    /// A field is missing or has another length.
    #[error("the message has no usable {0}")]
    Field(&'static str),
    /// A fingerprint is not one.
    #[error(transparent)]
    Fingerprint(#[from] FingerprintError),
    /// The two nodes of a datastore are the same node, or stand in the wrong order.
    #[error("the message does not name two nodes in order")]
    Nodes,
}

pub(crate) fn datastore_message(datastore: &WitnessedDatastore) -> proto::Datastore {
    let [first, second] = datastore.pair.both().map(|node| node.to_string());
    proto::Datastore {
        uuid: datastore.uuid.as_bytes().to_vec(),
        first,
        second,
    }
}

pub(crate) fn datastore(
    message: Option<&proto::Datastore>,
) -> Result<WitnessedDatastore, WireError> {
    let message = message.ok_or(WireError::Field("datastore"))?;
    let uuid = uuid(&message.uuid)?;
    let pair = NodePair::in_order([message.first.parse()?, message.second.parse()?]);
    Ok(WitnessedDatastore {
        uuid,
        pair: pair.ok_or(WireError::Nodes)?,
    })
}

pub(crate) fn uuid(bytes: &[u8]) -> Result<DatastoreUuid, WireError> {
    let bytes = bytes.try_into().map_err(|_| WireError::Field("uuid"))?;
    Ok(DatastoreUuid::from_bytes(bytes))
}

pub(crate) fn record_message(record: &WitnessRecord) -> proto::Record {
    let primary = match record.primary {
        Member::First => proto::Member::First,
        Member::Second => proto::Member::Second,
    };
    let in_sync = match record.in_sync {
        InSyncSet::PrimaryOnly => proto::InSyncSet::PrimaryOnly,
        InSyncSet::Both => proto::InSyncSet::Both,
    };
    proto::Record {
        change: record.change,
        generation: record.generation.get(),
        primary: primary.into(),
        in_sync: in_sync.into(),
        sync: record.sync.map(sync_message),
    }
}

fn sync_message(sync: SyncId) -> proto::SyncName {
    let (number, drawn) = sync.to_words();
    proto::SyncName {
        number,
        drawn: drawn.to_vec(),
    }
}

fn sync(message: &proto::SyncName) -> Result<SyncId, WireError> {
    let drawn = message.drawn.as_slice().try_into();
    let drawn = drawn.map_err(|_| WireError::Field("sync"))?;
    Ok(SyncId::from_words(message.number, drawn))
}

pub(crate) fn record(message: &proto::Record) -> Result<WitnessRecord, WireError> {
    let primary = match proto::Member::try_from(message.primary) {
        Ok(proto::Member::First) => Member::First,
        Ok(proto::Member::Second) => Member::Second,
        _ => return Err(WireError::Field("primary")),
    };
    let in_sync = match proto::InSyncSet::try_from(message.in_sync) {
        Ok(proto::InSyncSet::PrimaryOnly) => InSyncSet::PrimaryOnly,
        Ok(proto::InSyncSet::Both) => InSyncSet::Both,
        _ => return Err(WireError::Field("in_sync")),
    };
    Ok(WitnessRecord {
        change: message.change,
        generation: Generation::new(message.generation).ok_or(WireError::Field("generation"))?,
        primary,
        in_sync,
        sync: message.sync.as_ref().map(sync).transpose()?,
    })
}

pub(crate) fn answer(message: &proto::Answer) -> Result<WitnessAnswer, WireError> {
    Ok(WitnessAnswer {
        record: message.record.as_ref().map(record).transpose()?,
        store: store_tag(&message.store)?,
    })
}

pub(crate) fn store_tag(bytes: &[u8]) -> Result<StoreTag, WireError> {
    bytes.try_into().map_err(|_| WireError::Field("store"))
}

pub(crate) fn listed_message(datastore: DatastoreUuid, entry: &WitnessEntry) -> proto::Listed {
    let datastore = WitnessedDatastore {
        uuid: datastore,
        pair: entry.pair,
    };
    proto::Listed {
        datastore: Some(datastore_message(&datastore)),
        record: Some(record_message(&entry.record)),
    }
}

pub(crate) fn listed(message: &proto::Listed) -> Result<(DatastoreUuid, WitnessEntry), WireError> {
    let datastore = datastore(message.datastore.as_ref())?;
    let found = message.record.as_ref().ok_or(WireError::Field("record"))?;
    let entry = WitnessEntry {
        pair: datastore.pair,
        record: record(found)?,
    };
    Ok((datastore.uuid, entry))
}

#[cfg(test)]
mod tests {
    use lockstep_link::Fingerprint;

    use super::*;

    #[test]
    fn records_arrive_as_they_were_sent() {
        for primary in [Member::First, Member::Second] {
            for in_sync in [InSyncSet::PrimaryOnly, InSyncSet::Both] {
                let sent = WitnessRecord {
                    change: u64::MAX,
                    generation: Generation::new(9).unwrap(),
                    primary,
                    in_sync,
                    sync: Some(SyncId::next(None, [7; 16])),
                };
                assert_eq!(record(&record_message(&sent)).unwrap(), sent);
            }
        }
    }

    #[test]
    fn a_message_with_unknown_words_is_refused() {
        let good = proto::Record {
            change: 0,
            generation: 1,
            primary: 1,
            in_sync: 1,
            sync: None,
        };
        record(&good).unwrap();
        let wrong: [fn(&mut proto::Record); 6] = [
            |it| {
                it.sync = Some(proto::SyncName {
                    number: 1,
                    drawn: vec![0; 15],
                });
            },
            |it| it.generation = 0,
            |it| it.primary = 0,
            |it| it.primary = 3,
            |it| it.in_sync = 0,
            |it| it.in_sync = 3,
        ];
        for spoil in wrong {
            let mut message = good.clone();
            spoil(&mut message);
            record(&message).unwrap_err();
        }
        let [one, other] = [b"a", b"b"].map(|der| Fingerprint::of_certificate(der).to_string());
        let (first, second) = (one.clone().min(other.clone()), one.max(other));
        let message = |uuid: &[u8], first: &str, second: &str| proto::Datastore {
            uuid: uuid.to_vec(),
            first: first.to_owned(),
            second: second.to_owned(),
        };
        datastore(Some(&message(&[1; 16], &first, &second))).unwrap();
        for wrong in [
            message(&[1; 15], &first, &second),
            message(&[1; 16], &second, &first),
            message(&[1; 16], &first, &first),
            message(&[1; 16], "", &second),
        ] {
            datastore(Some(&wrong)).unwrap_err();
        }
        datastore(None).unwrap_err();
    }
}
