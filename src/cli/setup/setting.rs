//! Command-line options whose value is one word of a setting.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use lockstep_types::settings::Choice;

/// Returns a parser that accepts the words of a setting, and lists them in the help.
pub(in crate::cli) fn one_of<T: Choice + Send + Sync>() -> impl TypedValueParser<Value = T> {
    let words = T::ALL.iter().map(|(_, word)| *word);
    // The first parser rejects all other words.
    PossibleValuesParser::new(words).try_map(|word| T::find(&word).ok_or("no such word"))
}

#[cfg(test)]
mod tests {
    use clap::{Arg, Command};
    use lockstep_types::settings::Durability;

    use super::*;

    #[test]
    fn only_the_words_of_a_setting_are_accepted() {
        let parse = |word: &str| {
            let option = Arg::new("durability").value_parser(one_of::<Durability>());
            let parsed = Command::new("test")
                .arg(option)
                .try_get_matches_from(["test", word]);
            parsed.map(|found| found.get_one::<Durability>("durability").copied())
        };
        assert_eq!(parse("always").unwrap(), Some(Durability::Always));
        let refused = parse("sometimes").unwrap_err().to_string();
        assert!(refused.contains("posix, always"), "{refused}");
    }
}
