//! The code generated from `proto/witness.proto` and `proto/etcd.proto`.

#[allow(missing_docs, clippy::all, clippy::pedantic, unreachable_pub)]
pub(crate) mod own {
    tonic::include_proto!("lockstep.witness.v1");
}

#[allow(missing_docs, clippy::all, clippy::pedantic, unreachable_pub)]
pub(crate) mod etcd {
    tonic::include_proto!("etcdserverpb");
}
