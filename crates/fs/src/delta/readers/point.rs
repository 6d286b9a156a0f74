//! The point up to which a change reader knows the changes of a store, as text between Lockstep and its user.

use std::fmt;
use std::str::FromStr;

use lockstep_types::{Generation, Osn};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A moment of one store, drawn when a reader asks. Two points are the same only if they are of the same question to the same
/// node: both nodes, and an older copy of a store, give the same OSNs to different moments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangePoint {
    /// Each operation up to this one was over before the point.
    pub osn: Osn,
    /// Random.
    pub nonce: u64,
}

/// A text that is no point.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is no point of a change reader, such as 1.1099511627781-0123456789abcdef")]
pub struct NotAPoint(String);

impl fmt::Display for ChangePoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:016x}", self.osn, self.nonce)
    }
}

impl FromStr for ChangePoint {
    type Err = NotAPoint;

    fn from_str(text: &str) -> Result<Self, NotAPoint> {
        read(text.trim()).ok_or_else(|| NotAPoint(text.to_owned()))
    }
}

fn read(text: &str) -> Option<ChangePoint> {
    let (osn, nonce) = text.split_once('-')?;
    let (generation, sequence) = osn.split_once('.')?;
    Some(ChangePoint {
        osn: Osn {
            generation: Generation::new(generation.parse().ok()?)?,
            sequence: sequence.parse().ok()?,
        },
        nonce: u64::from_str_radix(nonce, 16).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_is_read_as_it_is_written() {
        let point = ChangePoint {
            osn: Osn::ZERO.next(),
            nonce: 7,
        };
        assert_eq!(point.to_string(), "1.1-0000000000000007");
        assert_eq!(" 1.1-0000000000000007\n".parse(), Ok(point));
        for text in ["", "1.1", "0.1-1", "1.x-1", "1.1-x", "1.1-1-1"] {
            assert!(text.parse::<ChangePoint>().is_err(), "{text}");
        }
    }
}
