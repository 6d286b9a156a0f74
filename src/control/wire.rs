//! Between the plain reports and the messages on the socket.
//!
//! Words that stand for a choice travel as text, so that a newer node can be asked by an older
//! command and the command can say which word it does not know.

use lockstep_driver::report::{
    DatastoreStatus, Difference, PeerStatus, PoisonStatus, ResyncStatus, SpaceStatus, StrayStatus,
    VerifiedStatus, VerifyFailure, VerifyProgress, VerifyReport,
};

use crate::config::Choice;

use super::proto::verify_event::Event;
use super::{NodeStatus, proto};

/// A word of a choice that this program does not know: what it is about, and the word.
pub(super) type UnknownWord = (&'static str, String);

pub(super) fn status_reply(status: NodeStatus) -> proto::StatusReply {
    proto::StatusReply {
        node: status.node,
        version: status.version,
        pid: status.pid,
        fingerprint: status.fingerprint,
        datastores: status
            .datastores
            .into_iter()
            .map(datastore_message)
            .collect(),
    }
}

fn datastore_message(status: DatastoreStatus) -> proto::Datastore {
    proto::Datastore {
        name: status.name,
        uuid: status.uuid,
        role: status.role.word().to_owned(),
        state: status.state,
        service: status.service.word().to_owned(),
        in_sync: status.in_sync,
        marked_in_sync: status.marked_in_sync,
        since_ms: status.since_ms,
        reason: status.reason,
        poisoned: status.poisoned.map(|poison| proto::Poison {
            reason: poison.reason,
            time: poison.time,
        }),
        peer: status.peer.map(peer_message),
        generation: status.generation,
        osn: status.osn,
        writes_in_flight: status.writes_in_flight,
        metadata_in_flight: status.metadata_in_flight,
        kept_bytes: status.kept_bytes,
        paw: status.paw,
        saw: status.saw,
        mount: status.mount,
        durability: status.durability.word().to_owned(),
        on_peer_loss: status.on_peer_loss.word().to_owned(),
        space: status.space.map(|space| proto::Space {
            total_bytes: space.total_bytes,
            available_bytes: space.available_bytes,
        }),
        resync: status.resync.map(|resync| proto::Resync {
            files_total: resync.files_total,
            files_done: resync.files_done,
            bytes_total: resync.bytes_total,
            bytes_done: resync.bytes_done,
            bytes_sent: resync.bytes_sent,
        }),
        started: Some(status.started),
        stray: status.stray.map(|stray| proto::Stray {
            names: stray.names,
            more: stray.more,
        }),
        verified: status.verified.map(|verified| proto::Verified {
            time: verified.time,
            identical: verified.identical,
            differences_total: verified.differences_total,
            differences: verified.differences,
        }),
    }
}

fn peer_message(peer: PeerStatus) -> proto::Peer {
    proto::Peer {
        address: peer.address,
        connected: peer.connected,
        encryption: peer.encryption.word().to_owned(),
        disk_failed: peer.disk_failed,
        obstacle: peer.obstacle,
    }
}

pub(super) fn node_status(reply: proto::StatusReply) -> Result<NodeStatus, UnknownWord> {
    let datastores = reply.datastores.into_iter().map(datastore_status);
    Ok(NodeStatus {
        node: reply.node,
        version: reply.version,
        pid: reply.pid,
        fingerprint: reply.fingerprint,
        datastores: datastores.collect::<Result<_, _>>()?,
    })
}

fn datastore_status(message: proto::Datastore) -> Result<DatastoreStatus, UnknownWord> {
    Ok(DatastoreStatus {
        name: message.name,
        uuid: message.uuid,
        role: word("role", message.role)?,
        state: message.state,
        service: word("service", message.service)?,
        in_sync: message.in_sync,
        marked_in_sync: message.marked_in_sync,
        since_ms: message.since_ms,
        reason: message.reason,
        poisoned: message.poisoned.map(|poison| PoisonStatus {
            reason: poison.reason,
            time: poison.time,
        }),
        peer: message.peer.map(peer_status).transpose()?,
        generation: message.generation,
        osn: message.osn,
        writes_in_flight: message.writes_in_flight,
        metadata_in_flight: message.metadata_in_flight,
        kept_bytes: message.kept_bytes,
        paw: message.paw,
        saw: message.saw,
        mount: message.mount,
        durability: word("durability", message.durability)?,
        on_peer_loss: word("on_peer_loss", message.on_peer_loss)?,
        space: message.space.map(|space| SpaceStatus {
            total_bytes: space.total_bytes,
            available_bytes: space.available_bytes,
        }),
        resync: message.resync.map(|resync| ResyncStatus {
            files_total: resync.files_total,
            files_done: resync.files_done,
            bytes_total: resync.bytes_total,
            bytes_done: resync.bytes_done,
            bytes_sent: resync.bytes_sent,
        }),
        started: message.started.unwrap_or(true),
        stray: message.stray.map(|stray| StrayStatus {
            names: stray.names,
            more: stray.more,
        }),
        verified: message.verified.map(|verified| VerifiedStatus {
            time: verified.time,
            identical: verified.identical,
            differences_total: verified.differences_total,
            differences: verified.differences,
        }),
    })
}

fn peer_status(message: proto::Peer) -> Result<PeerStatus, UnknownWord> {
    Ok(PeerStatus {
        address: message.address,
        connected: message.connected,
        encryption: word("encryption", message.encryption)?,
        disk_failed: message.disk_failed,
        obstacle: message.obstacle,
    })
}

fn word<T: Choice>(what: &'static str, word: String) -> Result<T, UnknownWord> {
    T::find(&word).ok_or((what, word))
}

pub(super) fn progress_event(progress: VerifyProgress) -> proto::VerifyEvent {
    event(Event::Progress(proto::VerifyProgress {
        inodes_compared: progress.inodes_compared,
        inodes_total: progress.inodes_total,
        bytes_compared: progress.bytes_compared,
    }))
}

pub(super) fn outcome_event(outcome: Result<VerifyReport, VerifyFailure>) -> proto::VerifyEvent {
    event(match outcome {
        Ok(report) => Event::Report(report_message(report)),
        Err(failure) => Event::Failure(proto::VerifyFailure {
            cause: failure.cause,
            cure: failure.cure,
        }),
    })
}

const fn event(event: Event) -> proto::VerifyEvent {
    proto::VerifyEvent { event: Some(event) }
}

fn report_message(report: VerifyReport) -> proto::VerifyReport {
    let difference = |difference: Difference| proto::Difference {
        inode: difference.inode,
        path: difference.path,
        what: difference.what,
    };
    proto::VerifyReport {
        identical: report.identical,
        inodes_compared: report.inodes_compared,
        bytes_compared: report.bytes_compared,
        differences_total: report.differences_total,
        differences: report.differences.into_iter().map(difference).collect(),
    }
}

pub(super) fn verify_progress(message: proto::VerifyProgress) -> VerifyProgress {
    VerifyProgress {
        inodes_compared: message.inodes_compared,
        inodes_total: message.inodes_total,
        bytes_compared: message.bytes_compared,
    }
}

pub(super) fn verify_report(message: proto::VerifyReport) -> VerifyReport {
    let difference = |message: proto::Difference| Difference {
        inode: message.inode,
        path: message.path,
        what: message.what,
    };
    VerifyReport {
        identical: message.identical,
        inodes_compared: message.inodes_compared,
        bytes_compared: message.bytes_compared,
        differences_total: message.differences_total,
        differences: message.differences.into_iter().map(difference).collect(),
    }
}

pub(super) fn verify_failure(message: proto::VerifyFailure) -> VerifyFailure {
    VerifyFailure {
        cause: message.cause,
        cure: message.cure,
    }
}
