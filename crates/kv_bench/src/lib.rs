//! Compares stores for metadata: see `benches/metadata_store.rs`. The crate keeps the stores that were not taken out of
//! every other build.
