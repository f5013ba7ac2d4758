//! Problems, as RFC 9457 has them.

use admin_http::Answer;
use serde_json::json;

/// The answer to a request that is refused, in the words of the command line.
pub fn problem(status: u16, what: &str) -> Answer {
    let title = match status {
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        409 => "Conflict",
        412 => "Precondition Failed",
        413 => "Content Too Large",
        415 => "Unsupported Media Type",
        421 => "Misdirected Request",
        422 => "Unprocessable Content",
        503 => "Service Unavailable",
        _ => "Internal Server Error",
    };
    let body = json!({ "type": "about:blank", "title": title, "status": status, "detail": what });
    let fields = vec![("content-type", "application/problem+json".to_owned())];
    Answer { status, fields, body: format!("{body}\n") }
}
