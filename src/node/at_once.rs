//! One step for each of several things at once, each on a thread of its own: a step that waits holds no other one up.

use std::thread::{Builder, ScopedJoinHandle, scope};

/// Calls `step` for all items at once. Returns the outcomes, in the order of the items. A panic of a step goes on in the caller.
pub(super) fn at_once<T: Sync, R: Send>(items: &[T], step: impl Fn(&T) -> R + Sync) -> Vec<R> {
    if let [only] = items {
        return vec![step(only)];
    }
    let step = &step;
    scope(|scope| {
        let begin = |item| {
            let named = Builder::new().name("step".to_owned());
            let started = named.spawn_scoped(scope, move || step(item));
            // The system has given no thread.
            started.map_err(|_| step(item))
        };
        let end = |under_way: Result<ScopedJoinHandle<'_, R>, R>| match under_way {
            Ok(thread) => thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(outcome) => outcome,
        };
        let all: Vec<_> = items.iter().map(begin).collect();
        all.into_iter().map(end).collect()
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{RecvTimeoutError, channel};
    use std::time::Duration;

    use parking_lot::Mutex;

    use super::*;

    /// Longer than any step needs to begin.
    const LIMIT: Duration = Duration::from_secs(20);

    #[test]
    fn no_step_waits_for_the_end_of_another_one() {
        let (begun, all_begun) = channel::<()>();
        let items = [Mutex::new(Some(begun.clone())), Mutex::new(Some(begun))];
        let all_begun = Mutex::new(all_begun);
        // Each step gives its sender up, and waits until no other step is left to begin.
        let together = at_once(&items, |item| {
            drop(item.lock().take());
            let waited = all_begun.lock().recv_timeout(LIMIT);
            waited == Err(RecvTimeoutError::Disconnected)
        });
        assert_eq!(together, [true, true]);
    }

    #[test]
    fn the_outcomes_have_the_order_of_the_items() {
        assert_eq!(at_once(&[1, 2, 3], |number| number * 2), [2, 4, 6]);
        assert_eq!(at_once(&[1], |number| number * 2), [2]);
        assert!(at_once(&[] as &[i32], |number| number * 2).is_empty());
    }
}
