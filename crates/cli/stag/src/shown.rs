//! Formats text and times.

/// Text without its padding; unprintable characters are escaped.
pub fn text(value: &[u8]) -> String {
    let end = value.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let text = String::from_utf8_lossy(&value[..end]);
    text.trim_end_matches(' ')
        .chars()
        .flat_map(|c| -> Box<dyn Iterator<Item = char>> {
            if c.is_control() { Box::new(c.escape_default()) } else { Box::new(std::iter::once(c)) }
        })
        .collect()
}

/// A duration in words.
pub fn duration(seconds: f64) -> String {
    let whole = seconds as u64;
    match (whole / 86400, whole / 3600 % 24, whole / 60 % 60, whole % 60) {
        (0, 0, 0, _) => format!("{seconds:.1} s"),
        (0, 0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (0, hours, minutes, _) => format!("{hours} h {minutes} min"),
        (days, hours, ..) => format!("{days} d {hours} h"),
    }
}

/// Milliseconds since 1970 as a date and a time, UTC.
pub fn ms(ms: u64) -> String {
    let (date, part) = (time(i64::try_from(ms / 1000).unwrap_or(0)), ms % 1000);
    format!("{date}.{part:03}")
}

/// Seconds since 1970 as a date and a time, UTC.
pub fn time(s: i64) -> String {
    let (days, second) = (s.div_euclid(86400), s.rem_euclid(86400));
    // Days of the Gregorian calendar, counted from 1 March of year 0, so that a leap day ends its
    // year.
    let days = days.saturating_add(719_468);
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let date = of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = era * 400 + year + next;
    format!("{year:04}-{month:02}-{date:02} {:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_dates() {
        assert_eq!(time(0), "1970-01-01 00:00:00");
        assert_eq!(time(951_782_400), "2000-02-29 00:00:00");
        assert_eq!(time(-1), "1969-12-31 23:59:59");
        assert_eq!(ms(1_767_225_599_999), "2025-12-31 23:59:59.999");
    }
}
