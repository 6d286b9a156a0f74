//! Empty: `benches/metadata_store.rs` compares stores for metadata. The crate keeps the rejected stores out of all
//! other builds.
