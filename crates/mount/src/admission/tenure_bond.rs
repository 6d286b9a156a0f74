//! The bond of a request to the tenure in which it was asked (rule R13).
//!
//! | request | in a later tenure |
//! |---|---|
//! | a change | fails: it would run on changes that the other node has made since |
//! | a look at the attributes of an inode | fails: the kernel begins the change of an open file with such a look, and would ask the change next |
//! | any other | runs: it shows what both nodes have made |
//!
//! A change that begins with a path has no bond before the kernel has walked the path: the questions of the kernel come anew
//! then.

use lockstep_driver::client::Tenure;

use crate::memory::delivery::RequestDelivery;

/// See the head of this file.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TenureBond {
    /// The request runs in any tenure.
    Free,
    /// The request looks at the attributes of an inode.
    Look(RequestDelivery),
    /// The request changes something.
    Change(RequestDelivery),
}

impl TenureBond {
    /// The delivery of a change.
    pub const fn change(self) -> Option<RequestDelivery> {
        match self {
            Self::Change(delivery) => Some(delivery),
            Self::Free | Self::Look(_) => None,
        }
    }

    /// Whether the request is bound to its tenure.
    pub const fn is_bound(self) -> bool {
        !matches!(self, Self::Free)
    }

    /// Whether the request may run in a tenure. This process has read it in the tenure `read_in`. A request that an earlier
    /// process had read was asked in the first tenure of this one, or before.
    pub fn lets_run_in(self, tenure: Tenure, read_in: Tenure) -> bool {
        let asked = match self {
            Self::Free => return true,
            Self::Look(delivery) | Self::Change(delivery) if delivery.was_read_before => {
                Tenure::FIRST
            }
            Self::Look(_) | Self::Change(_) => read_in,
        };
        asked.may_run_in(tenure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivery(was_read_before: bool) -> RequestDelivery {
        RequestDelivery {
            unique: 2,
            is_resent: was_read_before,
            was_read_before,
        }
    }

    #[test]
    fn a_bound_request_runs_in_its_own_tenure_only() {
        let later = Tenure::FIRST.next();
        for bond in [TenureBond::Look, TenureBond::Change] {
            let (new, again) = (bond(delivery(false)), bond(delivery(true)));
            assert!(new.lets_run_in(later, later) && !new.lets_run_in(later.next(), later));
            assert!(again.lets_run_in(Tenure::FIRST, Tenure::FIRST));
            assert!(!again.lets_run_in(later, later), "it was asked before");
        }
        assert!(TenureBond::Free.lets_run_in(later, Tenure::FIRST));
    }
}
