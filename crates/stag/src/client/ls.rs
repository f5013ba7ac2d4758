//! `stag ls`: targets behind a portal, and their units.

use initiator::{Disk, Session, Unit, Url};
use serde::Serialize;

use super::connect::{self, ConnectError};
use super::facts::device_type_name;
use crate::args::Ls;

/// A target as `ls` shows it.
#[derive(Debug, Serialize)]
pub struct Listed {
    /// Its name.
    target: String,
    /// Where it is reached, as `HOST:PORT,GROUP`.
    addresses: Vec<String>,
    /// Its units, if they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    units: Option<Vec<ListedUnit>>,
    /// Why its units could not be listed.
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
///
/// # Errors
/// Whatever keeps it from asking at all.
pub async fn ls(args: &Ls) -> Result<(String, bool), ConnectError> {
    let mut listed = Vec::new();
    match &args.url.target {
        Some(target) => {
            listed.push(Listed { target: target.clone(), addresses: vec![], units: None, error: None })
        }
        None => {
            for record in initiator::discover(&args.url, &connect::options(&args.connect)?).await? {
                let addresses = record.addresses.iter().map(ToString::to_string).collect();
                listed.push(Listed { target: record.name, addresses, units: None, error: None });
            }
        }
    }
    if args.units || args.url.target.is_some() {
        for target in &mut listed {
            // Through the portal that was named: it can be reached, whatever addresses the target tells.
            let url = Url { target: Some(target.target.clone()), lun: None, ..args.url.clone() };
            match units(&url, args).await {
                Ok(units) => target.units = Some(units),
                Err(error) if args.url.target.is_some() => return Err(error),
                Err(error) => target.error = Some(error.to_string()),
            }
        }
    }
    let whole = listed.iter().all(|target| target.error.is_none());
    let text = if args.json {
        serde_json::to_string_pretty(&listed).unwrap_or_default() + "\n"
    } else {
        listed.iter().map(|target| show(target, &args.url)).collect()
    };
    Ok((text, whole))
}

async fn units(url: &Url, args: &Ls) -> Result<Vec<ListedUnit>, ConnectError> {
    let session = connect::session(url, &args.connect).await?;
    let listed = list(&session, url).await;
    if let Err(error) = session.close().await {
        tracing::warn!(%url, %error, "no answer to the logout");
    }
    Ok(listed?)
}

async fn list(session: &Session, url: &Url) -> Result<Vec<ListedUnit>, initiator::Error> {
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
        let size = unit
            .capacity_bytes
            .map_or_else(|| "-".into(), |bytes| disk::store::size::Size(bytes).to_string());
        text += &format!("{}  {}  {size}  {} {}\n", unit.url, unit.kind, unit.vendor, unit.product);
    }
    if let Some(error) = &target.error {
        text += &format!("  its units cannot be listed: {error}\n");
    }
    text
}
