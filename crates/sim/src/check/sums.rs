//! The sums that a store keeps fit its bytes: no sum vouches for bytes that the disk does not have (P32).
//!
//! A void sum says nothing, so each check passes it.

use lockstep_fs::Store;
use lockstep_sums::{FileSum, SumKey};
use lockstep_types::Ino;
use lockstep_types::limits::BLOCK_BYTES;

use super::dump::{Body, Dump};
use super::violation::Violation;

/// Blocks behind the end of a file that are asked for, too.
const BEHIND: u64 = 3;

/// Judges the sums of all files of a store, whose content is `dump`. Returns the number of void blocks.
pub fn check(store: &Store, dump: &Dump) -> Result<u64, Violation> {
    let totals = store.sums().totals();
    if totals.mismatches > 0 || totals.left_sums > 0 {
        return Err(violation(format!("the store has counted {totals:?}")));
    }
    let Some(secret) = store.sums().secret() else {
        return Ok(0);
    };
    let key = SumKey::new(&secret);
    let mut void = 0;
    for (ino, inode) in &dump.inodes {
        if let Body::File(bytes) = &inode.body {
            void += check_file(store, &key, *ino, bytes)?;
        }
    }
    Ok(void)
}

/// Judges the sums of both stores, which are in sync.
pub fn check_both(primary: (&Store, &Dump), secondary: (&Store, &Dump)) -> Result<(), Violation> {
    for (store, dump) in [primary, secondary] {
        check(store, dump)?;
    }
    let secrets = [primary, secondary].map(|(store, _)| store.sums().secret());
    if let [Some(one), Some(other)] = &secrets
        && one != other
    {
        return Err(violation("the nodes have different secrets".to_owned()));
    }
    Ok(())
}

fn check_file(store: &Store, key: &SumKey, ino: Ino, bytes: &[u8]) -> Result<u64, Violation> {
    let failed = |error| violation(format!("the sums of #{ino} cannot be read: {error}"));
    let blocks = bytes.len().div_ceil(BLOCK_BYTES) as u64;
    let kept = store
        .sums()
        .blocks(ino, 0, blocks + BEHIND)
        .map_err(failed)?;
    let whole = store.sums().file(ino).map_err(failed)?;
    let mut pieces = bytes.chunks(BLOCK_BYTES);
    let (mut known, mut void) = (FileSum::ZEROS, 0);
    for (number, kept) in (0..).zip(kept) {
        let of_bytes = key.block(pieces.next().unwrap_or_default());
        match kept {
            None => void += 1,
            Some(sum) if sum == of_bytes => known.replace(key, number, 0.into(), sum),
            Some(_) => {
                let what = format!("the sum of #{ino} block {number} is not that of its bytes");
                return Err(violation(what));
            }
        }
    }
    if whole.known != known || u64::from(whole.void_blocks) != void {
        let what = format!("the sum of #{ino} is not that of its blocks: {whole:?}, {void} void");
        return Err(violation(what));
    }
    Ok(void)
}

fn violation(what: String) -> Violation {
    Violation::new("sums", what)
}
