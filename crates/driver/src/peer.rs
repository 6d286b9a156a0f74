//! The connection with the peer: how it is made, kept and used.

mod bulk_pace;
mod coalesce;
pub(crate) mod connection;
pub(crate) mod dial;
pub(crate) mod reply_permits;
pub(crate) mod requests;
