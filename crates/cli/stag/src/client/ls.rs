//! `stag ls`: targets behind a portal, and their units.

use std::net::SocketAddr;

use iscsi::discovery::TargetAddress;
use iscsi_client::{Disk, Session, Unit, Url};
use isns::query::Found;
use serde::Serialize;

use super::connect::{self, ConnectError};
use super::facts::device_type_name;
use crate::args::Ls;
use crate::naming;

/// A target as `ls` shows it.
#[derive(Debug, Serialize)]
pub struct Listed {
    target: String,
    /// Its portals, as `HOST:PORT,GROUP`.
    addresses: Vec<String>,
    /// Its units, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    units: Option<Vec<ListedUnit>>,
    /// The reason why its units could not be listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// A unit as `ls` shows it.
#[derive(Debug, Serialize)]
pub struct ListedUnit {
    url: String,
    lun: u16,
    #[serde(rename = "type")]
    kind: &'static str,
    vendor: String,
    product: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    capacity_bytes: Option<u64>,
}

/// Lists; false if the units of some target could not be.
pub async fn ls(url: Option<&Url>, args: &Ls) -> Result<(String, bool), ConnectError> {
    // Each with a URL through which it is reached.
    let mut listed: Vec<(Listed, Url)> = Vec::new();
    let one = |target, addresses| Listed { target, addresses, units: None, error: None };
    let named = url.is_some_and(|url| url.target.is_some());
    match (url, &args.isns) {
        (Some(url), _) => match &url.target {
            Some(target) => listed.push((one(target.clone(), vec![]), url.clone())),
            None => {
                for record in
                    iscsi_client::discover(&connect::place(url), &connect::options(url, &args.connect)?)
                        .await?
                {
                    let addresses = record.addresses.iter().map(ToString::to_string).collect();
                    // The portal that was named can be reached; the target's own addresses may not.
                    listed.push((one(record.name, addresses), url.clone()));
                }
            }
        },
        (None, Some(server)) => {
            for found in by_isns(server, args).await? {
                let address = |(at, group): &(SocketAddr, u16)| TargetAddress::new(*at, *group);
                let addresses: Vec<TargetAddress> = found.portals.iter().map(address).collect();
                let Some(first) = addresses.first() else { continue };
                let url = Url::portal(first.host.clone(), first.port);
                listed.push((one(found.name, addresses.iter().map(ToString::to_string).collect()), url));
            }
        }
        (None, None) => {}
    }
    if args.units || named {
        for (target, through) in &mut listed {
            let url = Url { target: Some(target.target.clone()), lun: None, ..through.clone() };
            match units(&url, args).await {
                Ok(units) => target.units = Some(units),
                Err(error) if named => return Err(error),
                Err(error) => target.error = Some(error.to_string()),
            }
        }
    }
    let whole = listed.iter().all(|(target, _)| target.error.is_none());
    let text = if args.json {
        let listed: Vec<&Listed> = listed.iter().map(|(target, _)| target).collect();
        serde_json::to_string_pretty(&listed).unwrap_or_default() + "\n"
    } else {
        listed.iter().map(|(target, through)| show(target, through)).collect()
    };
    Ok((text, whole))
}

/// Asks an iSNS server. It blocks, so it has a thread of its own.
async fn by_isns(server: &str, args: &Ls) -> Result<Vec<Found>, ConnectError> {
    let (place, initiator) = (server.to_owned(), args.connect.initiator.clone());
    Ok(runtime::blocking(move || naming::discover(&place, &initiator)).await?)
}

async fn units(url: &Url, args: &Ls) -> Result<Vec<ListedUnit>, ConnectError> {
    let session = connect::session(url, &args.connect).await?;
    let listed = list(&session, url).await;
    if let Err(error) = session.close().await {
        tracing::warn!(%url, %error, "no answer to the logout");
    }
    Ok(listed?)
}

async fn list(session: &Session, url: &Url) -> Result<Vec<ListedUnit>, iscsi_client::Error> {
    let mut listed = Vec::new();
    for lun in session.report_luns().await? {
        let Some(number) = lun.number() else { continue };
        let unit = Unit::at(session, lun);
        let inquiry = unit.inquiry().await?;
        // A drive without a medium is listed too, without a size.
        let capacity_bytes = match inquiry.device_type {
            0x00 | 0x05 | 0x07 | 0x0e => Disk::of(unit).await.ok().map(|disk| disk.len()),
            _ => None,
        };
        listed.push(ListedUnit {
            url: Url { lun: Some(number), ..url.clone() }.to_string(),
            lun: number,
            kind: device_type_name(inquiry.device_type),
            vendor: inquiry.vendor.to_string(),
            product: inquiry.product.to_string(),
            capacity_bytes,
        });
    }
    Ok(listed)
}

fn show(target: &Listed, asked: &Url) -> String {
    let url = Url { target: Some(target.target.clone()), lun: None, ..asked.clone() };
    let mut text = match &target.units {
        // Each unit's URL begins with its target's.
        Some(_) => String::new(),
        None if target.addresses.is_empty() => format!("{url}\n"),
        None => format!("{url}  {}\n", target.addresses.join(" ")),
    };
    for unit in target.units.iter().flatten() {
        let size =
            unit.capacity_bytes.map_or_else(|| "-".into(), |bytes| backing::size::Size(bytes).to_string());
        text += &format!("{}  {}  {size}  {} {}\n", unit.url, unit.kind, unit.vendor, unit.product);
    }
    if let Some(error) = &target.error {
        text += &format!("  its units cannot be listed: {error}\n");
    }
    text
}
