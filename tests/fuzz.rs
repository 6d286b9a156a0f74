//! Fuzzing: random and mutated bytes at the peer's port before and after authentication, in every file of a store,
//! and in the configuration. Bad input is refused with a reason. Nothing panics, memory stays bounded, and no stored
//! data is lost silently.
//!
//! Each target is a test with a fixed number of cases, always the same ones, in a few seconds.
//! `LOCKSTEP_FUZZ_SECONDS` runs fresh cases for that many seconds. `LOCKSTEP_FUZZ_SEED` repeats the case that a
//! failure has named. See `docs/testing.md`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)] // tests may panic

#[path = "fuzz/bytes.rs"]
mod bytes;
#[path = "fuzz/client.rs"]
mod client;
#[path = "fuzz/configuration.rs"]
mod configuration;
#[path = "fuzz/decoding.rs"]
mod decoding;
#[path = "fuzz/dialer.rs"]
mod dialer;
#[path = "fuzz/disk.rs"]
mod disk;
#[path = "fuzz/hostile_primary.rs"]
mod hostile_primary;
#[path = "fuzz/hostile_secondary.rs"]
mod hostile_secondary;
#[path = "fuzz/identity.rs"]
mod identity;
#[path = "fuzz/memory.rs"]
mod memory;
#[path = "fuzz/messages.rs"]
mod messages;
#[path = "fuzz/node.rs"]
mod node;
#[path = "fuzz/operations.rs"]
mod operations;
#[path = "fuzz/resync_status.rs"]
mod resync_status;
#[path = "fuzz/run.rs"]
mod run;
#[path = "fuzz/store.rs"]
mod store;
#[path = "fuzz/strangers.rs"]
mod strangers;
#[path = "fuzz/wire.rs"]
mod wire;

#[global_allocator]
static ALLOCATOR: memory::Counting = memory::Counting;
