//! The row about the trash.

use lockstep_driver::report::TrashStatus;

use crate::cli::terminal::{bytes, count};

pub(super) fn row(trash: &TrashStatus) -> String {
    let TrashStatus {
        entries,
        bytes: used,
        bytes_max,
        oldest,
        keeps,
    } = trash;
    let keeps = match keeps.as_str() {
        "off" => "off; what is there goes after 7d".to_owned(),
        time => format!("kept for {time}"),
    };
    let extent = match oldest {
        None => "empty".to_owned(),
        Some(oldest) => format!(
            "{} files and directories, {} of at most {}, since {oldest}",
            count(*entries),
            bytes(*used),
            bytes(*bytes_max)
        ),
    };
    format!("{extent}, {keeps}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_row_says_how_much_is_in_the_trash_and_for_how_long() {
        let mut trash = TrashStatus {
            entries: 3,
            bytes: 4096,
            bytes_max: 1 << 30,
            oldest: Some("2026-11-30T12:00:00Z".to_owned()),
            keeps: "7d".to_owned(),
        };
        assert_eq!(
            row(&trash),
            "3 files and directories, 4.00 KiB of at most 1.00 GiB, since 2026-11-30T12:00:00Z, kept for 7d"
        );
        trash.oldest = None;
        assert_eq!(row(&trash), "empty, kept for 7d");
        trash.keeps = "off".to_owned();
        assert_eq!(row(&trash), "empty, off; what is there goes after 7d");
    }
}
