//! The two nodes of a datastore, as the witness knows them: by the fingerprints of their certificates.

use std::fmt;

use lockstep_link::Fingerprint;
use lockstep_roles::Member;
use lockstep_types::DatastoreUuid;

/// The two nodes of a datastore. The first has the lower fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodePair {
    first: Fingerprint,
    second: Fingerprint,
}

impl NodePair {
    /// The pair of these two nodes, in either order; `None` if both are the same node.
    pub fn new(one: Fingerprint, other: Fingerprint) -> Option<Self> {
        (one != other).then(|| Self {
            first: one.min(other),
            second: one.max(other),
        })
    }

    /// The pair of these two nodes, if they stand in the order of [`Self::both`].
    pub(crate) fn in_order(nodes: [Fingerprint; 2]) -> Option<Self> {
        let [first, second] = nodes;
        (first < second).then_some(Self { first, second })
    }

    /// The position of a node; `None` for a node that is not one of the two.
    pub fn member(&self, node: Fingerprint) -> Option<Member> {
        match node {
            _ if node == self.first => Some(Member::First),
            _ if node == self.second => Some(Member::Second),
            _ => None,
        }
    }

    /// The node at a position.
    pub const fn fingerprint(&self, member: Member) -> Fingerprint {
        match member {
            Member::First => self.first,
            Member::Second => self.second,
        }
    }

    /// Both nodes, the first one first.
    pub const fn both(&self) -> [Fingerprint; 2] {
        [self.first, self.second]
    }
}

impl fmt::Display for NodePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} and {}", self.first, self.second)
    }
}

/// A datastore with its two nodes: the subject of every call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WitnessedDatastore {
    pub(crate) uuid: DatastoreUuid,
    pub(crate) pair: NodePair,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_nodes_know_the_pair_in_one_order() {
        let nodes = [b"a", b"b"].map(|der| Fingerprint::of_certificate(der));
        let [one, other] = nodes;
        let pair = NodePair::new(one, other).unwrap();
        assert_eq!(Some(pair), NodePair::new(other, one));
        assert_eq!(NodePair::new(one, one), None);
        assert_eq!(pair.member(one.min(other)), Some(Member::First));
        assert_eq!(pair.member(one.max(other)), Some(Member::Second));
        assert_eq!(pair.member(Fingerprint::of_certificate(b"c")), None);
        assert_eq!(pair.fingerprint(Member::First), one.min(other));
    }
}
