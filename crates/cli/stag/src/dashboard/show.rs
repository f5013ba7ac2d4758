//! Numbers as people read them.

/// Bytes, in binary units.
pub fn bytes(bytes: u64) -> String {
    scaled(bytes as f64, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"])
}

/// Bytes in a second, in decimal units.
pub fn rate(bytes: f64) -> String {
    scaled(bytes, 1000.0, &["B/s", "kB/s", "MB/s", "GB/s", "TB/s"])
}

fn scaled(value: f64, step: f64, units: &[&str]) -> String {
    let (mut value, mut at) = (value, 0);
    while value >= step && at + 1 < units.len() {
        value /= step;
        at += 1;
    }
    let digits = if value.fract() == 0.0 || value >= 100.0 { 0 } else { 1 };
    format!("{value:.digits$} {}", units[at])
}

/// A number, with its thousands apart.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A rate, which is small or large.
pub fn per_second(rate: f64) -> String {
    if rate > 0.0 && rate < 10.0 { format!("{rate:.1}") } else { count(rate.round().max(0.0) as u64) }
}

/// A latency.
pub fn latency(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.0} µs", s * 1e6),
        s if s < 1.0 => format!("{:.2} ms", s * 1e3),
        s => format!("{s:.2} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_units_and_few_digits() {
        assert_eq!(
            [bytes(0), bytes(1536), bytes(1 << 30), bytes(u64::MAX)],
            ["0 B", "1.5 KiB", "1 GiB", "16 EiB"]
        );
        assert_eq!([rate(999.0), rate(1.25e6), rate(456.7e6)], ["999 B/s", "1.2 MB/s", "457 MB/s"]);
        assert_eq!([count(7), count(1000), count(1_234_567)], ["7", "1,000", "1,234,567"]);
        assert_eq!([per_second(0.0), per_second(0.25), per_second(1234.5)], ["0", "0.2", "1,235"]);
        assert_eq!([latency(12e-6), latency(0.0123), latency(2.5)], ["12 µs", "12.30 ms", "2.50 s"]);
    }
}
