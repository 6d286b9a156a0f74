//! The peer: how a connection is made, kept and used.

mod bulk_pace;
mod coalesce;
pub(crate) mod connection;
pub(crate) mod dial;
pub(crate) mod greeting;
pub(crate) mod meeting;
pub(crate) mod remote;
pub(crate) mod reply_permits;
pub(crate) mod requests;
