//! The proof that both copies are the same, and the comparison of the disks in the background, in the text of `lockstep status`.

use lockstep_driver::report::{DatastoreStatus, ScrubStatus};

use crate::cli::terminal::count;

/// The rows for them.
pub(super) fn rows(store: &DatastoreStatus) -> Vec<(&'static str, String)> {
    let copy = &store.sync.copy;
    let proved = copy.proved.as_ref().map(|proved| {
        let text = format!(
            "identical through operation {}, proved at {}",
            proved.through, proved.time
        );
        ("proved", text)
    });
    let scrub = copy
        .scrub
        .as_ref()
        .map(|scrub| ("scrub", scrub_text(scrub)));
    proved.into_iter().chain(scrub).collect()
}

fn scrub_text(scrub: &ScrubStatus) -> String {
    let present = match (&scrub.began, scrub.inodes_done) {
        (Some(began), Some(done)) => {
            format!(
                "under way since {began}, {} files and names so far",
                count(done)
            )
        }
        _ => "waits for its time".to_owned(),
    };
    let Some(ended) = &scrub.last_ended else {
        return present;
    };
    let found = match scrub.differences_total {
        0 => "found nothing".to_owned(),
        found => format!(
            "found {} differences and healed {}",
            count(found),
            count(scrub.healed_total)
        ),
    };
    format!("{present}; the last one ended at {ended} and {found}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scrub_says_what_it_does_and_what_the_last_one_has_found() {
        let mut scrub = ScrubStatus::default();
        assert_eq!(scrub_text(&scrub), "waits for its time");
        scrub.began = Some("2026-01-02T03:04:05Z".to_owned());
        scrub.inodes_done = Some(1200);
        let under_way = "under way since 2026-01-02T03:04:05Z, 1,200 files and names so far";
        assert_eq!(scrub_text(&scrub), under_way);
        scrub.last_ended = Some("2026-01-01T03:04:05Z".to_owned());
        scrub.differences_total = 3;
        scrub.healed_total = 2;
        let last =
            "the last one ended at 2026-01-01T03:04:05Z and found 3 differences and healed 2";
        assert_eq!(scrub_text(&scrub), format!("{under_way}; {last}"));
    }
}
