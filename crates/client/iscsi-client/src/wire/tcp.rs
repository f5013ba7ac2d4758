//! Single PDUs over TCP. Later bytes stay here for the next user of the stream.

use std::net::SocketAddr;
use std::time::Duration;

use iscsi::frame::emit_pdu;
use iscsi::keys::Params;
use iscsi::pdu::Bhs;
use iscsi::stream::{Assembler, Limits};
use runtime::{Gather, PathOptions, TcpStream};

use crate::error::Error;

/// Bytes per receive.
const RECEIVE: usize = 64 << 10;

/// A stream of PDUs.
pub(crate) struct Tcp {
    pub stream: TcpStream,
    received: Assembler,
}

impl Tcp {
    /// Connects; returns the error as text.
    pub async fn connect(address: SocketAddr, limit: Duration, path: &PathOptions) -> Result<Tcp, String> {
        let stream = TcpStream::connect_over(address, limit, path).await.map_err(|e| e.to_string())?;
        Ok(Tcp { stream, received: Assembler::new(Limits::LOGIN) })
    }

    pub fn begin_full_feature(&mut self, params: &Params) {
        self.received.set_limits(Limits::of_initiator(params));
    }

    /// The connection, and the bytes received after the last PDU taken.
    pub fn into_parts(mut self) -> (TcpStream, Vec<u8>) {
        let rest = self.received.take_rest();
        (self.stream, rest)
    }

    pub async fn send(&mut self, mut header: Bhs, data: &[u8]) -> Result<(), Error> {
        let mut bytes = Vec::new();
        emit_pdu(&mut header, &[], data, self.received.limits().digests, &mut bytes);
        let mut gather = Gather::new();
        gather.push_copy(&bytes);
        self.stream.send(gather).await.0.map_err(|e| Error::lost(&e))
    }

    pub async fn receive(&mut self) -> Result<(Bhs, Vec<u8>), Error> {
        loop {
            if let Some(pdu) = self.received.next_pdu().map_err(|e| Error::Lost(e.to_string()))? {
                return Ok((pdu.bhs, pdu.data));
            }
            let bytes = self.stream.recv_some(RECEIVE).await.map_err(|e| Error::lost(&e))?;
            if bytes.is_empty() {
                return Err(Error::Lost("the target closed the connection".to_owned()));
            }
            self.received.push(&bytes);
        }
    }
}
