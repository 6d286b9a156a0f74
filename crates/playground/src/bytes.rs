//! Reproducible content: bytes that depend only on a seed and on their offset.

/// Fills `into` with the bytes of the stream `seed`. Equal seeds give equal bytes, different seeds
/// bytes that look unrelated.
pub(crate) fn fill(seed: u64, into: &mut [u8]) {
    let mut state = seed;
    for chunk in into.chunks_mut(8) {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        for (byte, fresh) in chunk.iter_mut().zip(mix(state).to_le_bytes()) {
            *byte = fresh;
        }
    }
}

/// The finaliser of `SplitMix64`: spreads each bit of its input over all bits of its output.
const fn mix(state: u64) -> u64 {
    let state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_bytes() {
        let (mut one, mut same, mut other) = ([0; 21], [0; 21], [0; 21]);
        fill(7, &mut one);
        fill(7, &mut same);
        fill(8, &mut other);
        assert_eq!(one, same);
        assert_ne!(one, other);
    }
}
