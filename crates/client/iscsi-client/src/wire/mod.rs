//! A connection's transport, chosen by its URL: TCP, or iSER over a queue pair. Handles single
//! PDUs, for logins and discovery; in the full feature phase a session has two tasks for each
//! transport ([`crate::session`]).

pub(crate) mod iser;
pub(crate) mod tcp;

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

use iscsi::initiator::{Buffers, ConnectionId, Datamover, Session};
use iscsi::keys::Params;
use iscsi::pdu::Bhs;

use crate::dial::Portal;
use crate::error::Error;
use crate::options::Options;
use crate::url::Transport;

/// A connection.
pub(crate) enum Wire {
    Tcp(tcp::Tcp),
    Iser(Box<iser::Iser>),
}

impl Wire {
    /// Connects to a portal by its transport.
    pub async fn connect(portal: &Portal, options: &Options) -> Result<Wire, Error> {
        let mut reason = "no address".to_owned();
        for address in resolve(portal).await? {
            let wire = match portal.transport {
                Transport::Tcp => {
                    let tcp = tcp::Tcp::connect(address, options.connect_timeout, &options.path).await;
                    tcp.map(Wire::Tcp)
                }
                Transport::Iser => match iser::Iser::connect(address, options).await {
                    Ok(wire) => Ok(Wire::Iser(Box::new(wire))),
                    Err(iser::Refusal::Unreachable(why)) => Err(why),
                    Err(iser::Refusal::NoIser(reason)) => {
                        return Err(Error::NoIser { portal: portal.to_string(), reason });
                    }
                },
            };
            match wire {
                Ok(wire) => return Ok(wire),
                Err(why) => reason = why,
            }
        }
        Err(Error::Connect { portal: portal.to_string(), reason })
    }

    /// Sends a PDU; sets its lengths.
    pub async fn send(&mut self, header: Bhs, data: &[u8]) -> Result<(), Error> {
        match self {
            Wire::Tcp(tcp) => tcp.send(header, data).await,
            Wire::Iser(iser) => {
                iser.send(header, data);
                Ok(())
            }
        }
    }

    /// Waits for a PDU: its header and its data segment.
    pub async fn receive(&mut self) -> Result<(Bhs, Vec<u8>), Error> {
        match self {
            Wire::Tcp(tcp) => tcp.receive().await,
            Wire::Iser(iser) => iser.receive().await,
        }
    }

    /// Applies the negotiated parameters.
    pub fn begin_full_feature(&mut self, params: &Params) {
        match self {
            Wire::Tcp(tcp) => tcp.begin_full_feature(params),
            Wire::Iser(iser) => iser.begin_full_feature(params),
        }
    }

    /// Sends the PDUs of a session without data transfer.
    pub async fn flush(&mut self, session: &mut Session<Vec<u8>, ()>, on: ConnectionId) -> Result<(), Error> {
        let mut out = Pdus(Vec::new());
        session.transmit_messages(on, usize::MAX, &mut out);
        for (header, data) in out.0 {
            self.send(header, &data).await?;
        }
        Ok(())
    }
}

/// PDUs without AHS.
struct Pdus(Vec<(Bhs, Vec<u8>)>);

impl Datamover<Vec<u8>, ()> for Pdus {
    fn send_control(&mut self, header: &Bhs, _: &[u8], data: Option<Vec<u8>>) {
        self.0.push((*header, data.unwrap_or_default()));
    }

    fn send_command(&mut self, _: &Bhs, _: &[u8], _: Option<Vec<u8>>, _: Buffers<'_, Vec<u8>, ()>) {
        // Such a session has no commands.
    }
}

async fn resolve(portal: &Portal) -> Result<Vec<SocketAddr>, Error> {
    if let Ok(ip) = portal.host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, portal.port)]);
    }
    let (host, port) = (portal.host.clone(), portal.port);
    // The system's resolver blocks, so it runs on a thread of its own.
    let found = runtime::blocking(move || {
        (host.as_str(), port).to_socket_addrs().map(Iterator::collect::<Vec<_>>).map_err(|e| e.to_string())
    });
    found.await.map_err(|reason| Error::Resolve { host: portal.host.clone(), reason })
}
