//! Why nothing arrived over a connection.

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Lost {
    NotConnected(String),
    /// The server closed the connection.
    Closed,
    /// The server sends nothing.
    Silent,
    /// The server does not receive.
    NotReading,
    /// The received data is malformed.
    Garbled(String),
}

impl Lost {
    /// The server's behavior, as the second half of a sentence.
    pub fn seen(&self) -> String {
        match self {
            Lost::NotConnected(why) => format!("no connection could be made: {why}"),
            Lost::Closed => "the target closed the connection".to_owned(),
            Lost::Silent => "no answer came in time".to_owned(),
            Lost::NotReading => "the target did not read what was sent".to_owned(),
            Lost::Garbled(what) => format!("the target sent {what}"),
        }
    }
}
