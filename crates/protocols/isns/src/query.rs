//! Queries targets and their portals (DevAttrQry, RFC 4171 §5.6.5.2).

use std::net::SocketAddr;

use crate::Malformed;
use crate::attribute::{NODE_INITIATOR, NODE_TARGET, PROTOCOL_ISCSI, Tag, Writer};
use crate::header::Function;
use crate::message::Message;

/// A target registered at the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Its iSCSI name.
    pub name: String,
    /// Its alias; empty for none.
    pub alias: String,
    /// Its portals, with their portal group tags.
    pub portals: Vec<(SocketAddr, u16)>,
}

/// Maximum targets and portals that [`found`] returns.
pub const MAX_FOUND: usize = 65_536;

/// A query for all targets, their names, aliases and portals.
pub fn targets(source: &str, transaction: u16) -> Message {
    let mut out = Writer::new();
    out.text(Tag::ISCSI_NAME, source).number(Tag::ISCSI_NODE_TYPE, NODE_TARGET).tag(Tag::DELIMITER);
    out.tag(Tag::ISCSI_NAME).tag(Tag::ISCSI_ALIAS);
    out.tag(Tag::PG_ISCSI_NAME).tag(Tag::PG_PORTAL_IP_ADDRESS).tag(Tag::PG_PORTAL_TCP_UDP_PORT);
    out.tag(Tag::PORTAL_GROUP_TAG);
    Message::request(Function::DevAttrQry, transaction, &out)
}

/// Registers an initiator, for a server that answers only registered nodes.
pub fn register_initiator(source: &str, entity: &str, transaction: u16) -> Message {
    let mut out = Writer::new();
    out.text(Tag::ISCSI_NAME, source).text(Tag::ENTITY_IDENTIFIER, entity).tag(Tag::DELIMITER);
    out.text(Tag::ENTITY_IDENTIFIER, entity).number(Tag::ENTITY_PROTOCOL, PROTOCOL_ISCSI);
    out.text(Tag::ISCSI_NAME, source).number(Tag::ISCSI_NODE_TYPE, NODE_INITIATOR);
    Message::request(Function::DevAttrReg, transaction, &out)
}

/// Deregisters that initiator.
pub fn deregister_initiator(source: &str, entity: &str, transaction: u16) -> Message {
    let mut out = Writer::new();
    out.text(Tag::ISCSI_NAME, source).tag(Tag::DELIMITER).text(Tag::ENTITY_IDENTIFIER, entity);
    Message::request(Function::DevDereg, transaction, &out)
}

/// Reads the answer to [`targets`]. Each object begins with its name. Invalid attributes are
/// skipped, so that they do not hide the others.
///
/// # Errors
/// [`Malformed`] attributes, or more of them than [`MAX_FOUND`].
pub fn found(answer: &Message) -> Result<Vec<Found>, Malformed> {
    let mut all: Vec<Found> = Vec::new();
    // A map finds names: a hostile answer must not cost quadratic time.
    let mut places = std::collections::HashMap::new();
    let mut kept = 0;
    let mut at = |name: &str, all: &mut Vec<Found>| -> Result<usize, Malformed> {
        if let Some(at) = places.get(name) {
            return Ok(*at);
        }
        if all.len() >= MAX_FOUND {
            return Err(Malformed::TooLong);
        }
        places.insert(name.to_owned(), all.len());
        all.push(Found { name: name.to_owned(), alias: String::new(), portals: Vec::new() });
        Ok(all.len() - 1)
    };
    let (mut node, mut group, mut ip, mut port) = (None, None, None, None);
    for attribute in answer.operating()? {
        let text = attribute.text().filter(|text| !text.is_empty());
        match attribute.tag {
            Tag::ISCSI_NAME => node = text.map(|name| at(name, &mut all)).transpose()?,
            Tag::ISCSI_ALIAS => {
                if let (Some(node), Some(alias)) = (node, text) {
                    all[node].alias = alias.to_owned();
                }
            }
            Tag::PG_ISCSI_NAME => {
                group = text.map(|name| at(name, &mut all)).transpose()?;
                (ip, port) = (None, None);
            }
            Tag::PG_PORTAL_IP_ADDRESS => ip = attribute.address(),
            Tag::PG_PORTAL_TCP_UDP_PORT => port = attribute.tcp_port(),
            Tag::PORTAL_GROUP_TAG => {
                // A NULL tag: the target is not accessible through that portal.
                let tag = attribute.number().and_then(|tag| u16::try_from(tag).ok());
                if let (Some(group), Some(ip), Some(port), Some(tag)) = (group, ip, port, tag) {
                    kept += 1;
                    if kept > MAX_FOUND {
                        return Err(Malformed::TooLong);
                    }
                    all[group].portals.push((SocketAddr::new(ip, port), tag));
                }
            }
            _ => {}
        }
    }
    Ok(all)
}
