//! The text of `lockstep status` for a datastore with a witness, and the row `witness` without one.

use super::*;

#[test]
fn the_witness_has_a_line_and_a_silent_one_is_a_fault() {
    let trouble = "the witness at 10.0.0.3:7400 does not answer: refused\n  cure: start it";
    for (answers, protects, trouble, line, is_fine) in [
        (
            true,
            true,
            None,
            "10.0.0.3:7400, answers, and protects: the other node takes over",
            true,
        ),
        (
            true,
            false,
            None,
            "answers, but does NOT PROTECT yet: no node takes over",
            true,
        ),
        (false, false, None, "10.0.0.3:7400, not asked yet\n", true),
        (
            false,
            true,
            Some(trouble),
            "witness     10.0.0.3:7400, does not answer: refused; cure: start it\n",
            false,
        ),
    ] {
        let store = witnessed(answers, protects, trouble);
        let text = store_text(&store);
        assert!(text.contains(line), "{line}: {text}");
        assert_eq!(is_healthy(&store), is_fine, "{text}");
        assert_eq!(
            text.contains("in sync, but the WITNESS DOES NOT ANSWER"),
            !is_fine
        );
        assert_eq!(
            text.contains("→ bring the witness back"),
            !is_fine,
            "{text}"
        );
    }
    let mut secondary = witnessed(true, true, None);
    secondary.settings.role = Role::Secondary;
    assert!(store_text(&secondary).contains("this node takes over if the primary dies"));
}

#[test]
fn without_a_witness_the_status_says_what_an_operator_has_to_do() {
    let mut mirrored = store(true, true);
    for (role, place) in [
        (Role::Primary, "on the other node\n"),
        (Role::Secondary, "on this node\n"),
    ] {
        mirrored.settings.role = role;
        let text = store_text(&mirrored);
        let line = format!(
            "witness     none: nothing is automatic; if the primary dies, run `lockstep promote alpha` {place}"
        );
        assert!(text.contains(&line), "{text}");
    }
    mirrored.sync.copy.marked_in_sync = false;
    mirrored.sync.copy.complete = false;
    assert!(store_text(&mirrored).contains("witness     none: nothing is automatic\n"));
    assert!(!store_text(&store(false, false)).contains("witness"));
}

/// The lease of a connected primary may be over: programs wait although the nodes are in sync.
#[test]
fn a_primary_whose_lease_is_over_is_undecided_also_in_sync() {
    for has_witness in [true, false] {
        let mut undecided = witnessed(true, true, None);
        if !has_witness {
            undecided.witness = None;
        }
        undecided.sync.service = ServiceStatus::Undecided;
        assert!(!is_healthy(&undecided));
        let text = store_text(&undecided);
        assert!(text.starts_with("alpha: NOT SERVED"), "{text}");
        assert!(text.contains("serves again when the other node answers"));
        assert_eq!(text.contains("or when the witness says"), has_witness);
        assert!(!text.contains("promote alpha` makes"), "{text}");
    }
}

#[test]
fn a_secondary_says_whether_it_takes_over() {
    for (answers, protects, expected, offers_promotion) in [
        (
            true,
            true,
            "takes over by itself if the primary stays",
            false,
        ),
        (
            true,
            false,
            "the witness does not let this node take over",
            true,
        ),
        (false, false, "cannot take over without the witness", true),
    ] {
        let mut lonely = witnessed(answers, protects, (!answers).then_some("away"));
        lonely.settings.role = Role::Secondary;
        lonely.sync.in_sync = false;
        lonely.sync.service = ServiceStatus::None;
        lonely.peer.as_mut().unwrap().connected = false;
        let text = store_text(&lonely);
        assert!(text.contains(expected), "{expected}: {text}");
        assert_eq!(
            text.contains(
                "`lockstep promote alpha --force-data-loss` makes this node serve; WARNING"
            ),
            offers_promotion,
            "{text}"
        );
    }
}
