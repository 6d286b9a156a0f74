//! A moment as an operator writes it: a time in UTC as the lists show it, a day, or a time ago.

use std::time::{SystemTime, UNIX_EPOCH};

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;

/// The text of an operator is no moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a moment is a time in UTC such as 2026-11-30T12:00:00Z, a day such as 2026-11-30, or a time ago such as 90m, 2h or 7d"
)]
pub(super) struct NotAMoment;

/// Seconds from 1970 to a moment.
///
/// # Errors
/// The text is no moment.
pub(super) fn read(text: &str) -> Result<i64, NotAMoment> {
    let moment = seconds(text).or_else(|| Some(now()? - ago(text)?));
    moment.ok_or(NotAMoment)
}

fn now() -> Option<i64> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    i64::try_from(since.as_secs()).ok()
}

/// The seconds in a number with a unit.
fn ago(text: &str) -> Option<i64> {
    let unit = text.chars().last()?;
    let number: i64 = text
        .strip_suffix(unit)?
        .parse()
        .ok()
        .filter(|it| *it >= 0)?;
    let unit = match unit {
        's' => 1,
        'm' => MINUTE,
        'h' => HOUR,
        'd' => DAY,
        _ => return None,
    };
    number.checked_mul(unit)
}

/// The seconds from 1970 to a day, or to a time of a day, in UTC.
fn seconds(text: &str) -> Option<i64> {
    let (day, time) = match text.split_once('T') {
        Some((day, time)) => (day, time.strip_suffix('Z')?),
        None => (text, "00:00:00"),
    };
    let [year, month, day] = numbers(day, '-', [4, 2, 2])?;
    let [hour, minute, second] = numbers(time, ':', [2, 2, 2])?;
    let is_time = hour < 24 && minute < 60 && second < 60;
    let is_day = (1..=12).contains(&month) && (1..=31).contains(&day);
    let secs = days(year, month, day) * DAY + hour * HOUR + minute * MINUTE + second;
    (is_time && is_day).then_some(secs)
}

/// Three numbers with so many digits.
fn numbers(text: &str, between: char, digits: [usize; 3]) -> Option<[i64; 3]> {
    let mut numbers = [0; 3];
    let mut parts = text.split(between);
    for (number, digits) in numbers.iter_mut().zip(digits) {
        let part = parts.next()?;
        let is_number = part.len() == digits && part.bytes().all(|byte| byte.is_ascii_digit());
        *number = part.parse().ok().filter(|_| is_number)?;
    }
    parts.next().is_none().then_some(numbers)
}

/// Days from 1970 to a day of the Gregorian calendar, with years that begin in March: so a leap day is the last day of its year.
const fn days(year: i64, month: i64, day: i64) -> i64 {
    const DAYS_TO_1970: i64 = 719_468;
    let year = if month <= 2 { year - 1 } else { year };
    let month = (month + 9) % 12;
    let in_year = (153 * month + 2) / 5 + day - 1;
    year * 365 + year / 4 - year / 100 + year / 400 + in_year - DAYS_TO_1970
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_read_as_the_lists_show_it() {
        assert_eq!(read("1970-01-01T00:00:00Z"), Ok(0));
        assert_eq!(read("1970-01-02"), Ok(DAY));
        assert_eq!(read("2000-02-29T12:30:01Z"), Ok(951_827_401));
        assert_eq!(read("2000-03-01"), Ok(951_868_800));
        assert_eq!(read("2026-11-30T21:46:00Z"), Ok(1_796_075_160));
        for text in [
            "",
            "x",
            "2026-13-01",
            "2026-1-1",
            "2026-11-30T25:00:00Z",
            "-1h",
            "5w",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_moment_may_be_some_time_ago() {
        let now = now().unwrap();
        for (text, secs) in [
            ("90m", 90 * MINUTE),
            ("2h", 2 * HOUR),
            ("7d", 7 * DAY),
            ("5s", 5),
        ] {
            let ago = now - read(text).unwrap();
            assert!((secs - 5..=secs).contains(&ago), "{text}: {ago}");
        }
    }
}
