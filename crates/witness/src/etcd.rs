//! The witness in etcd: one key for each datastore, changed by transactions that compare the key's revision.
//!
//! A read is linearizable: etcd answers it from a majority of its members. A member that does not answer in its share
//! of the limit is passed over for the next one; the client stays with the member that has answered last.
//!
//! etcd does not know the nodes. Every program that can write to etcd can change a record, so the nodes check only
//! that a record belongs to their pair.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lockstep_roles::{Claim, WitnessRecord};
use parking_lot::Mutex;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::address::EtcdEndpoint;
use crate::answer::{CallFailure, StoreTag, WitnessAnswer, root_cause};
use crate::entry::WitnessEntry;
use crate::pair::WitnessedDatastore;
use crate::proto::etcd as proto;
use crate::store::{WitnessStoreError, stored_record, stored_text};

type EtcdStub = proto::kv_client::KvClient<Channel>;

/// Cure of an unreachable cluster.
pub(crate) const CURE: &str =
    "check that a majority of etcd's members runs, their addresses and the firewalls";

/// Time after which a connection is probed during a call.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);

/// Limit for the answer to a probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);

/// Most transactions for one claim. Each is lost only to another claim of the same datastore.
const ATTEMPTS_MAX: usize = 8;

/// The connections with a cluster of etcd.
#[derive(Debug)]
pub(crate) struct EtcdWitness {
    members: Vec<EtcdMember>,
    /// Position of the member that has answered last.
    preferred: AtomicUsize,
}

#[derive(Debug)]
struct EtcdMember {
    endpoint: EtcdEndpoint,
    stub: Mutex<Option<EtcdStub>>,
}

/// A datastore's key as etcd has it, and the cluster that has it.
struct EtcdKey {
    record: Option<WitnessRecord>,
    /// Revision of the key's last change; zero without a key.
    revision: i64,
    store: StoreTag,
}

impl EtcdWitness {
    /// Makes no connection yet.
    pub(crate) fn new(endpoints: &[EtcdEndpoint]) -> Self {
        let member = |endpoint: &EtcdEndpoint| EtcdMember {
            endpoint: endpoint.clone(),
            stub: Mutex::new(None),
        };
        Self {
            members: endpoints.iter().map(member).collect(),
            preferred: AtomicUsize::new(0),
        }
    }

    /// Reads the record, or makes the claim.
    pub(crate) async fn ask(
        &self,
        datastore: &WitnessedDatastore,
        claim: Option<Claim>,
        limit: Duration,
    ) -> Result<WitnessAnswer, CallFailure> {
        let count = u32::try_from(self.members.len()).unwrap_or(u32::MAX).max(1);
        let first = self.preferred.load(Ordering::Relaxed);
        let mut causes = Vec::new();
        for (position, member) in self.in_turn(first) {
            let attempt = member.ask(datastore, claim);
            match tokio::time::timeout(limit / count, attempt).await {
                Ok(Ok(answer)) => {
                    self.preferred.store(position, Ordering::Relaxed);
                    return Ok(answer);
                }
                Ok(Err(CallFailure::Unreachable { cause, .. })) => causes.push(cause),
                Ok(Err(refused)) => return Err(refused),
                Err(_) => {
                    member.reset();
                    causes.push(format!("{} gave no answer in time", member.endpoint));
                }
            }
        }
        Err(CallFailure::unreachable(causes.join("; "), CURE))
    }

    /// The members with their positions, from `first` on.
    fn in_turn(&self, first: usize) -> impl Iterator<Item = (usize, &EtcdMember)> {
        let all = || self.members.iter().enumerate();
        all().skip(first).chain(all().take(first))
    }

    /// Gives all connections up: a call has reached its limit.
    pub(crate) fn reset(&self) {
        self.members.iter().for_each(EtcdMember::reset);
    }
}

impl EtcdMember {
    async fn ask(
        &self,
        datastore: &WitnessedDatastore,
        claim: Option<Claim>,
    ) -> Result<WitnessAnswer, CallFailure> {
        if let Some(claim) = &claim {
            let checked = claim.check().map_err(WitnessStoreError::from);
            checked.map_err(|error| CallFailure::refused_by(&error))?;
        }
        for _ in 0..ATTEMPTS_MAX {
            let found = self.read(datastore).await?;
            let current = found.record;
            let next = claim.map_or(current, |claim| claim.apply(current));
            let store = found.store;
            if let Some(record) = next.filter(|_| next != current)
                && !self.replace(datastore, record, found.revision).await?
            {
                continue;
            }
            return Ok(WitnessAnswer {
                record: next,
                store,
            });
        }
        let cause = "the record changes faster than this node can claim it";
        Err(CallFailure::unreachable(cause, CURE))
    }

    async fn read(&self, datastore: &WitnessedDatastore) -> Result<EtcdKey, CallFailure> {
        let key = key(datastore);
        let request = proto::RangeRequest { key: key.clone() };
        let reply = self.stub().range(request).await;
        let reply = reply.map_err(|status| self.failed(&status))?.into_inner();
        let cluster = reply.header.map_or(0, |header| header.cluster_id);
        let mut store = [0; 16];
        let (_, tag) = store.split_at_mut(8);
        tag.copy_from_slice(&cluster.to_be_bytes());
        let Some(pair) = reply.kvs.into_iter().find(|pair| pair.key == key) else {
            return Ok(EtcdKey {
                record: None,
                revision: 0,
                store,
            });
        };
        let record = stored_record(datastore.uuid, datastore.pair, &pair.value);
        Ok(EtcdKey {
            record: Some(record.map_err(|error| CallFailure::refused_by(&error))?),
            revision: pair.mod_revision,
            store,
        })
    }

    /// Writes the record if the key's last change has this revision. Returns whether it had.
    async fn replace(
        &self,
        datastore: &WitnessedDatastore,
        record: WitnessRecord,
        revision: i64,
    ) -> Result<bool, CallFailure> {
        let pair = datastore.pair;
        let value = stored_text(datastore.uuid, WitnessEntry { pair, record });
        let value = value.map_err(|error| CallFailure::refused_by(&error))?;
        let key = key(datastore);
        let put = proto::PutRequest {
            key: key.clone(),
            value,
        };
        let transaction = proto::TxnRequest {
            compare: vec![proto::Compare {
                result: proto::compare::CompareResult::Equal.into(),
                target: proto::compare::CompareTarget::Mod.into(),
                key,
                target_union: Some(proto::compare::TargetUnion::ModRevision(revision)),
            }],
            success: vec![proto::RequestOp {
                request: Some(proto::request_op::Request::RequestPut(put)),
            }],
            failure: Vec::new(),
        };
        let reply = self.stub().txn(transaction).await;
        let reply = reply.map_err(|status| self.failed(&status))?;
        Ok(reply.into_inner().succeeded)
    }

    fn failed(&self, status: &Status) -> CallFailure {
        let is_told = std::error::Error::source(status).is_none();
        let cause = format!("{}: {}", self.endpoint, root_cause(status));
        match status.code() {
            Code::PermissionDenied | Code::Unauthenticated | Code::InvalidArgument if is_told => {
                let cure =
                    "let every client of that address read and write the keys below lockstep/";
                CallFailure::refused(format!("{}: {}", self.endpoint, status.message()), cure)
            }
            Code::ResourceExhausted if is_told => {
                let cure = "make room in etcd: compact and defragment it, then disarm its alarm";
                CallFailure::refused(format!("{}: {}", self.endpoint, status.message()), cure)
            }
            Code::Unimplemented if is_told => {
                let cure = "name endpoints of etcd with version 3.4 or later";
                CallFailure::refused(cause, cure)
            }
            _ if is_told => {
                let cause = format!("{}: {}", self.endpoint, status.message());
                CallFailure::unreachable(cause, CURE)
            }
            _ => {
                self.reset();
                CallFailure::unreachable(cause, CURE)
            }
        }
    }

    fn reset(&self) {
        *self.stub.lock() = None;
    }

    fn stub(&self) -> EtcdStub {
        let mut stub = self.stub.lock();
        stub.get_or_insert_with(|| {
            let endpoint = self.endpoint.endpoint();
            let endpoint = endpoint
                .tcp_nodelay(true)
                .http2_keep_alive_interval(PROBE_INTERVAL)
                .keep_alive_timeout(PROBE_TIMEOUT);
            EtcdStub::new(endpoint.connect_lazy())
        })
        .clone()
    }
}

fn key(datastore: &WitnessedDatastore) -> Vec<u8> {
    format!("lockstep/{}", datastore.uuid).into_bytes()
}
