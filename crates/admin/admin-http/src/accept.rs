//! Choice of the format by a client's `Accept` field (RFC 9110 §12.5.1).

use axum::http::{HeaderMap, header};

use crate::exposition::Format;

/// The format that `Accept` prefers; Prometheus's text for clients without a preference.
pub fn format(headers: &HeaderMap) -> Format {
    let ranges = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut weights = [0, 0];
    for range in ranges.flat_map(|value| value.split(',')) {
        let mut parts = range.split(';').map(str::trim);
        let at = match parts.next().unwrap_or_default().to_ascii_lowercase().as_str() {
            "text/plain" => 0,
            "application/openmetrics-text" => 1,
            _ => continue,
        };
        let weight = parts.find_map(|part| part.strip_prefix("q=")).map_or(1000, thousandths);
        weights[at] = weight.max(weights[at]);
    }
    if weights[1] > weights[0] { Format::OpenMetrics } else { Format::Prometheus }
}

/// A weight, times 1000. Invalid weights count as 0.
fn thousandths(weight: &str) -> u32 {
    match weight.parse::<f32>() {
        Ok(weight) if (0.0..=1.0).contains(&weight) => (weight * 1000.0) as u32,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn of(accept: &str) -> Format {
        let value = HeaderValue::from_str(accept).expect("a header");
        format(&HeaderMap::from_iter([(header::ACCEPT, value)]))
    }

    #[test]
    fn a_client_gets_the_format_that_it_prefers() {
        let prometheus = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                          text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert_eq!(of(prometheus), Format::OpenMetrics);
        assert_eq!(of("application/openmetrics-text; q=0.2, text/plain; q=0.3"), Format::Prometheus);
        assert_eq!(of("APPLICATION/OpenMetrics-Text"), Format::OpenMetrics);
        for other in
            ["", "*/*", "text/html", "application/openmetrics-text;q=0", "application/openmetrics-text;q=x"]
        {
            assert_eq!(of(other), Format::Prometheus, "{other}");
        }
        assert_eq!(format(&HeaderMap::new()), Format::Prometheus);
    }
}
