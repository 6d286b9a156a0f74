//! Output of the commands, and the format of values for people.

mod live_lines;
mod path_text;

use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use serde::Serialize;

pub(super) use live_lines::LiveLines;
pub(super) use path_text::{path_bytes, printable};

/// Prints to standard output. A closed pipe is no error.
pub(super) fn say(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        outcome => outcome,
    }
}

/// Prints a line to standard error. A closed standard error is no error.
pub(super) fn warn(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Prints a value as JSON to standard output.
pub(super) fn say_json(value: &impl Serialize) -> io::Result<()> {
    say(&format!("{}\n", serde_json::to_string_pretty(value)?))
}

/// Formats a size in binary units with three digits, such as `12.3 GiB`.
pub(super) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut size = to_float(bytes) / 1024.0;
    let mut units = UNITS.iter();
    let mut unit = units.next().unwrap_or(&"");
    while size >= 1023.5 {
        let Some(larger) = units.next() else { break };
        size /= 1024.0;
        unit = larger;
    }
    let digits = if size < 9.995 {
        2
    } else {
        usize::from(size < 99.95)
    };
    format!("{size:.digits$} {unit}")
}

/// Formats a number with its digits in groups of three, such as `12,345`.
pub(super) fn count(number: u64) -> String {
    let digits = number.to_string();
    let (head, groups) = digits.as_bytes().as_rchunks::<3>();
    let groups = groups.iter().map(|group| String::from_utf8_lossy(group));
    std::iter::once(String::from_utf8_lossy(head))
        .filter(|head| !head.is_empty())
        .chain(groups)
        .collect::<Vec<_>>()
        .join(",")
}

/// Formats a duration in a suitable unit, such as `250 ms`, `3.2 s` or `2 h 5 min`.
pub(super) fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0 => format!("{} ms", time.as_millis()),
        1..60 => format!("{:.1} s", time.as_secs_f64()),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// Converts a number, exactly enough for three digits.
#[allow(clippy::cast_precision_loss)]
pub(super) fn to_float(number: u64) -> f64 {
    number as f64
}

/// Returns the lines of the keys with unknown values, counted from one: `line 33`, or `lines 32 and 33`.
pub(super) fn open_lines(text: &str) -> String {
    let lines = text.lines().zip(1..);
    let open: Vec<String> = lines
        .filter(|(line, _)| line.contains("FILL IN"))
        .map(|(_, number): (_, usize)| number.to_string())
        .collect();
    let plural = if open.len() == 1 { "" } else { "s" };
    format!("line{plural} {}", open.join(" and "))
}

/// Quotes a path for the shell.
pub(super) fn shell(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+,:@%".contains(c);
    if text.chars().all(plain) {
        text
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_quoted_for_the_shell() {
        assert_eq!(shell(Path::new("/srv/data")), "/srv/data");
        assert_eq!(shell(Path::new("/srv/it's")), "'/srv/it'\\''s'");
    }

    #[test]
    fn sizes_have_three_digits() {
        let shown: Vec<_> = [0, 1023, 1024, 12_345_678, 5 << 30, u64::MAX]
            .map(bytes)
            .into();
        assert_eq!(
            shown,
            [
                "0 B",
                "1023 B",
                "1.00 KiB",
                "11.8 MiB",
                "5.00 GiB",
                "16384 PiB"
            ]
        );
    }

    #[test]
    fn counts_are_grouped() {
        let shown: Vec<_> = [0, 999, 1000, 1_234_567].map(count).into();
        assert_eq!(shown, ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn durations_use_a_suitable_unit() {
        let shown: Vec<_> = [250, 3210, 125_000, 7_500_000, 180_000_000]
            .map(|ms| duration(Duration::from_millis(ms)))
            .into();
        assert_eq!(
            shown,
            ["250 ms", "3.2 s", "2 min 5 s", "2 h 5 min", "2 d 2 h"]
        );
    }
}
