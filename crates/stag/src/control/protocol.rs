//! What goes over the control socket: one JSON object a line each way.
//!
//! A request is `{"v":1,"do":"status",…}`, where what else there is belongs to the verb. Any number of `{"v":1,"progress":…}`
//! come back while it is at work, and then one `{"v":1,"ok":…}` or `{"v":1,"error":{"kind":…,"message":…}}`. Requests of one
//! connection are answered in their order. Lines are bounded; nothing is read further than its newline.

use std::io::{self, BufRead, Write};

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The version of the protocol. A daemon refuses others'.
pub const VERSION: u32 = 1;
/// The longest line, bytes: a configuration of 16 MiB, escaped.
pub const MAX_LINE: u64 = 40 << 20;

/// What a client asks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Request {
    /// [`VERSION`] of the client.
    #[serde(default = "version")]
    pub v: u32,
    /// What to do.
    #[serde(rename = "do")]
    pub verb: String,
    /// What the verb wants to know besides.
    #[serde(flatten)]
    pub arguments: serde_json::Map<String, Value>,
}

/// A request without a version is meant for the one that is spoken here: people type them too.
fn version() -> u32 {
    VERSION
}

impl Request {
    /// A request of this version.
    pub fn new(verb: &str, arguments: serde_json::Map<String, Value>) -> Self {
        Self { v: VERSION, verb: verb.to_owned(), arguments }
    }

    /// The arguments as the verb's own type.
    ///
    /// # Errors
    /// When one is missing or of another kind.
    pub fn arguments<T: serde::de::DeserializeOwned>(&self) -> Result<T, Fault> {
        serde_json::from_value(Value::Object(self.arguments.clone()))
            .map_err(|error| Fault::new(Kind::Request, format!("{}: {error}", self.verb)))
    }
}

/// What kind of failure it was; decides a command's exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The request makes no sense to this daemon.
    Request,
    /// A configuration has mistakes.
    Config,
    /// What was asked cannot be done, and nothing has been changed.
    Refused,
    /// It was begun and failed.
    Failed,
}

/// Why a request came to nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Fault {
    /// What kind of failure.
    pub kind: Kind,
    /// What to tell the user.
    pub message: String,
}

impl Fault {
    /// A failure with what to tell the user.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }
}

/// One line of an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// It is at work.
    Progress(Value),
    /// It is done.
    Ok(Value),
    /// It came to nothing.
    Error(Fault),
}

#[derive(Serialize, Deserialize)]
struct Versioned {
    v: u32,
    #[serde(flatten)]
    answer: Answer,
}

/// Writes one line.
///
/// # Errors
/// The socket's.
pub fn write_line<T: Serialize>(to: &mut impl Write, value: &T) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    to.write_all(&line)
}

/// Writes one line of an answer.
///
/// # Errors
/// The socket's.
pub fn write_answer(to: &mut impl Write, answer: Answer) -> io::Result<()> {
    write_line(to, &Versioned { v: VERSION, answer })
}

/// Reads one line of an answer; `None` at the end of the stream.
///
/// # Errors
/// The socket's, or what came is none.
pub fn read_answer(from: &mut impl BufRead) -> io::Result<Option<Answer>> {
    let Some(line) = read_line(from)? else { return Ok(None) };
    let versioned: Versioned = serde_json::from_slice(&line)?;
    if versioned.v != VERSION {
        let what =
            format!("the daemon speaks version {} of the control protocol, this is {VERSION}", versioned.v);
        return Err(io::Error::new(io::ErrorKind::Unsupported, what));
    }
    Ok(Some(versioned.answer))
}

/// Reads one line without its newline; `None` at the end of the stream.
///
/// # Errors
/// The socket's; `InvalidData` for a line that is too long or has no end.
pub fn read_line(from: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    io::Read::take(&mut *from, MAX_LINE).read_until(b'\n', &mut line)?;
    match line.pop() {
        None => Ok(None),
        Some(b'\n') => Ok(Some(line)),
        Some(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "a line without an end")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_what_is_read() {
        let answers = [
            Answer::Progress(serde_json::json!({"step": "one"})),
            Answer::Ok(serde_json::json!([1, 2])),
            Answer::Error(Fault::new(Kind::Refused, "no\nway")),
        ];
        let mut bytes = Vec::new();
        for answer in &answers {
            write_answer(&mut bytes, answer.clone()).unwrap();
        }
        assert_eq!(bytes.iter().filter(|byte| **byte == b'\n').count(), 3, "a line each");
        let mut from = bytes.as_slice();
        for answer in answers {
            assert_eq!(read_answer(&mut from).unwrap(), Some(answer));
        }
        assert_eq!(read_answer(&mut from).unwrap(), None);
    }

    #[test]
    fn a_request_may_be_typed_by_hand() {
        let request: Request = serde_json::from_str(r#"{"do":"status","verbose":true}"#).unwrap();
        assert_eq!((request.v, request.verb.as_str()), (VERSION, "status"));
        assert_eq!(request.arguments.len(), 1);
        assert!(serde_json::from_str::<Request>(r#"{"v":1}"#).is_err());
    }

    #[test]
    fn a_line_that_never_ends_is_no_line() {
        assert!(read_line(&mut &b"{\"do\""[..]).is_err());
        let mut endless = io::BufReader::new(io::repeat(b'x'));
        assert_eq!(read_line(&mut endless).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn another_version_is_told() {
        let error = read_answer(&mut &b"{\"v\":9,\"ok\":null}\n"[..]).unwrap_err().to_string();
        assert!(error.contains("version 9"), "{error}");
    }
}
