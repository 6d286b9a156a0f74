//! Exit codes, and the text of an error.

/// Exit code of the answer no.
pub(super) const NO: u8 = 1;
/// Exit code of a command that could not be carried out.
pub(super) const FAILED: u8 = 2;

/// Returns the text of an error with its causes, each cause once: many errors quote their cause themselves.
pub(super) fn chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = with_cause(&text, &cause);
        }
    }
    text
}

/// Joins an error and its cause. The cause goes before the cure.
fn with_cause(text: &str, cause: &str) -> String {
    match text.split_once(CURE) {
        Some((error, cure)) => format!("{error}: {cause}{CURE}{cure}"),
        None => format!("{text}: {cause}"),
    }
}

/// Separator of an error and its cure.
const CURE: &str = "\n  cure: ";

#[cfg(test)]
mod tests {
    use super::*;

    /// An error that quotes its cause, as most errors of Lockstep do.
    #[derive(Debug)]
    struct Outer(std::io::Error);

    impl std::fmt::Display for Outer {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "cannot open the store: {}", self.0)
        }
    }

    impl std::error::Error for Outer {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn a_cause_is_printed_once() {
        let full = || Outer(std::io::Error::other("disk full"));
        let error = anyhow::Error::new(full());
        assert_eq!(chain(&error), "cannot open the store: disk full");
        let error = error.context("nothing was made");
        assert_eq!(
            chain(&error),
            "nothing was made: cannot open the store: disk full"
        );
        let error = anyhow::Error::new(full()).context("no store\n  cure: make room");
        assert_eq!(
            chain(&error),
            "no store: cannot open the store: disk full\n  cure: make room"
        );
    }
}
