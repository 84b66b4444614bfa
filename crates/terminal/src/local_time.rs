//! Times in the time zone of this machine. The server writes them in UTC.

use jiff::{Timestamp, tz::TimeZone};

/// A time of the API, such as `2026-11-23T08:05:00Z`, in the time zone of this machine, as `23 Nov 09:05`. Any other
/// text stays as it is.
pub fn format_local(time: &str) -> String {
    in_zone(time, &TimeZone::system()).unwrap_or_else(|| time.to_owned())
}

/// Makes every time in a text local, but for the arguments of calls, whose lines begin with four blanks.
pub fn in_text(text: &str) -> String {
    let zone = TimeZone::system();
    let lines = text.split_inclusive('\n');
    lines
        .map(|line| {
            if line.starts_with("    ") {
                line.to_owned()
            } else {
                in_line(line, &zone)
            }
        })
        .collect()
}

fn in_line(line: &str, zone: &TimeZone) -> String {
    let words = line.split_inclusive(|c: char| c.is_whitespace());
    words
        .map(|word| {
            let end = word.trim_end_matches(|c: char| c.is_whitespace() || ",.;:)".contains(c));
            let start = end.trim_start_matches('(');
            match in_zone(start, zone) {
                Some(local) => word.replacen(start, &local, 1),
                None => word.to_owned(),
            }
        })
        .collect()
}

/// A time of the API in a time zone.
pub fn in_zone(time: &str, zone: &TimeZone) -> Option<String> {
    // A shorter text is a day.
    if time.len() < 17 || !time.contains('T') {
        return None;
    }
    let time: Timestamp = time.parse().ok()?;
    Some(
        time.to_zoned(zone.clone())
            .strftime("%-d %b %H:%M")
            .to_string(),
    )
}
