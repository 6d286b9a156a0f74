//! A seed: a snapshot of a datastore in a directory, which travels to another server and becomes the first copy of a secondary there.
//!
//! | file | has |
//! |---|---|
//! | `seed.json` | the manifest: where the seed comes from, counts, and the sums of the two files below. Written last |
//! | `records` | the records of the namespace |
//! | `contents` | number, size and sum of each regular file that is not empty |
//! | `content/HI/INO` | the bytes of such a file, with holes, at the path that a store has for them |
//!
//! `docs/on-disk.md` has each byte. A seed without a manifest was cut off. Everything else is checked by the manifest, so a seed with other
//! bytes is refused, and never taken in part: until all of it is there, the directory of the new store holds no store.
//!
//! | part | does |
//! |---|---|
//! | `writing` | writes a seed, beside the clients of a running node |
//! | `import`, `names`, `intake` | make a store of a seed, without a node |
//! | `manifest`, `contents`, `part`, `blocks` | read and write the files |
//!
//! A seed has no reserved space, which a resync reserves, and no snapshots of the datastore, which a resync lists.

mod blocks;
mod contents;
mod error;
mod import;
mod intake;
mod manifest;
mod names;
mod part;
mod writing;

pub use error::SeedError;
pub use import::{ImportOptions, ImportPhase, ImportProgress, ImportSummary, import};
pub use intake::ImportPlaces;
pub use manifest::{MANIFEST_FILE, SeedLineage, SeedManifest, SeedOrigin, SeedSnapshot};
pub use writing::{SeedOrder, SeedProgress, SeedSummary, WatchSeed, export_seed, write_seed};
