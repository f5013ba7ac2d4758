//! Single PDUs over TCP. Later bytes stay here for the next user of the stream.

use std::net::SocketAddr;
use std::time::Duration;

use iscsi::frame::{Cut, Cutter, Digests, emit_pdu};
use iscsi::keys::{Digest, Params};
use iscsi::pdu::Bhs;
use iscsi::text::LOGIN_SEGMENT_LEN;
use runtime::{Gather, PathOptions, TcpStream};

use crate::error::Error;

/// Bytes per receive.
const RECEIVE: usize = 64 << 10;

/// A stream of PDUs.
pub(crate) struct Tcp {
    pub stream: TcpStream,
    /// Received bytes after the last PDU taken.
    pub received: Vec<u8>,
    cutter: Cutter,
}

impl Tcp {
    /// Connects; returns the error as text.
    pub async fn connect(address: SocketAddr, limit: Duration, path: &PathOptions) -> Result<Tcp, String> {
        let stream = TcpStream::connect_over(address, limit, path).await.map_err(|e| e.to_string())?;
        let cutter = Cutter {
            header_digest: false,
            data_digest: false,
            max_data_segment: LOGIN_SEGMENT_LEN as u32,
            max_ahs: 0,
        };
        Ok(Tcp { stream, received: Vec::new(), cutter })
    }

    /// The splitting of PDUs after a login.
    pub fn cutter(params: &Params) -> Cutter {
        Cutter {
            header_digest: params.header_digest == Digest::Crc32c,
            data_digest: params.data_digest == Digest::Crc32c,
            max_data_segment: params.max_recv_data_segment_length,
            // A target's PDUs have no AHS.
            max_ahs: 0,
        }
    }

    pub fn begin_full_feature(&mut self, params: &Params) {
        self.cutter = Self::cutter(params);
    }

    pub async fn send(&mut self, mut header: Bhs, data: &[u8]) -> Result<(), Error> {
        let digests = Digests { header: self.cutter.header_digest, data: self.cutter.data_digest };
        let mut bytes = Vec::new();
        emit_pdu(&mut header, &[], data, digests, &mut bytes);
        let mut gather = Gather::new();
        gather.push_copy(&bytes);
        self.stream.send(gather).await.0.map_err(|e| Error::lost(&e))
    }

    pub async fn receive(&mut self) -> Result<(Bhs, Vec<u8>), Error> {
        loop {
            match self.cutter.cut(&self.received).map_err(|e| Error::Lost(e.to_string()))? {
                Cut::Pdu { bhs, data, consumed, .. } => {
                    let pdu = (*bhs, self.received[data].to_vec());
                    self.received.drain(..consumed);
                    return Ok(pdu);
                }
                Cut::NeedMore { .. } | Cut::Partial { .. } => {}
            }
            let bytes = self.stream.recv_some(RECEIVE).await.map_err(|e| Error::lost(&e))?;
            if bytes.is_empty() {
                return Err(Error::Lost("the target closed the connection".to_owned()));
            }
            self.received.extend_from_slice(&bytes);
        }
    }
}
