//! Tells the observers of a datastore that the lease of this node is over: the other node may take over soon, so the kernel has
//! to drop its caches now (rule R7).
//!
//! The lease ends before the other node may take over, by [`FailoverTimes::takeover`] less [`FailoverTimes::lease`]. The drop has
//! this time. From the end of the lease on nothing is let in, so the kernel learns of nothing that a drop would miss.
//!
//! Invariant: the thread waits for nothing but the end of the lease, neither for a call of the witness nor for a disk.
//!
//! [`FailoverTimes::takeover`]: crate::config::FailoverTimes::takeover
//! [`FailoverTimes::lease`]: crate::config::FailoverTimes::lease

use super::keeper::RoleKeeper;

impl RoleKeeper {
    /// Watches the lease until the datastore is stopped. Returns at once for a datastore without a witness.
    pub fn run_lease_timer(&self) {
        let engine = &self.engine;
        if !engine.config.current().has_witness() {
            return;
        }
        let host = &*engine.host;
        // The end of the last lease that was over, as far as the observers know.
        let mut told = None;
        while !engine.is_stopping() {
            let expired_lease = engine.gate.expired_lease(host);
            // A lease that begins later has another end.
            if expired_lease.is_some() && expired_lease != told {
                told = expired_lease;
                self.role
                    .tell_observers(|observer| observer.lease_expired());
            }
            engine.gate.wait_for_lease_end(host);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::{Sender, channel};
    use std::thread;
    use std::time::Duration;

    use lockstep_roles::{Claim, Member, Witness, WitnessError, WitnessRecord};
    use lockstep_types::Ino;

    use crate::client::{RoleObserver, Standing};
    use crate::host::Gate;
    use crate::open::tests::Place;
    use crate::role::witness_loop::WitnessLoop;

    /// A busy machine may take long for anything.
    const LIMIT: Duration = Duration::from_secs(60);

    struct Listener(Sender<()>);

    impl RoleObserver for Listener {
        fn preparing(&self) {}

        fn retiring(&self) {}

        fn changed(&self, _standing: Standing) {}

        fn named(&self, _parent: Ino, _ino: Ino) {}

        fn names_are_new(&self) {}

        fn lease_expired(&self) {
            let _heard = self.0.send(());
        }
    }

    /// A witness that answers no call before a gate opens.
    struct SlowWitness {
        asked: Sender<()>,
        gate: Arc<dyn Gate>,
    }

    impl Witness for SlowWitness {
        fn read(&self, _limit: Duration) -> Result<Option<WitnessRecord>, WitnessError> {
            let _asked = self.asked.send(());
            self.gate.wait();
            Ok(None)
        }

        fn claim(
            &self,
            _claim: &Claim,
            limit: Duration,
        ) -> Result<Option<WitnessRecord>, WitnessError> {
            self.read(limit)
        }
    }

    #[test]
    fn the_end_of_a_lease_is_told_while_the_witness_does_not_answer() {
        let place = Place::in_sync().with_witness(Duration::from_secs(1));
        let datastore = place.start().unwrap();
        let keeper = datastore.role();
        let host = &*keeper.engine.host;
        let (told, hears) = channel();
        keeper.current().observe(Arc::new(Listener(told)));
        let (asked, is_asked) = channel();
        let gate = host.gate();
        let witness = Arc::new(SlowWitness {
            asked,
            gate: Arc::clone(&gate),
        });
        thread::scope(|scope| {
            let questions = WitnessLoop::new(keeper.current(), witness, Member::First).unwrap();
            scope.spawn(|| questions.run());
            scope.spawn(|| keeper.run_lease_timer());
            is_asked.recv_timeout(LIMIT).unwrap();
            keeper.current().gate().need_lease(host, true);
            let end = host.now() + Duration::from_millis(50);
            keeper.current().gate().extend_lease(host, end);
            keeper.current().gate().set(host, Standing::Serving);
            let lease_expired = hears.recv_timeout(LIMIT);
            let is_over = host.now() >= end;
            gate.open();
            datastore.stop();
            assert_eq!((lease_expired, is_over), (Ok(()), true));
        });
    }

    /// The kernel has time to drop its caches, and neither a late answer nor the way to serve alone ends a lease.
    #[test]
    fn a_lease_ends_well_before_a_takeover_and_long_after_a_ping() {
        for millis in [300, 1500, 60_000] {
            let place = Place::in_sync().with_witness(Duration::from_millis(millis));
            let datastore = place.start().unwrap();
            let times = datastore.config().current().failover().unwrap();
            assert!(times.lease() + times.takeover() / 5 <= times.takeover());
            assert!(times.lease() >= times.beat() * 4);
            assert!(times.lease() > times.alone() + times.beat());
            datastore.stop();
        }
    }
}
