//! The transport of one connection: messages of RPC in both directions, over TCP or RDMA. It knows
//! no calls.

mod rdma;
mod tcp;

use std::net::SocketAddr;

use crate::message::{Message, Received};
use crate::options::{Options, Transport};

/// A connection.
pub(crate) enum Link {
    Tcp(tcp::Link),
    Rdma(rdma::Link),
}

impl Link {
    /// Connects, to the first of the addresses that accepts.
    pub async fn connect(addresses: &[SocketAddr], options: &Options) -> Result<Self, String> {
        let mut failed = "it has no address".to_owned();
        for address in addresses {
            let connected = match options.transport {
                Transport::Tcp => tcp::Link::connect(*address, options).await.map(Link::Tcp),
                Transport::Rdma => rdma::Link::connect(*address, options).await.map(Link::Rdma),
            };
            match connected {
                Ok(link) => return Ok(link),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    /// Sends messages. After an error the link is unusable.
    pub async fn send(&self, messages: impl Iterator<Item = Message>) -> Result<(), String> {
        match self {
            Link::Tcp(link) => link.send(messages).await,
            Link::Rdma(link) => link.send(messages).await,
        }
    }

    /// Passes each received message to `take`. Over TCP a record has at most `limit` bytes; over
    /// RDMA the memory that a call exposes bounds its reply. Returns the reason why the connection
    /// ended.
    pub async fn receive(&self, limit: usize, take: impl FnMut(Received) -> Result<(), String>) -> String {
        match self {
            Link::Tcp(link) => link.receive(limit, take).await,
            Link::Rdma(link) => link.receive(take).await,
        }
    }
}
