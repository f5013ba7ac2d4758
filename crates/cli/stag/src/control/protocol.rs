//! The protocol of the control socket: one JSON object a line each way.
//!
//! A request is `{"v":1,"do":"status",…}` with the verb's arguments. While the verb runs, any
//! number of `{"v":1,"progress":…}` come back, and then one `{"v":1,"ok":…}` or
//! `{"v":1,"error":{"kind":…,"message":…}}`. Requests of one connection are answered in order.
//! Lines have a bounded length, and nothing is read beyond a line's newline. After the verb `apply`
//! follow `body` bytes, the configuration itself.

use std::io::{self, BufRead, Write};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use zeroize::Zeroizing;

/// The version of the protocol. A daemon refuses others'.
pub const VERSION: u32 = 1;
/// The longest line of a request, bytes. A configuration follows its line as a body of
/// [`Request::body`] bytes.
pub const MAX_REQUEST: u64 = 64 << 10;
/// The longest line of an answer, bytes: the status of tens of thousands of units and sessions.
pub const MAX_ANSWER: u64 = 256 << 20;
/// The longest body, bytes.
pub const MAX_BODY: u64 = crate::config::MAX_FILE;

/// A client's request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Request {
    /// [`VERSION`] of the client.
    #[serde(default = "version")]
    pub v: u32,
    #[serde(rename = "do")]
    pub verb: String,
    /// Bytes that follow the line: for `apply`, the configuration as it is.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub body: u64,
    /// The verb's arguments.
    #[serde(flatten)]
    pub arguments: serde_json::Map<String, Value>,
}

/// The version of a request without one: this one, since people type requests too.
fn version() -> u32 {
    VERSION
}

fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

impl Request {
    /// A request of this version.
    pub fn new(verb: &str, arguments: serde_json::Map<String, Value>) -> Self {
        Self { v: VERSION, verb: verb.to_owned(), body: 0, arguments }
    }

    /// The arguments as the verb's own type.
    ///
    /// # Errors
    /// An argument is missing or has the wrong type.
    pub fn arguments<T: serde::de::DeserializeOwned>(&self) -> Result<T, Fault> {
        serde_json::from_value(Value::Object(self.arguments.clone()))
            .map_err(|error| Fault::new(Kind::Request, format!("{}: {error}", self.verb)))
    }
}

/// The kind of a failure; it determines a command's exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The daemon does not understand the request.
    Request,
    /// A configuration has mistakes.
    Config,
    /// The request cannot be executed, and nothing has changed.
    Refused,
    /// What the request names is not there.
    Missing,
    /// Another change came before, so that this one is not what was planned.
    Conflict,
    /// The request was begun and failed.
    Failed,
}

/// The failure of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Fault {
    pub kind: Kind,
    /// Text for the user.
    pub message: String,
    /// The same without the lines of a file, one line for each mistake.
    #[serde(skip)]
    pub plain: Option<String>,
}

impl Fault {
    /// A failure with a text for the user.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), plain: None }
    }

    /// The error, without the lines of a file.
    pub fn words(&self) -> &str {
        self.plain.as_deref().unwrap_or(&self.message)
    }
}

/// One line of an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// The verb is running.
    Progress(Value),
    Ok(Value),
    /// The verb has failed.
    Error(Fault),
}

#[derive(Serialize, Deserialize)]
struct Versioned {
    v: u32,
    #[serde(flatten)]
    answer: Answer,
}

pub fn write_line<T: Serialize>(to: &mut impl Write, value: &T) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    to.write_all(&line)
}

/// Writes one line of an answer.
pub fn write_answer(to: &mut impl Write, answer: Answer) -> io::Result<()> {
    write_line(to, &Versioned { v: VERSION, answer })
}

/// Reads one line of an answer; `None` at the end of the stream.
///
/// # Errors
/// The socket fails, or the line is not an answer.
pub fn read_answer(from: &mut impl BufRead) -> io::Result<Option<Answer>> {
    let Some(line) = read_line(from, MAX_ANSWER)? else { return Ok(None) };
    // JSON that ends too early is no end of the stream.
    let versioned = serde_json::from_slice::<Versioned>(&line);
    let versioned = versioned.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    if versioned.v != VERSION {
        let what =
            format!("the daemon speaks version {} of the control protocol, this is {VERSION}", versioned.v);
        return Err(io::Error::new(io::ErrorKind::Unsupported, what));
    }
    Ok(Some(versioned.answer))
}

/// Reads one line of at most `most` bytes without its newline; `None` at the end of the stream.
///
/// # Errors
/// The socket's; `InvalidData` for a line that is too long; `UnexpectedEof` for one that the end of
/// the stream cuts off.
pub fn read_line(from: &mut impl BufRead, most: u64) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    let read = io::Read::take(&mut *from, most).read_until(b'\n', &mut line)?;
    match line.pop() {
        None => Ok(None),
        Some(b'\n') => Ok(Some(line)),
        Some(_) if (read as u64) < most => Err(io::ErrorKind::UnexpectedEof.into()),
        Some(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "a line without an end")),
    }
}

/// Reads requests and their bodies as the daemon does, until the end or an unreadable line. Returns
/// the numbers of requests read and of lines refused. For tests of other crates.
pub fn read_requests(mut from: &[u8]) -> (usize, usize) {
    let (mut read, mut refused) = (0, 0);
    while let Ok(Some(line)) = read_line(&mut from, MAX_REQUEST) {
        match serde_json::from_slice::<Request>(&line) {
            Ok(request) if request.v == VERSION => {
                let said = serde_json::to_vec(&request).ok();
                let again = said.and_then(|said| serde_json::from_slice::<Request>(&said).ok());
                assert!(again.is_some_and(|again| again.verb == request.verb), "what is read can be sent on");
                if read_body(&mut from, request.body).is_err() {
                    return (read, refused + 1);
                }
                read += 1;
            }
            Ok(_) | Err(_) => refused += 1,
        }
    }
    (read, refused)
}

/// Reads the body that `request` announces. Its memory is allocated once and zeroed on drop, since
/// it may hold secrets.
///
/// # Errors
/// The socket fails; `InvalidData` for a body that is too long or not UTF-8.
pub fn read_body(from: &mut impl io::Read, bytes: u64) -> io::Result<Zeroizing<String>> {
    let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    if bytes > MAX_BODY {
        return Err(invalid(format!(
            "{bytes} bytes are more than the {MAX_BODY} that a configuration may have"
        )));
    }
    let mut body = Zeroizing::new(vec![0; usize::try_from(bytes).unwrap_or(0)]);
    from.read_exact(&mut body)?;
    let text = String::from_utf8(std::mem::take(&mut *body));
    text.map(Zeroizing::new).map_err(|error| {
        drop(Zeroizing::new(error.into_bytes()));
        invalid("a configuration is UTF-8 text".into())
    })
}

/// Reads a socket through a buffer that is zeroed on drop, since configurations may hold secrets.
pub struct Reader<R> {
    from: R,
    buffer: Zeroizing<Vec<u8>>,
    read: std::ops::Range<usize>,
}

impl<R: io::Read> Reader<R> {
    pub fn new(from: R) -> Self {
        Self { from, buffer: Zeroizing::new(vec![0; 8192]), read: 0..0 }
    }
}

impl<R: io::Read> io::Read for Reader<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if self.read.is_empty() && bytes.len() >= self.buffer.len() {
            return self.from.read(bytes);
        }
        let read = io::Read::read(&mut self.fill_buf()?, bytes)?;
        self.consume(read);
        Ok(read)
    }
}

impl<R: io::Read> BufRead for Reader<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.read.is_empty() {
            self.read = 0..self.from.read(&mut self.buffer)?;
        }
        Ok(&self.buffer[self.read.clone()])
    }

    fn consume(&mut self, bytes: usize) {
        self.read.start = (self.read.start + bytes).min(self.read.end);
    }
}

/// Receives a verb's progress messages.
pub type Progress<'a> = &'a mut dyn FnMut(Value);

/// The answer of a verb as JSON.
///
/// # Errors
/// Never, for the answers of verbs.
pub fn json(answer: &impl serde::Serialize) -> Result<Value, Fault> {
    serde_json::to_value(answer).map_err(|error| Fault::new(Kind::Failed, error.to_string()))
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
        let cut = read_line(&mut &b"{\"do\""[..], 100).unwrap_err();
        assert_eq!(cut.kind(), io::ErrorKind::UnexpectedEof);
        let mut endless = io::BufReader::new(io::repeat(b'x'));
        assert_eq!(read_line(&mut endless, 1 << 20).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_body_follows_its_line_whatever_bytes_it_has() {
        let request = Request { body: 20_000, ..Request::new("apply", serde_json::Map::new()) };
        let mut bytes = Vec::new();
        write_line(&mut bytes, &request).unwrap();
        bytes.extend_from_slice("a\nbc".repeat(5000).as_bytes());
        write_line(&mut bytes, &Request::new("status", serde_json::Map::new())).unwrap();
        let mut from = Reader::new(bytes.as_slice());
        let line = read_line(&mut from, MAX_REQUEST).unwrap().unwrap();
        let request: Request = serde_json::from_slice(&line).unwrap();
        assert_eq!(*read_body(&mut from, request.body).unwrap(), "a\nbc".repeat(5000));
        let line = read_line(&mut from, MAX_REQUEST).unwrap().unwrap();
        assert_eq!(serde_json::from_slice::<Request>(&line).unwrap().verb, "status");
        assert!(read_body(&mut from, MAX_BODY + 1).is_err());
        assert!(read_body(&mut &b"\xff\xff"[..], 2).is_err());
        assert!(read_body(&mut &b"short"[..], 6).is_err());
    }

    #[test]
    fn an_answer_that_is_cut_off_is_not_taken_for_one_that_is_nonsense() {
        let kind = |text: &str| read_answer(&mut text.as_bytes()).unwrap_err().kind();
        assert_eq!(kind("{\"v\":1,\"ok\""), io::ErrorKind::UnexpectedEof);
        assert_eq!(kind("{\"v\":1,\"ok\"\n"), io::ErrorKind::InvalidData);
        assert_eq!(kind("nonsense\n"), io::ErrorKind::InvalidData);
    }

    #[test]
    fn another_version_is_told() {
        let error = read_answer(&mut &b"{\"v\":9,\"ok\":null}\n"[..]).unwrap_err().to_string();
        assert!(error.contains("version 9"), "{error}");
    }
}
